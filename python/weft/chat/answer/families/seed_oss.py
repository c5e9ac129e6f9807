"""Seed OSS: an element for each argument, as in XML."""

from weft.chat.answer.arguments import Parameters
from weft.chat.answer.families.shapes import function_element
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import End, Seq, Space

__all__ = ["SEED_OSS"]

SEED_OSS = Family(
    name="Seed OSS",
    is_of=lambda template: "<seed:tool_call>" in template,
    calls=Seq(
        "<seed:tool_call>",
        Space("\n"),
        function_element(Parameters("<parameter=", ">", "</parameter>", is_python=True)),
        End("\n</seed:tool_call>"),
    ),
    triggers=("<seed:tool_call>",),
    ends_reasoning=("<seed:tool_call>",),
)
