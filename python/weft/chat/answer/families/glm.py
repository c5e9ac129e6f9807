"""GLM from 4.5 on: elements for the keys and the values of arguments."""

from weft.chat.answer.arguments import Parameters, closed
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import OneCall, Row, Space, ToolName

__all__ = ["GLM"]

GLM = Family(
    name="GLM 4.5",
    is_of=lambda template: "<arg_key>" in template and "<arg_value>" in template,
    calls=Row(
        "<tool_call>",
        Space(),
        OneCall(
            Row(
                ToolName(),
                Space("\n"),
                closed(Parameters("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"), "</tool_call>"),
            )
        ),
    ),
    triggers=("<tool_call>",),
)
