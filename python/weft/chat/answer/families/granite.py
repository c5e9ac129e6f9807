"""Granite 3: a list of calls after a mark."""

from weft.chat.answer.call_text import json_list_text
from weft.chat.answer.families.json_call import json_call
from weft.chat.answer.families.shapes import listed
from weft.chat.answer.family import Family

__all__ = ["GRANITE"]

GRANITE = Family(
    name="Granite",
    is_of=lambda template: "<|tool_call|>" in template and "<tool_call>" not in template,
    calls=listed("<|tool_call|>", "", json_call()),
    triggers=("<|tool_call|>",),
    write_calls=lambda calls: f"<|tool_call|>{json_list_text(calls)}",
)
"""Granite 3, and Phi 4 mini, which closes the list with another tag."""
