"""GLM from 4.5 on: elements for the keys and the values of arguments."""

import msgspec

from weft.chat.answer.arguments import Parameters, closed
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import OneCall, Row, Space, ToolName

__all__ = ["GLM", "LAGUNA", "LING"]

GLM = Family(
    name="GLM 4.5",
    is_of=lambda template: "<arg_key>" in template and "<arg_value>" in template,
    calls=Row(
        "<tool_call>",
        Space(),
        OneCall(
            Row(
                ToolName(),
                Space("\n\n"),
                closed(Parameters("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"), "</tool_call>"),
            )
        ),
    ),
    triggers=("<tool_call>",),
    ends_thoughts=("<tool_call>",),
)
"""Also Spark 2.5. Some of these models break no lines within a call."""

_ROLE_END, _ASSISTANT_END = "<|role_end|>", "</assistant>"

LING = msgspec.structs.replace(
    GLM,
    name="Ling 3",
    is_of=lambda template: GLM.is_of(template) and _ROLE_END in template,
    fillers=(_ROLE_END,),
    ends=(_ROLE_END,),
)
"""Spells the token that ends its turn as text sometimes."""

LAGUNA = msgspec.structs.replace(
    GLM,
    name="Laguna",
    is_of=lambda template: GLM.is_of(template) and _ASSISTANT_END in template,
    fillers=(_ASSISTANT_END,),
    ends=(_ASSISTANT_END,),
)
"""The same of another token."""
