"""Kimi K2: calls with numbers."""

from weft.chat.answer.arguments import Arguments
from weft.chat.answer.families.shapes import block, name_first
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import CallNumber, Either, End, OneCall, Row, Space, ToolName
from weft.chat.answer.source import numbered_id

__all__ = ["KIMI"]

KIMI = Family(
    name="Kimi K2",
    is_of=lambda template: "<|tool_calls_section_begin|>" in template or "tool_declare<|im_middle|>" in template,
    calls=block(
        "<|tool_calls_section_begin|>",
        Row(
            "<|tool_call_begin|>",
            Space(),
            Either(
                Row(
                    "functions.",
                    OneCall(Row(ToolName(), ":", CallNumber(), Space(), "<|tool_call_argument_begin|>", Arguments())),
                ),
                name_first("<|tool_call_argument_begin|>"),
            ),
            End("<|tool_call_end|>"),
        ),
        "",
        "<|tool_calls_section_end|>",
    ),
    triggers=("<|tool_calls_section_begin|>",),
    ends_thoughts=True,
    make_id=numbered_id,
)
