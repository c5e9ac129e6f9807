"""Kimi K2: numbered calls."""

from weft.chat.answer.arguments import Arguments
from weft.chat.answer.families.shapes import block, name_first
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import CallNumber, Either, End, OneCall, Optional, Seq, Space, Text, ToolName
from weft.chat.answer.source import numbered_id

__all__ = ["KIMI"]

KIMI = Family(
    name="Kimi K2",
    is_of=lambda template: "<|tool_calls_section_begin|>" in template or "tool_declare<|im_middle|>" in template,
    calls=block(
        Optional(Text("<|tool_calls_section_begin|>"), is_written=True),
        Seq(
            "<|tool_call_begin|>",
            Space(),
            Either(
                Seq(
                    "functions.",
                    OneCall(Seq(ToolName(), ":", CallNumber(), Space(), "<|tool_call_argument_begin|>", Arguments())),
                ),
                name_first("<|tool_call_argument_begin|>"),
            ),
            End("<|tool_call_end|>", is_optional=True),
        ),
        "",
        End("<|tool_calls_section_end|>", is_optional=True),
    ),
    triggers=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    ends_reasoning=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    make_id=numbered_id,
)
