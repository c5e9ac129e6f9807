"""Families that write the name of a tool, and behind it the arguments as JSON."""

from weft.chat.answer.arguments import Arguments, HeldArguments
from weft.chat.answer.families.json_call import json_call
from weft.chat.answer.families.lists import json_list
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import (
    Ahead,
    CallNumber,
    Calls,
    CallWord,
    Either,
    End,
    Grammar,
    OneCall,
    Optional,
    Row,
    Space,
    Text,
    ToolName,
)
from weft.chat.answer.source import numbered_id, short_id

__all__ = ["DEEPSEEK_3", "DEEPSEEK_3_1", "FUNCTIONARY_3_1", "FUNCTIONARY_3_2", "KIMI", "MISTRAL", "MISTRAL_LIST"]


def _named(*between: Grammar | str, closing: str = "") -> Grammar:
    """A name, something between, and the arguments."""
    call = Row(ToolName(), *between, Space(), Arguments())
    return OneCall(Row(call, End(closing)) if closing else call)


def _block(opening: str, call: Grammar, between: str, closing: str) -> Grammar:
    return Row(opening, Space(), Calls(call, Space(between)), End(closing))


_ID = Optional(Row("[CALL_ID]", CallWord()))

MISTRAL = Family(
    name="Mistral",
    is_of=lambda template: "[TOOL_CALLS]" in template,
    calls=Row(
        "[TOOL_CALLS]",
        Space(),
        Either(_named(_ID, "[ARGS]"), json_list(json_call()), _named()),
    ),
    triggers=("[TOOL_CALLS]",),
    between="",
    make_id=short_id,
)
"""Also Devstral and Magistral. Those of before 2025 write a list, and are told apart below."""

MISTRAL_LIST = Family(
    name="Mistral (lists)",
    is_of=lambda template: "[TOOL_CALLS]" in template and "[ARGS]" not in template,
    calls=Row("[TOOL_CALLS]", Space(), Either(json_list(json_call()), _named(_ID, "[ARGS]"), _named())),
    triggers=("[TOOL_CALLS]",),
    between="",
    make_id=short_id,
)

# ruff: noqa: RUF001 (the models' own characters)
_CALLS_BEGIN, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL_BEGIN, _CALL_END, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"


def _is_deepseek(template: str) -> bool:
    return _CALLS_BEGIN in template or "<｜tool▁call▁begin｜>" in template


DEEPSEEK_3_1 = Family(
    name="DeepSeek V3.1",
    is_of=lambda template: _is_deepseek(template) and "```json" not in template,
    calls=_block(_CALLS_BEGIN, OneCall(Row(_CALL_BEGIN, _named(_SEPARATOR, closing=_CALL_END))), "", _CALLS_END),
    triggers=(_CALLS_BEGIN,),
    ends_thoughts=True,
)

DEEPSEEK_3 = Family(
    name="DeepSeek V3",
    is_of=_is_deepseek,
    calls=_block(
        _CALLS_BEGIN,
        Row(
            Text(_CALL_BEGIN),
            "function",
            _SEPARATOR,
            _named(Space("\n"), "```json", Space("\n"), closing="\n```"),
            End(_CALL_END),
        ),
        "\n",
        _CALLS_END,
    ),
    triggers=(_CALLS_BEGIN,),
    ends_thoughts=True,
)
"""Also DeepSeek R1."""

KIMI = Family(
    name="Kimi K2",
    is_of=lambda template: "<|tool_calls_section_begin|>" in template or "tool_declare<|im_middle|>" in template,
    calls=_block(
        "<|tool_calls_section_begin|>",
        Row(
            "<|tool_call_begin|>",
            Space(),
            Either(
                Row(
                    "functions.",
                    OneCall(Row(ToolName(), ":", CallNumber(), Space(), "<|tool_call_argument_begin|>", Arguments())),
                ),
                _named("<|tool_call_argument_begin|>"),
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

FUNCTIONARY_3_1 = Family(
    name="Functionary 3.1",
    is_of=lambda template: "<function=" in template and "</function>" in template,
    calls=Row("<function=", _named(">"), End("</function>")),
    triggers=("<function=",),
    between="",
)
"""Also Llama 3 with tools of a user's own."""

_RECIPIENT = Row(ToolName(), Text("\n"), Either(Row(Space(), Arguments()), Row(HeldArguments(), Ahead(">>>"))))

FUNCTIONARY_3_2 = Family(
    name="Functionary 3.2",
    is_of=lambda template: ">>>all" in template or ">>>${recipient}" in template,
    calls=Row(Optional(Text(">>>")), Either(OneCall(_RECIPIENT), Text("all\n"))),
    triggers=(">>>",),
    openings=("",),
    patterns=(r"(?:BEGIN|>>>)(NAMES\n)",),
    between=">>>",
    before="all\n",
)
