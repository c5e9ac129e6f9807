"""Qwen3 Coder: an element for each argument, as in XML."""

from weft.chat.answer.arguments import Parameters
from weft.chat.answer.families.json_call import json_call
from weft.chat.answer.families.shapes import function_element
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import Either, End, OneCall, Optional, Seq, Space

__all__ = ["QWEN_CODER"]

_FUNCTION = function_element(Parameters("<parameter=", ">", "</parameter>", padding="\n", is_python=True))

QWEN_CODER = Family(
    name="Qwen3 Coder",
    is_of=lambda template: "<tool_call>" in template and "<function=" in template and "<parameter=" in template,
    calls=Either(
        Seq(
            "<tool_call>",
            Space("\n"),
            Either(Seq(_FUNCTION, End("\n</tool_call>")), Seq(OneCall(json_call()), End("</tool_call>"))),
        ),
        Seq(_FUNCTION, Optional(End("\n</tool_call>"), is_written=True)),
        n_written=2,
    ),
    triggers=("<tool_call>", "<function="),
    ends_reasoning=("<tool_call>",),
)
"""Also Qwen 3.5, Nemotron 3 and Step 3.5. Some omit the outer tag, except models that reason."""
