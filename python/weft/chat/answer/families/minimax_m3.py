"""MiniMax M3: an element for each call and each value, including nested values."""

from weft.chat.answer.arguments import with_closing_mark
from weft.chat.answer.elements import ElementArguments
from weft.chat.answer.family import Family, ReasoningMarks
from weft.chat.answer.grammar import Calls, End, OneCall, Seq, Space, ToolName

__all__ = ["MINIMAX_M3"]

_TAG = "]<]minimax[>["
"""Prefix of each tag."""

MINIMAX_M3 = Family(
    name="MiniMax M3",
    is_of=lambda template: _TAG in template,
    calls=Seq(
        f"{_TAG}<tool_call>",
        Space("\n"),
        Calls(
            OneCall(
                Seq(
                    f'{_TAG}<invoke name="',
                    ToolName(),
                    '">',
                    Space(),
                    with_closing_mark(ElementArguments(_TAG), f"{_TAG}</invoke>"),
                )
            ),
            Space("\n"),
        ),
        End(f"\n{_TAG}</tool_call>"),
    ),
    triggers=(f"{_TAG}<tool_call>",),
    ends_reasoning=(f"{_TAG}<tool_call>",),
    # An answer without reasoning begins with its end mark.
    fillers=("</mm:think>",),
    reasoning_marks=ReasoningMarks("<mm:think>", "</mm:think>"),
)
