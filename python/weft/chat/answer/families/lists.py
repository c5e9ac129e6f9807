"""Families that write all calls as one list of JSON, or as objects one after the other."""

from weft.chat.answer.arguments import Arguments
from weft.chat.answer.families.json_call import json_call
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import Calls, Either, End, Grammar, OneCall, Optional, Row, Space, Text, ToolName

__all__ = ["ALL", "LLAMA", "json_list"]

_BETWEEN = Row(Space(), ",", Space(" "))


def json_list(call: Grammar) -> Grammar:
    """Calls in a list."""
    return Row("[", Space(), Calls(OneCall(call), _BETWEEN), End("]"))


def _listed(opening: str, closing: str, call: Grammar) -> Grammar:
    row = Row(opening, Space(), json_list(call))
    return Row(row, End(closing)) if closing else row


COMMAND_R7B = Family(
    name="Command R7B",
    is_of=lambda template: "<|START_ACTION|>" in template,
    calls=_listed(
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

_NAMED = Row("{", Space(), '"', ToolName(), '"', Space(), ":", Space(" "), Arguments(), End("}"))

APERTUS = Family(
    name="Apertus",
    is_of=lambda template: "<|tools_prefix|>" in template,
    calls=_listed("<|tools_prefix|>", "<|tools_suffix|>", _NAMED),
    triggers=("<|tools_prefix|>",),
    between="",
    ends_thoughts=True,
)

NEMOTRON = Family(
    name="Nemotron",
    is_of=lambda template: "<TOOLCALL>" in template,
    calls=_listed("<TOOLCALL>", "</TOOLCALL>", json_call()),
    triggers=("<TOOLCALL>",),
)

GRANITE = Family(
    name="Granite",
    is_of=lambda template: "<|tool_call|>" in template and "<tool_call>" not in template,
    calls=_listed("<|tool_call|>", "", json_call()),
    triggers=("<|tool_call|>",),
)
"""Granite 3, and Phi 4 mini, which closes the list with a tag of its own."""

FIREFUNCTION = Family(
    name="FireFunction",
    is_of=lambda template: "functools[" in template,
    calls=_listed("functools", "", json_call()),
    triggers=("functools[",),
)

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

ALL = (COMMAND_R7B, APERTUS, NEMOTRON, GRANITE, FIREFUNCTION, COMMAND_R)

_OBJECT = OneCall(json_call(arguments="parameters", begins_with_name=True))

LLAMA = Family(
    name="Llama 3",
    is_of=lambda template: "<|python_tag|>" in template or ("<|start_header_id|>" in template and '"parameters"' in template),
    calls=Either(
        Calls(_OBJECT, Row(Space(), ";", Space(" "))),
        Row("<|python_tag|>", Space(), Calls(_OBJECT, Row(Space(), ";", Space()))),
        n_written=2,
    ),
    triggers=("<|python_tag|>",),
    openings=("{",),
    patterns=(r"(<\|python_tag\|>)", r'BEGIN(\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"NAMES")'),
    between="; ",
)
"""Objects of JSON where nothing else was said."""
