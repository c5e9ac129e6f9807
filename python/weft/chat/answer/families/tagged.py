"""Families that write each call as JSON between tags, as Hermes does."""

from weft.chat.answer.families.json_call import json_call
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import End, Grammar, OneCall, Row, Space

__all__ = ["GENERIC", "HERMES"]


def _tagged(opening: str, closing: str) -> Grammar:
    return Row(opening, Space("\n"), OneCall(json_call()), End("\n" + closing))


def _is_hermes(template: str) -> bool:
    return "<tool_call>" in template


HERMES = Family(name="Hermes", is_of=_is_hermes, calls=_tagged("<tool_call>", "</tool_call>"), triggers=("<tool_call>",))
"""Also Qwen 2.5 and 3, Granite 4, and many more."""

GENERIC = Family(
    name="Generic",
    is_of=lambda _: False,
    calls=_tagged("<tool_call>", "</tool_call>"),
    triggers=("<tool_call>",),
    takes_tools=False,
)
