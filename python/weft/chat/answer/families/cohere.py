"""Command R and what came after it: a list of calls."""

from weft.chat.answer.families.json_call import json_call
from weft.chat.answer.families.shapes import json_list, listed
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import End, Optional, Row, Space, Text

__all__ = ["COMMAND_R", "COMMAND_R7B"]

COMMAND_R7B = Family(
    name="Command R7B",
    is_of=lambda template: "<|START_ACTION|>" in template,
    calls=listed(
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        json_call("tool_name", "parameters", id_name="tool_call_id", writes_id='"\\"" [0-9]{1,2} "\\""'),
    ),
    triggers=("<|START_ACTION|>",),
    fillers=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    between="",
    before="<|START_RESPONSE|>",
    behind="<|END_RESPONSE|>",
)
"""Also Command A."""

COMMAND_R = Family(
    name="Command R",
    is_of=lambda template: "Action: ```json" in template or "Action:```json" in template,
    calls=Row(
        "Action:",
        Optional(Text(" "), is_written=True),
        "```json",
        Space("\n"),
        json_list(json_call("tool_name", "parameters")),
        End("\n```"),
    ),
    triggers=("Action: ```json", "Action:```json"),
)
