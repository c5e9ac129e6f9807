"""Families that write calls as Python does."""

from weft.chat.answer.arguments import Keywords, closed
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import Calls, End, Grammar, OneCall, Row, Space, ToolName

__all__ = ["ALL"]

_CALL = OneCall(Row(ToolName(), "(", closed(Keywords(), ")")))


def _list(closing: str = "]") -> Grammar:
    return Row("[", Space(None), Calls(_CALL, Row(Space(), ",", Space(" "))), End(closing))


LFM2 = Family(
    name="LFM2",
    is_of=lambda template: (
        "<|tool_call_start|>" in template or "List of tools: [" in template or "<|tool_list_start|>" in template
    ),
    calls=Row("<|tool_call_start|>", Space(), _list(), End("<|tool_call_end|>")),
    triggers=("<|tool_call_start|>",),
    between="",
)

LLAMA_PYTHONIC = Family(
    name="Llama (Python)",
    is_of=lambda template: "[func_name1(" in template or "[get_weather(" in template,
    calls=_list(),
    openings=("[",),
    patterns=(r"BEGIN(\[\s*NAMES\()",),
)
"""Llama 3.2 and 4."""

ALL = (LFM2, LLAMA_PYTHONIC)
