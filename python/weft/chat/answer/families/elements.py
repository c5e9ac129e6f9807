"""Families that write each argument as an element of its own, as in XML."""

from weft.chat.answer.arguments import Parameters, closed
from weft.chat.answer.families.json_call import json_call
from weft.chat.answer.family import Family
from weft.chat.answer.grammar import Calls, Either, End, Grammar, OneCall, Optional, Row, Space, ToolName

__all__ = ["DEEPSEEK_3_2", "DEEPSEEK_4", "GLM", "MINIMAX", "QWEN_CODER", "SEED_OSS"]


def _function(parameters: Grammar) -> Grammar:
    return OneCall(Row("<function=", ToolName(), ">", Space("\n"), closed(parameters, "</function>")))


_QWEN_FUNCTION = _function(Parameters("<parameter=", ">", "</parameter>", padding="\n"))

QWEN_CODER = Family(
    name="Qwen3 Coder",
    is_of=lambda template: "<tool_call>" in template and "<function=" in template and "<parameter=" in template,
    calls=Either(
        Row(
            "<tool_call>",
            Space("\n"),
            Either(Row(_QWEN_FUNCTION, End("\n</tool_call>")), Row(OneCall(json_call()), End("</tool_call>"))),
        ),
        Row(_QWEN_FUNCTION, Optional(End("\n</tool_call>"), is_written=True)),
        n_written=2,
    ),
    triggers=("<tool_call>", "<function="),
)
"""Also Nemotron 3 and Step 3.5. Some forget the outer tag."""

SEED_OSS = Family(
    name="Seed OSS",
    is_of=lambda template: "<seed:tool_call>" in template,
    calls=Row(
        "<seed:tool_call>",
        Space("\n"),
        _function(Parameters("<parameter=", ">", "</parameter>")),
        End("\n</seed:tool_call>"),
    ),
    triggers=("<seed:tool_call>",),
)

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

MINIMAX = Family(
    name="MiniMax M2",
    is_of=lambda template: "<minimax:tool_call>" in template,
    calls=Row(
        "<minimax:tool_call>",
        Space("\n"),
        Calls(
            OneCall(
                Row(
                    '<invoke name="',
                    ToolName(),
                    '">',
                    Space("\n"),
                    closed(Parameters('<parameter name="', '">', "</parameter>"), "</invoke>"),
                )
            ),
            Space("\n"),
        ),
        End("\n</minimax:tool_call>"),
    ),
    triggers=("<minimax:tool_call>",),
)

_DSML = "｜DSML｜"  # noqa: RUF001 (the model's own characters)


def _dsml(block: str) -> Grammar:
    return Row(
        f"<{_DSML}{block}>",
        Space("\n"),
        Calls(
            OneCall(
                Row(
                    f'<{_DSML}invoke name="',
                    ToolName(),
                    '">',
                    Space("\n"),
                    closed(
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
        End(f"\n</{_DSML}{block}>"),
    )


DEEPSEEK_3_2 = Family(
    name="DeepSeek V3.2",
    is_of=lambda template: "DSML" in template and "function_calls" in template,
    calls=_dsml("function_calls"),
    triggers=(f"<{_DSML}function_calls>",),
)

DEEPSEEK_4 = Family(
    name="DeepSeek V4",
    is_of=lambda template: "DSML" in template,
    calls=_dsml("tool_calls"),
    triggers=(f"<{_DSML}tool_calls>",),
)
