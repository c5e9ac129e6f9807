"""The known tool-call formats, one entry each.

To add a format, add an entry to `FORMATS` and a row to `docs/guides/tools.md`: its `template_marks` detect it, and its grammar
`calls` both parses calls and constrains a model to them, so no other code changes. `CallFormat` describes the fields, `layouts`
has the usual shapes of calls. The tests ask for an answer in the format (`tests/chat/families.py`) and a template that renders
it (`tests/chat/templates.py`). A format that is not in the table is derived from the samples of its template (`derive`).
"""

from weft.chat.answer import harmony
from weft.chat.answer.arguments import Arguments, BufferedArguments, Parameters, with_closing_mark
from weft.chat.answer.bare import BareArguments
from weft.chat.answer.call_format import CallFormat, ReasoningMarks, json_list_text, python_list_text
from weft.chat.answer.elements import ElementArguments
from weft.chat.answer.grammar import Calls, Either, End, Grammar, Lookahead, OneCall, Optional, Seq, Space, Text, ToolName, Word
from weft.chat.answer.layouts import element_call, json_call, json_list, listed, name_first, python_list, section, tagged
from weft.chat.answer.source import Source, numbered_id, short_id


def _gemma(name: str, opening: str, closing: str, quote: str, *, fillers: tuple[str, ...], response: str) -> CallFormat:
    """Returns a format with unquoted keys. The model continues with the tool's result unless it is stopped at `response`."""
    calls = Seq(opening, OneCall(Seq(ToolName(), BareArguments(quote))), End(closing))
    fillers = (*fillers, response)
    return CallFormat(name, calls, between="", fillers=fillers, stop_strings=(response,))


def _cohere(name: str, content_start: str, content_end: str, *template_marks: str) -> CallFormat:
    """Returns the format of Command R7B and its successors."""
    call = json_call("tool_name", "parameters", id_name="tool_call_id", writes_id='"\\"" [0-9]{1,2} "\\""')
    return CallFormat(
        name,
        template_marks=(("<|START_ACTION|>", *template_marks),),
        calls=listed("<|START_ACTION|>", call, "<|END_ACTION|>"),
        fillers=(content_start, content_end, "<|END_OF_TURN_TOKEN|>"),
        ends_reasoning=("<|START_ACTION|>", content_start),
        between="",
        content_start=content_start,
        content_end=content_end,
    )


# ruff: noqa: RUF001 (the models' own characters)
_DEEPSEEK_CALLS, _DEEPSEEK_CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_DEEPSEEK_CALL, _DEEPSEEK_CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_DEEPSEEK_SEPARATOR = "<｜tool▁sep｜>"
_DSML = "｜DSML｜"


def _deepseek(name: str, call: Grammar, *, between: str, foreign_mark: str | None = None) -> CallFormat:
    return CallFormat(
        name,
        template_marks=(_DEEPSEEK_CALLS, _DEEPSEEK_CALL),
        foreign_mark=foreign_mark,
        calls=section(_DEEPSEEK_CALLS, call, _DEEPSEEK_CALLS_END, between=between),
        ends_reasoning=(_DEEPSEEK_CALLS,),
    )


def _dsml(name: str, tag: str, *template_marks: str) -> CallFormat:
    arguments = Parameters(
        f'<{_DSML}parameter name="', '" string="false">', f"</{_DSML}parameter>", text_middle='" string="true">'
    )
    call = element_call(f'<{_DSML}invoke name="', '">', arguments, f"</{_DSML}invoke>", space="\n\n")
    trigger = f"<{_DSML}{tag}>"
    calls = section(trigger, call, f"\n</{_DSML}{tag}>", space="\n", between="\n")
    return CallFormat(name, calls, template_marks=(("DSML", *template_marks),), ends_reasoning=(trigger,))


def _glm(name: str, *spelled_ends: str) -> CallFormat:
    """Returns the format of GLM 4.5. Some models spell the token that ends their turn as text, or write no line breaks."""
    arguments = Parameters("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>")
    return CallFormat(
        name,
        template_marks=(("<arg_key>", "<arg_value>", *spelled_ends),),
        calls=Seq("<tool_call>", Space(), element_call("", "", arguments, "</tool_call>", space="\n\n")),
        ends_reasoning=("<tool_call>",),
        fillers=spelled_ends,
        stop_strings=spelled_ends,
    )


def _mistral(name: str, *calls: Grammar, foreign_mark: str | None = None) -> CallFormat:
    return CallFormat(
        name,
        foreign_mark=foreign_mark,
        calls=Seq("[TOOL_CALLS]", Space(), Either(*calls, name_first())),
        between="",
        make_id=short_id,
    )


_MISTRAL_NAMED = name_first(
    Optional(Seq("[CALL_ID]", Word("[^\\W_]", "[a-zA-Z0-9]{9}", Source.rename)), is_written=True), "[ARGS]"
)

_M3_TAG = "]<]minimax[>["
"""Prefix of each tag of MiniMax M3."""

_CODER_CALL = element_call(
    "<function=", ">", Parameters("<parameter=", ">", "</parameter>", padding="\n", is_python=True), "</function>"
)

_LLAMA_OBJECT = OneCall(json_call(arguments="parameters", begins_with_name=True))


def _opened(tag: str) -> str:
    """Returns Kimi K3's mark that begins a part of the answer."""
    return f"<|open|>{tag}<|sep|>"


def _closed(tag: str) -> str:
    return f"<|close|>{tag}<|sep|>"


HERMES = CallFormat(
    "Hermes",
    calls=tagged("<tool_call>", OneCall(json_call()), "</tool_call>"),
)
"""Also Qwen 2.5 and 3, Granite 4, and many others."""

GENERIC = CallFormat("Generic", HERMES.calls, takes_tools=False)
"""Format that is described in words to models with an unknown format, or without training in tool calls."""

FORMATS: tuple[CallFormat, ...] = (
    CallFormat(
        "gpt-oss",
        template_marks=("<|channel|>",),
        calls=harmony.CALLS,
        triggers=(
            "<|channel|>commentary to=functions.",
            "<|channel|>analysis to=functions.",
            "<|start|>assistant to=functions.",
        ),
        openings=("to=",),
        patterns=(
            r"(<\|channel\|>(?:commentary|analysis) to=functions\.)",
            r"(<\|start\|>assistant to=functions\.)",
            r"BEGIN(to=functions\.)",
        ),
        fillers=(
            "<|start|>assistant",
            "<|channel|>final<|message|>",
            "<|channel|>commentary<|message|>",
            "<|end|>",
            "<|return|>",
            "<|call|>",
        ),
        notes=harmony.Header(),
        note_marks=("<|channel|>", "<|start|>assistant to="),
        between="<|start|>assistant",
        lead="<|start|>assistant",
        content_start="<|channel|>final<|message|>",
        ends_reasoning=("<|start|>assistant", "<|channel|>"),
    ),
    _gemma(
        "Gemma 4",
        "<|tool_call>call:",
        "<tool_call|>",
        '<|"|>',
        # The model may repeat the end of reasoning.
        fillers=("<channel|>",),
        response="<|tool_response>",
    ),
    # llama.cpp does not treat the token of the response as an end.
    _gemma(
        "FunctionGemma",
        "<start_function_call>call:",
        "<end_function_call>",
        "<escape>",
        fillers=(),
        response="<start_function_response>",
    ),
    # Every message has a recipient, and a call is a message to a tool.
    CallFormat(
        "Muse",
        template_marks=(("<atem:function_calls>", "<|eom|>"),),
        calls=OneCall(
            Seq(
                " to=",
                ToolName(begins_call=False),
                "<|message|>",
                Space(),
                "<atem:function_calls>",
                Space("\n"),
                '<atem:invoke name="',
                ToolName(),
                '">',
                Space("\n"),
                with_closing_mark(Parameters('<atem:parameter name="', '">', "</atem:parameter>"), "</atem:invoke>"),
                End("\n</atem:function_calls>"),
            )
        ),
        # Only a message to a tool contains a call. A message to the user may quote one.
        triggers=(" to={tool}<|message|>",),
        patterns=(r"( to=NAMES<\|message\|>)",),
        between="<|eom|><|start|>assistant",
        fillers=("<|start|>assistant", " to=user<|message|>", "<|eom|>", "<|eot|>", "<|message|>"),
        lead="<|start|>assistant",
        content_start="to=user<|message|>",
        reasoning_marks=ReasoningMarks(" to=self<|message|>", "<|eom|>"),
    ),
    CallFormat(
        "Kimi K3",
        template_marks=(("<|open|>", "<|close|>", "<|end_of_msg|>"),),
        calls=Seq(
            # If the prompt has opened the response.
            Optional(Text(_closed("response")), is_written=True),
            section(
                _opened("tools"),
                element_call(
                    '<|open|>call tool="',
                    # The index counts from 1.
                    Seq('"', Either(Seq(' index="', Word("[0-9]", "[1-9] [0-9]?"), '"'), Seq()), "<|sep|>"),
                    Parameters(
                        '<|open|>argument key="',
                        '" type="{type}"<|sep|>',
                        _closed("argument"),
                        text_middle='" type="string"<|sep|>',
                        between="",
                    ),
                    _closed("call"),
                    space="",
                ),
                _closed("tools"),
            ),
            Optional(Text(_closed("message")), is_written=True),
        ),
        triggers=(_opened("tools"),),
        ends_reasoning=(_opened("response"), _opened("tools")),
        between="",
        fillers=(_opened("response"), _closed("response"), _closed("message"), "<|end_of_msg|>"),
        lead=_opened("response") + _closed("response"),
        content_start=_opened("response"),
        content_end=_closed("response") + _closed("message"),
        reasoning_marks=ReasoningMarks(_opened("think"), _closed("think")),
    ),
    CallFormat(
        "MiniMax M3",
        template_marks=(_M3_TAG,),
        calls=section(
            f"{_M3_TAG}<tool_call>",
            element_call(f'{_M3_TAG}<invoke name="', '">', ElementArguments(_M3_TAG), f"{_M3_TAG}</invoke>", space=""),
            f"\n{_M3_TAG}</tool_call>",
            space="\n",
            between="\n",
        ),
        ends_reasoning=(f"{_M3_TAG}<tool_call>",),
        # An answer without reasoning begins with its end mark.
        fillers=("</mm:think>",),
        reasoning_marks=ReasoningMarks("<mm:think>", "</mm:think>"),
    ),
    CallFormat(
        "Functionary 3.2",
        template_marks=(">>>all", ">>>${recipient}"),
        calls=Seq(
            Optional(Text(">>>")),
            Either(
                OneCall(Seq(ToolName(), "\n", Either(Seq(Space(), Arguments()), Seq(BufferedArguments(), Lookahead(">>>"))))),
                Text("all\n"),
            ),
        ),
        triggers=(">>>",),
        openings=("",),
        patterns=(r"(?:BEGIN|>>>)(NAMES\n)",),
        between=">>>",
        content_start="all\n",
    ),
    CallFormat(
        "Kimi K2",
        template_marks=("<|tool_calls_section_begin|>", "tool_declare<|im_middle|>"),
        calls=section(
            Optional(Text("<|tool_calls_section_begin|>"), is_written=True),
            Seq(
                "<|tool_call_begin|>",
                Space(),
                Either(
                    Seq(
                        "functions.",
                        name_first(":", Word("[0-9]", "[0-9]{1,4}", Source.number), Space(), "<|tool_call_argument_begin|>"),
                    ),
                    name_first("<|tool_call_argument_begin|>"),
                ),
                End("<|tool_call_end|>", is_optional=True),
            ),
            End("<|tool_calls_section_end|>", is_optional=True),
        ),
        triggers=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        ends_reasoning=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        make_id=numbered_id,
    ),
    # Differs from Command R7B in the marks around content.
    _cohere("Cohere 2 MoE", "<|START_TEXT|>", "<|END_TEXT|>", "<|START_TEXT|>"),
    # Also Command A.
    _cohere("Command R7B", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    # A list of objects whose only key is the name of a tool.
    CallFormat(
        "Apertus",
        calls=listed(
            "<|tools_prefix|>",
            Seq("{", Space(), '"', ToolName(), '"', Space(), ":", Space(" "), Arguments(), End("}")),
            "<|tools_suffix|>",
        ),
        between="",
        ends_reasoning=("<|tools_prefix|>",),
    ),
    CallFormat(
        "Nemotron",
        calls=listed("<TOOLCALL>", json_call(), "</TOOLCALL>"),
    ),
    # Granite 3, and Phi 4 mini, which closes the list with another tag.
    CallFormat(
        "Granite",
        foreign_mark="<tool_call>",
        calls=listed("<|tool_call|>", json_call()),
        write_calls=lambda calls: f"<|tool_call|>{json_list_text(calls)}",
    ),
    CallFormat(
        "FireFunction",
        calls=listed("functools", json_call()),
        triggers=("functools[",),
    ),
    CallFormat(
        "Command R",
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
    ),
    _dsml("DeepSeek V3.2", "function_calls", "function_calls"),
    _dsml("DeepSeek V4", "tool_calls"),
    _deepseek(
        "DeepSeek V3.1",
        OneCall(Seq(_DEEPSEEK_CALL, name_first(_DEEPSEEK_SEPARATOR, closing=_DEEPSEEK_CALL_END))),
        between="",
        foreign_mark="```json",
    ),
    # Also DeepSeek R1.
    _deepseek(
        "DeepSeek V3",
        Seq(
            _DEEPSEEK_CALL,
            "function",
            _DEEPSEEK_SEPARATOR,
            name_first(Space("\n"), "```json", Space("\n"), closing="\n```"),
            End(_DEEPSEEK_CALL_END),
        ),
        between="\n",
    ),
    CallFormat(
        "LFM2",
        template_marks=("<|tool_call_start|>", "List of tools: [", "<|tool_list_start|>"),
        calls=Seq("<|tool_call_start|>", Space(), python_list(), End("<|tool_call_end|>")),
        between="",
        write_calls=lambda calls: f"<|tool_call_start|>{python_list_text(calls)}<|tool_call_end|>",
    ),
    # Llama 3.2 and 4.
    CallFormat(
        "Llama (Python)",
        template_marks=("[func_name1(", "[get_weather("),
        calls=python_list(),
        openings=("[",),
        patterns=(r"BEGIN(\[\s*NAMES\()",),
    ),
    CallFormat(
        "MiniMax M2",
        calls=section(
            "<minimax:tool_call>",
            element_call('<invoke name="', '">', Parameters('<parameter name="', '">', "</parameter>"), "</invoke>"),
            "\n</minimax:tool_call>",
            space="\n",
            between="\n",
        ),
        ends_reasoning=("<minimax:tool_call>",),
    ),
    CallFormat(
        "Seed OSS",
        calls=tagged(
            "<seed:tool_call>",
            element_call("<function=", ">", Parameters("<parameter=", ">", "</parameter>", is_python=True), "</function>"),
            "</seed:tool_call>",
        ),
        ends_reasoning=("<seed:tool_call>",),
    ),
    _glm("Ling 3", "<|role_end|>"),
    _glm("Laguna", "</assistant>"),
    # Also Spark 2.5.
    _glm("GLM 4.5"),
    # Also Qwen 3.5, Nemotron 3 and Step 3.5. Some omit the outer tag, except models that reason.
    CallFormat(
        "Qwen3 Coder",
        template_marks=(("<tool_call>", "<function=", "<parameter="),),
        calls=Either(
            Seq(
                "<tool_call>",
                Space("\n"),
                Either(Seq(_CODER_CALL, End("\n</tool_call>")), Seq(OneCall(json_call()), End("</tool_call>"))),
            ),
            Seq(_CODER_CALL, Optional(End("\n</tool_call>"), is_written=True)),
            n_written=2,
        ),
        triggers=("<tool_call>", "<function="),
        ends_reasoning=("<tool_call>",),
    ),
    # Also Llama 3 with custom tools.
    CallFormat(
        "Functionary 3.1",
        template_marks=(("<function=", "</function>"),),
        calls=Seq("<function=", name_first(">"), End("</function>")),
        between="",
    ),
    # Models from before 2025 write a list.
    _mistral(
        "Mistral (lists)",
        json_list(json_call(writes_id_last=r'"\"" [a-zA-Z0-9]{9} "\""')),
        _MISTRAL_NAMED,
        foreign_mark="[ARGS]",
    ),
    # Also Devstral and Magistral.
    _mistral("Mistral", _MISTRAL_NAMED, json_list(json_call())),
    HERMES,
    CallFormat(
        "Llama 3",
        template_marks=("<|python_tag|>", ("<|start_header_id|>", '"parameters"')),
        calls=Either(
            Calls(_LLAMA_OBJECT, Seq(Space(), ";", Space(" "))),
            Seq("<|python_tag|>", Space(), Calls(_LLAMA_OBJECT, Seq(Space(), ";", Space()))),
            n_written=2,
        ),
        triggers=("<|python_tag|>",),
        openings=("{",),
        patterns=(r"(<\|python_tag\|>)", r'BEGIN(\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"NAMES")'),
        between="",
    ),
)
"""Ordered from specific to general: the first format whose marks a template contains is tried first."""


def format_of(template: str) -> CallFormat | None:
    """Returns the first format whose marks the source of a template contains; None if there is none."""
    return next((call_format for call_format in FORMATS if call_format.is_in(template)), None)
