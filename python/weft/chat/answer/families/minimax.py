"""MiniMax M2: an element for each call and each argument, as in XML."""

from weft.chat.answer.arguments import Parameters, with_closing_mark
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import Calls, End, OneCall, Seq, Space, ToolName

__all__ = ["MINIMAX"]

MINIMAX = Family(
    name="MiniMax M2",
    is_of=lambda template: "<minimax:tool_call>" in template,
    calls=Seq(
        "<minimax:tool_call>",
        Space("\n"),
        Calls(
            OneCall(
                Seq(
                    '<invoke name="',
                    ToolName(),
                    '">',
                    Space("\n"),
                    with_closing_mark(Parameters('<parameter name="', '">', "</parameter>"), "</invoke>"),
                )
            ),
            Space("\n"),
        ),
        End("\n</minimax:tool_call>"),
    ),
    triggers=("<minimax:tool_call>",),
    ends_reasoning=("<minimax:tool_call>",),
)
