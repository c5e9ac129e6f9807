"""Hermes and Qwen: each call as JSON between tags."""

from weft.chat.answer.families.shapes import tagged
from weft.chat.answer.family import Family

__all__ = ["GENERIC", "HERMES"]

HERMES = Family(
    name="Hermes",
    is_of=lambda template: "<tool_call>" in template,
    calls=tagged("<tool_call>", "</tool_call>"),
    triggers=("<tool_call>",),
)
"""Also Qwen 2.5 and 3, Granite 4, and many others."""

GENERIC = Family(
    name="Generic",
    is_of=lambda _: False,
    calls=tagged("<tool_call>", "</tool_call>"),
    triggers=("<tool_call>",),
    takes_tools=False,
)
