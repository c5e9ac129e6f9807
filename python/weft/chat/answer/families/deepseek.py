"""DeepSeek V3, R1 and later."""

from weft.chat.answer.arguments import Parameters, with_closing_mark
from weft.chat.answer.families.shapes import block, name_first
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import Calls, End, Grammar, OneCall, Seq, Space, Text, ToolName

__all__ = ["DEEPSEEK_3", "DEEPSEEK_3_1", "DEEPSEEK_3_2", "DEEPSEEK_4"]

# ruff: noqa: RUF001 (the models' own characters)
_CALLS_BEGIN, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL_BEGIN, _CALL_END, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"


def _is_deepseek(template: str) -> bool:
    return _CALLS_BEGIN in template or "<｜tool▁call▁begin｜>" in template


DEEPSEEK_3_1 = Family(
    name="DeepSeek V3.1",
    is_of=lambda template: _is_deepseek(template) and "```json" not in template,
    calls=block(_CALLS_BEGIN, OneCall(Seq(_CALL_BEGIN, name_first(_SEPARATOR, closing=_CALL_END))), "", _CALLS_END),
    triggers=(_CALLS_BEGIN,),
    ends_reasoning=(_CALLS_BEGIN,),
)

DEEPSEEK_3 = Family(
    name="DeepSeek V3",
    is_of=_is_deepseek,
    calls=block(
        _CALLS_BEGIN,
        Seq(
            Text(_CALL_BEGIN),
            "function",
            _SEPARATOR,
            name_first(Space("\n"), "```json", Space("\n"), closing="\n```"),
            End(_CALL_END),
        ),
        "\n",
        _CALLS_END,
    ),
    triggers=(_CALLS_BEGIN,),
    ends_reasoning=(_CALLS_BEGIN,),
)
"""Also DeepSeek R1."""

_DSML = "｜DSML｜"


def _dsml(name: str) -> Grammar:
    return Seq(
        f"<{_DSML}{name}>",
        Space("\n"),
        Calls(
            OneCall(
                Seq(
                    f'<{_DSML}invoke name="',
                    ToolName(),
                    '">',
                    Space("\n\n"),
                    with_closing_mark(
                        Parameters(
                            f'<{_DSML}parameter name="',
                            '" string="false">',
                            f"</{_DSML}parameter>",
                            text_middle='" string="true">',
                        ),
                        f"</{_DSML}invoke>",
                    ),
                )
            ),
            Space("\n"),
        ),
        End(f"\n</{_DSML}{name}>"),
    )


DEEPSEEK_3_2 = Family(
    name="DeepSeek V3.2",
    is_of=lambda template: "DSML" in template and "function_calls" in template,
    calls=_dsml("function_calls"),
    triggers=(f"<{_DSML}function_calls>",),
    ends_reasoning=(f"<{_DSML}function_calls>",),
)

DEEPSEEK_4 = Family(
    name="DeepSeek V4",
    is_of=lambda template: "DSML" in template,
    calls=_dsml("tool_calls"),
    triggers=(f"<{_DSML}tool_calls>",),
    ends_reasoning=(f"<{_DSML}tool_calls>",),
)
