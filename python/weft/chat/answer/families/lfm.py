"""LFM2: a Python list of calls."""

from weft.chat.answer.call_text import python_list_text
from weft.chat.answer.families.shapes import python_list
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import End, Seq, Space

__all__ = ["LFM2"]

LFM2 = Family(
    name="LFM2",
    is_of=lambda template: (
        "<|tool_call_start|>" in template or "List of tools: [" in template or "<|tool_list_start|>" in template
    ),
    calls=Seq("<|tool_call_start|>", Space(), python_list(), End("<|tool_call_end|>")),
    triggers=("<|tool_call_start|>",),
    between="",
    write_calls=lambda calls: f"<|tool_call_start|>{python_list_text(calls)}<|tool_call_end|>",
)
