"""What models of each family write: two calls, with something said before them where the family does that."""

from typing import NamedTuple

from weft.chat.answer.call_format import CallFormat
from weft.chat.answer.form import ChatForm, reasoning_marks_of
from weft.chat.answer.formats import FORMATS, GENERIC
from weft.chat.answer.parsed_message import ParsedMessage
from weft.chat.answer.parts import AnswerReader, Part
from weft.chat.answer.reader import ReasoningFormat
from weft.chat.answer.tools import Tool, ToolUse

FAMILIES: dict[str, CallFormat] = {each.name: each for each in (*FORMATS, GENERIC)}

WEATHER = Tool(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
            "units": {"type": "object"},
        },
        "required": ["city"],
    },
)
GET = Tool("get", {"type": "object", "properties": {}})
TOOLS = (WEATHER, GET)


class Written(NamedTuple):
    """An answer, and what is to be read in it."""

    text: str
    content: str = ""
    thought: str = ""
    arguments: str = '{"city": "Rome", "days": 3}'
    """Of the first call; the second one has none."""


DSML = "｜DSML｜"
M3 = "]<]minimax[>["

_JSON = '{"name": "get_weather", "arguments": {"city": "Rome", "days": 3}}'
_NONE = '{"name": "get", "arguments": {}}'
_TAGGED = f"I look.\n<tool_call>\n{_JSON}\n</tool_call>\n<tool_call>\n{_NONE}\n</tool_call>"
_ELEMENTS = (
    "<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>",
    "<function=get>\n</function>",
)

# ruff: noqa: RUF001 (the models' own characters)
WRITTEN: dict[str, Written] = {
    "Hermes": Written(f"<think>\nRome?\n</think>\n\n{_TAGGED}", content="I look.", thought="Rome?"),
    "Generic": Written(_TAGGED, content="I look."),
    "Qwen3 Coder": Written(
        f"I look.\n<tool_call>\n{_ELEMENTS[0]}\n</tool_call>\n<tool_call>\n{_ELEMENTS[1]}\n</tool_call>", content="I look."
    ),
    "Seed OSS": Written(
        "<seed:think>Rome?</seed:think>I look.<seed:tool_call>\n<function=get_weather>\n<parameter=city>Rome</parameter>\n"
        "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=get>\n</function>\n"
        "</seed:tool_call>",
        content="I look.",
        thought="Rome?",
    ),
    "GLM 4.5": Written(
        "<think>Rome?</think>\nI look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>get\n</tool_call>",
        content="I look.",
        thought="Rome?",
    ),
    "Ling 3": Written(
        "<think>Rome?</think>I look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value></tool_call>\n<tool_call>get</tool_call><|role_end|>",
        content="I look.",
        thought="Rome?",
    ),
    "Laguna": Written(
        "<think>Rome?</think>I look.<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value>"
        "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call><tool_call>get</tool_call></assistant>",
        content="I look.",
        thought="Rome?",
    ),
    "MiniMax M2": Written(
        "<think>\nRome?\n</think>\n\nI look.\n<minimax:tool_call>\n"
        '<invoke name="get_weather">\n<parameter name="city">Rome</parameter>\n<parameter name="days">3</parameter>\n</invoke>\n'
        '<invoke name="get">\n</invoke>\n</minimax:tool_call>',
        content="I look.",
        thought="Rome?",
    ),
    "DeepSeek V3.2": Written(
        f'<think>Rome?</think>I look.\n\n<{DSML}function_calls>\n<{DSML}invoke name="get_weather">\n'
        f'<{DSML}parameter name="city" string="true">Rome</{DSML}parameter>\n'
        f'<{DSML}parameter name="days" string="false">3</{DSML}parameter>\n</{DSML}invoke>\n'
        f'<{DSML}invoke name="get">\n</{DSML}invoke>\n</{DSML}function_calls>',
        content="I look.",
        thought="Rome?",
    ),
    "DeepSeek V4": Written(
        f'<think>Rome?</think>I look.\n\n<{DSML}tool_calls>\n<{DSML}invoke name="get_weather">\n'
        f'<{DSML}parameter name="city" string="true">Rome</{DSML}parameter>\n'
        f'<{DSML}parameter name="days" string="false">3</{DSML}parameter>\n</{DSML}invoke>\n'
        f'<{DSML}invoke name="get">\n</{DSML}invoke>\n</{DSML}tool_calls>',
        content="I look.",
        thought="Rome?",
    ),
    "Gemma 4": Written(
        '<|channel>thought\nRome?<channel|>I look.<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>'
        "<|tool_call>call:get{}<tool_call|>",
        content="I look.",
        thought="Rome?",
    ),
    "FunctionGemma": Written(
        "I look.<start_function_call>call:get_weather{city:<escape>Rome<escape>,days:3}<end_function_call>"
        "<start_function_call>call:get{}<end_function_call>",
        content="I look.",
    ),
    "Apertus": Written(
        '<|inner_prefix|>Rome?<|inner_suffix|>I look.<|tools_prefix|>[{"get_weather": {"city": "Rome", "days": 3}}, {"get": {}}]'
        "<|tools_suffix|>",
        content="I look.",
        thought="Rome?",
    ),
    "DeepSeek V3.1": Written(
        "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Rome", "days": 3}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        content="I look.",
    ),
    "DeepSeek V3": Written(
        "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Rome", "days": 3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n{}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        content="I look.",
    ),
    "Kimi K2": Written(
        "<think>Rome?</think>I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Rome", "days": 3}<|tool_call_end|><|tool_call_begin|>functions.get:1'
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        content="I look.",
        thought="Rome?",
    ),
    "Kimi K3": Written(
        "<|open|>think<|sep|>Rome?<|close|>think<|sep|><|open|>response<|sep|>I look.<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Rome'
        '<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|>'
        '<|open|>call tool="get" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        content="I look.",
        thought="Rome?",
    ),
    "MiniMax M3": Written(
        f'<mm:think>Rome?</mm:think>I look.{M3}<tool_call>\n{M3}<invoke name="get_weather">{M3}<city>Rome{M3}</city>'
        f'{M3}<days>3{M3}</days>{M3}</invoke>\n{M3}<invoke name="get">{M3}</invoke>\n{M3}</tool_call>',
        content="I look.",
        thought="Rome?",
    ),
    "Muse": Written(
        " to=self<|message|>Rome?<|eom|><|start|>assistant to=user<|message|>I look.<|eom|><|start|>assistant"
        ' to=get_weather<|message|><atem:function_calls>\n<atem:invoke name="get_weather">\n'
        '<atem:parameter name="city">Rome</atem:parameter>\n<atem:parameter name="days">3</atem:parameter>\n</atem:invoke>\n'
        "</atem:function_calls><|eom|><|start|>assistant to=get<|message|><atem:function_calls>\n"
        '<atem:invoke name="get">\n</atem:invoke>\n</atem:function_calls>',
        content="I look.",
        thought="Rome?",
    ),
    "gpt-oss": Written(
        "<|channel|>analysis<|message|>Rome?<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city": "Rome", "days": 3}<|call|><|start|>assistant to=functions.get<|channel|>commentary json<|message|>{}',
        content="I look.",
        thought="Rome?",
    ),
    "Llama 3": Written(
        '{"name": "get_weather", "parameters": {"city": "Rome", "days": 3}}; {"name": "get", "parameters": {}}',
    ),
    "Llama (Python)": Written("[get_weather(city='Rome', days=3), get()]"),
    "LFM2": Written('I look.<|tool_call_start|>[get_weather(city="Rome", days=3), get()]<|tool_call_end|>', content="I look."),
    "Mistral": Written(
        '[THINK]Rome?[/THINK]I look.[TOOL_CALLS]get_weather[ARGS]{"city": "Rome", "days": 3}[TOOL_CALLS]get[ARGS]{}',
        content="I look.",
        thought="Rome?",
    ),
    "Mistral (lists)": Written(f"I look.[TOOL_CALLS][{_JSON}, {_NONE}]", content="I look."),
    "Command R7B": Written(
        "<|START_THINKING|>Rome?<|END_THINKING|><|START_ACTION|>[\n"
        '    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Rome", "days": 3}},\n'
        '    {"tool_call_id": "1", "tool_name": "get", "parameters": {}}\n]<|END_ACTION|>',
        thought="Rome?",
    ),
    "Cohere 2 MoE": Written(
        "<|START_THINKING|>Rome?<|END_THINKING|><|START_TEXT|>I look.<|END_TEXT|><|START_ACTION|>[\n"
        '    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Rome", "days": 3}},\n'
        '    {"tool_call_id": "1", "tool_name": "get", "parameters": {}}\n]<|END_ACTION|>',
        content="I look.",
        thought="Rome?",
    ),
    "Command R": Written(
        'Action: ```json\n[\n    {\n        "tool_name": "get_weather",\n'
        '        "parameters": {"city": "Rome", "days": 3}\n    },\n'
        '    {\n        "tool_name": "get",\n        "parameters": {}\n    }\n]\n```'
    ),
    "Granite": Written(f"<|tool_call|>[{_JSON}, {_NONE}]"),
    "Nemotron": Written(f"I look.\n\n<TOOLCALL>[{_JSON}, {_NONE}]</TOOLCALL>", content="I look."),
    "FireFunction": Written(f" functools[{_JSON}, {_NONE}]"),
    "Functionary 3.1": Written(
        'I look.\n<function=get_weather>{"city": "Rome", "days": 3}</function><function=get>{}</function>', content="I look."
    ),
    "Functionary 3.2": Written(
        'all\nI look.\n>>>get_weather\n{"city": "Rome", "days": 3}>>>get\n{}',
        content="I look.",
    ),
}

_THOUGHTS = {"Generic": "<think></think>", "Qwen3 Coder": "<think></think>"}
_MARKS = (
    "<think></think>",
    "<seed:think></seed:think>",
    "[THINK][/THINK]",
    "<|START_THINKING|><|END_THINKING|>",
    "<|channel|>",
    "<|channel>thought<channel|>",
    "<|inner_prefix|><|inner_suffix|>",
)


def form_of(
    name: str,
    use: ToolUse | None = None,
    *,
    reasoning_format: ReasoningFormat = ReasoningFormat.SEPARATE,
    is_thinking: bool = False,
) -> ChatForm:
    """How answers of a family are read, with thoughts where they have some."""
    text = WRITTEN[name].text
    marks = next((mark for mark in _MARKS if text.startswith(mark[: mark.find(">") + 1] if "<" in mark else "[THINK]")), "")
    thought = FAMILIES[name].reasoning_marks or reasoning_marks_of(_THOUGHTS.get(name, marks))
    return ChatForm(FAMILIES[name], thought, use or ToolUse(TOOLS), reasoning_format=reasoning_format, is_thinking=is_thinking)


def parts_of(reader: AnswerReader, *pieces: str) -> list[Part]:
    """What comes of a text in pieces."""
    parts = [part for piece in pieces for part in reader.read(piece)]
    return parts + reader.end()


def message_of(reader: AnswerReader, *pieces: str) -> ParsedMessage:
    """The whole message that comes of a text in pieces."""
    message = ParsedMessage()
    for part in parts_of(reader, *pieces):
        message.add(part)
    return message
