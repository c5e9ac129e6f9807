"""Apertus: a list of objects whose only key is the name of a tool."""

from weft.chat.answer.arguments import Arguments
from weft.chat.answer.families.shapes import listed
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import End, Seq, Space, ToolName

__all__ = ["APERTUS"]

_CALL = Seq("{", Space(), '"', ToolName(), '"', Space(), ":", Space(" "), Arguments(), End("}"))

APERTUS = Family(
    name="Apertus",
    is_of=lambda template: "<|tools_prefix|>" in template,
    calls=listed("<|tools_prefix|>", "<|tools_suffix|>", _CALL),
    triggers=("<|tools_prefix|>",),
    between="",
    ends_reasoning=("<|tools_prefix|>",),
)
