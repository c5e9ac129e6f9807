"""Gemma 4, which writes arguments in a way of its own."""

from weft.chat.answer.bare import BareArguments
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import End, OneCall, Row, ToolName

__all__ = ["GEMMA_4"]

GEMMA_4 = Family(
    name="Gemma 4",
    is_of=lambda template: "<|tool_call>call:" in template,
    calls=Row("<|tool_call>call:", OneCall(Row(ToolName(), BareArguments())), End("<tool_call|>")),
    triggers=("<|tool_call>call:",),
    between="",
)
