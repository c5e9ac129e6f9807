"""GLM 4.5 and later: elements for the keys and the values of arguments."""

import msgspec

from weft.chat.answer.arguments import Parameters, with_closing_mark
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import OneCall, Seq, Space, ToolName

__all__ = ["GLM", "LAGUNA", "LING"]

GLM = Family(
    name="GLM 4.5",
    is_of=lambda template: "<arg_key>" in template and "<arg_value>" in template,
    calls=Seq(
        "<tool_call>",
        Space(),
        OneCall(
            Seq(
                ToolName(),
                Space("\n\n"),
                with_closing_mark(Parameters("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"), "</tool_call>"),
            )
        ),
    ),
    triggers=("<tool_call>",),
    ends_reasoning=("<tool_call>",),
)
"""Also Spark 2.5. Some of these models write calls without line breaks."""


def _with_spelled_end(name: str, end: str) -> Family:
    """Returns GLM's format, for models that sometimes spell the token that ends their turn as text."""
    return msgspec.structs.replace(
        GLM, name=name, is_of=lambda template: GLM.is_of(template) and end in template, fillers=(end,), stop_strings=(end,)
    )


LING = _with_spelled_end("Ling 3", "<|role_end|>")

LAGUNA = _with_spelled_end("Laguna", "</assistant>")
