"""Command R and its successors: a list of calls."""

import msgspec

from weft.chat.answer.families.json_call import json_call
from weft.chat.answer.families.shapes import json_list, listed
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import Either, End, Optional, Seq, Space, Text

__all__ = ["COHERE_2_MOE", "COMMAND_R", "COMMAND_R7B"]

COMMAND_R7B = Family(
    name="Command R7B",
    is_of=lambda template: "<|START_ACTION|>" in template,
    calls=listed(
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        json_call("tool_name", "parameters", id_name="tool_call_id", writes_id='"\\"" [0-9]{1,2} "\\""'),
    ),
    triggers=("<|START_ACTION|>",),
    fillers=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|END_OF_TURN_TOKEN|>"),
    ends_reasoning=("<|START_ACTION|>", "<|START_RESPONSE|>"),
    between="",
    content_start="<|START_RESPONSE|>",
    content_end="<|END_RESPONSE|>",
)
"""Also Command A."""

COHERE_2_MOE = msgspec.structs.replace(
    COMMAND_R7B,
    name="Cohere 2 MoE",
    is_of=lambda template: COMMAND_R7B.is_of(template) and "<|START_TEXT|>" in template,
    fillers=("<|START_TEXT|>", "<|END_TEXT|>", "<|END_OF_TURN_TOKEN|>"),
    ends_reasoning=("<|START_ACTION|>", "<|START_TEXT|>"),
    content_start="<|START_TEXT|>",
    content_end="<|END_TEXT|>",
)
"""Differs from Command R7B in the marks around content."""

COMMAND_R = Family(
    name="Command R",
    is_of=lambda template: "Action: ```json" in template or "Action:```json" in template or "Action:\n```json" in template,
    calls=Seq(
        "Action:",
        Optional(Either(Text(" "), Text("\n"), n_written=2), is_written=True),
        "```json",
        Space("\n"),
        json_list(json_call("tool_name", "parameters")),
        End("\n```"),
    ),
    triggers=("Action: ```json", "Action:```json", "Action:\n```json"),
    fillers=("<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
)
