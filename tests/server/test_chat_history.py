"""Calls, their results and reasoning of earlier turns, as each kind of template renders them, and templates for tools."""

from typing import Any

import msgspec
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.server.conftest import answers
from tests.server.matchers import Json
from tests.server.scripted import ScriptedEngine
from weft import InvalidRequestError
from weft.chat.pipeline import ChatPipeline
from weft.server import create_app
from weft.server.request_fields.chat import ChatFields
from weft.settings import Settings

QUESTION: Json = {"role": "user", "content": "Add."}
TOOL: Json = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}

TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
NATIVE = """{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}
{{- c.function.name }}={{ c.function.arguments | tojson }}{% endfor %}</s>{% endfor %}"""


def text_of(source: str | None, *messages: Json, engine: ScriptedEngine | None = None, **fields: Json) -> str:
    form = ChatPipeline((engine or ScriptedEngine()).as_engine(), Settings(chat_template=source))
    return form.text(msgspec.convert({"messages": [QUESTION, *messages], **fields}, ChatFields))


def calling(*arguments: Any, content: str | None = None, **fields: Json) -> Json:  # noqa: ANN401 (any JSON)
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": "add", "arguments": each}} for n, each in enumerate(arguments)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls, **fields}


def result(number: int, content: str) -> Json:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": content}


@pytest.mark.parametrize(
    ("head", "called", "returned"),
    [
        (
            "{{ 'List of tools: <|tool_list_start|>' if tools }}",
            '<|tool_call_start|>[add(a=1, b="x"), add()]<|tool_call_end|>',
            "<tool>3</s><tool>4</s>",
        ),
        (
            "{{ 'List of tools: [' if tools }}",
            '<|tool_call_start|>[add(a=1, b="x"), add()]<|tool_call_end|>',
            "<tool>3</s><tool>4</s>",
        ),
        (
            "{{ '<|tool_call|>' if tools }}",
            '<|tool_call|>[{"name": "add", "arguments": {"a":1,"b":"x"}}, {"name": "add", "arguments": {}}]',
            "<tool>3</s><tool>4</s>",
        ),
        (
            "",
            "\n".join(f'<tool_call>\n{{"name": "add", "arguments": {each}}}\n</tool_call>' for each in ('{"a":1,"b":"x"}', "{}")),
            "<user><tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response></s>",
        ),
    ],
    ids=["LFM2", "LFM2.5", "Granite 3.3", "generic"],
)
def test_calls_that_a_template_does_not_render_are_in_the_familys_format(head: str, called: str, returned: str) -> None:
    messages = calling('{"a":1,"b":"x"}', "{}", content="Now:"), result(0, "3"), result(1, "4")
    assert text_of(head + TURNS, *messages) == f"<user>Add.</s><assistant>Now:\n{called}</s>{returned}<assistant>"


def test_results_are_the_users_where_the_template_does_not_render_them() -> None:
    source = "{{ '<|tool_call|>' if tools }}" + TURNS.replace("in messages", "in messages if m.role != 'tool'")
    text = text_of(source, calling("{}"), result(0, "3"))
    assert text.endswith("<user><tool_response>\n3\n</tool_response></s><assistant>")


@pytest.mark.parametrize("arguments", [None, "", "{}", {}, " ", "null"], ids=repr)
def test_no_arguments_are_an_empty_object(arguments: Any) -> None:  # noqa: ANN401 (any JSON)
    assert text_of(NATIVE, calling(arguments)) == "<user>Add.</s><assistant>add={}</s>"
    assert text_of(TURNS, calling(arguments)).count('"arguments": {}') == 1


@pytest.mark.parametrize("source", [NATIVE, TURNS], ids=["objects", "words"])
@pytest.mark.parametrize("arguments", ["[1]", "5", '"a"', "{", [1], 5, True], ids=repr)
def test_arguments_that_are_no_object_are_refused_with_the_name_of_the_call(source: str, arguments: Any) -> None:  # noqa: ANN401
    with pytest.raises(InvalidRequestError) as refused:
        text_of(source, calling("{}", arguments))
    assert refused.value.param == "messages"
    assert refused.value.message.startswith("messages[1].tool_calls[1].function.arguments of 'add' ")
    with pytest.raises(InvalidRequestError, match=r"messages\[1\]\.function_call\.arguments of 'add'"):
        text_of(source, {"role": "assistant", "content": "", "function_call": {"name": "add", "arguments": arguments}})


def test_reasoning_is_a_part_of_the_content_for_ministral() -> None:
    source = """{# [SYSTEM_PROMPT] [ARGS] #}{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}
{%- else %}{% for p in m.content %}{% if p.type == 'thinking' %}[THINK]{{ p['thinking'] }}[/THINK]{% else %}{{ p.text }}
{%- endif %}{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""
    reasoned = {"role": "assistant", "content": "3", "reasoning_content": "1+2"}
    assert text_of(source, reasoned, QUESTION) == "<user>Add.<assistant>[THINK]1+2[/THINK]3<user>Add.<assistant>"
    assert text_of(source, reasoned) == "<user>Add.<assistant>[THINK]1+2[/THINK]3"
    assert text_of(source, {**reasoned, "content": ""}) == "<user>Add.<assistant>[THINK]1+2"
    # A list of no parts is refused by the template.
    refusing = "{% for m in messages if not m.content %}{{ raise_exception('empty') }}{% endfor %}" + source
    assert text_of(refusing, {"role": "assistant", "content": ""}, QUESTION) == "<user>Add.<assistant><user>Add.<assistant>"


GEMMA = """{% for m in messages %}<{{ m.role }}>{% for c in m.tool_calls or [] %}{{ '<|tool_call>call:' + c.function.name }};
{%- endfor %}{% for r in m.tool_responses or [] %}{{ r.name }}->{{ r.response | tojson }};{% endfor %}
{{- m.content }}{% endfor %}"""


def test_results_are_in_the_turn_that_calls_for_a_template_of_gemma_4_that_wants_them_there() -> None:
    messages = calling("{}", "{}", reasoning_content="Hm"), result(0, '{"sum": 3}'), result(1, "four")
    turn = '<user>Add.<assistant><|tool_call>call:add;<|tool_call>call:add;add->{"sum": 3};add->"four";'
    assert text_of(GEMMA, *messages) == turn
    answered = [*messages, {"role": "assistant", "content": "3"}, QUESTION]
    assert text_of(GEMMA, *answered) == f"{turn}3<user>Add."
    # Content before a call is a separate turn.
    said = [calling("{}", content="Wait."), result(0, "3")]
    assert text_of(GEMMA, *said) == "<user>Add.<assistant>Wait.<assistant><|tool_call>call:add;add->3;"
    assert "<tool>" in text_of("{#- OpenAI Chat Completions: #}" + GEMMA, *messages)
    begun = {"role": "assistant", "content": "It is"}
    assert text_of(GEMMA, *messages, begun) == f"{turn}It is"
    reasoned = text_of("{# <|channel>thought <channel|> #}" + GEMMA, *messages, begun | {"reasoning_content": "Hm"})
    assert reasoned == f"{turn}<|channel>thoughtHm<channel|>It is"


def test_messages_are_trimmed_for_stepfun() -> None:
    source = "{# You have access to the following functions in JSONSchema format #}" + TURNS
    parts = {"role": "user", "content": [{"type": "text", "text": " a "}, {"type": "text", "text": "b\n"}]}
    assert text_of(source, parts, {"role": "user", "content": " c\n"}) == "<user>Add.</s><user>a\nb</s><user>c</s><assistant>"
    assert " c\n" in text_of(TURNS, {"role": "user", "content": " c\n"})


def test_results_are_in_the_order_of_their_calls_for_deepseek_4() -> None:
    source = "{% set dsml_token = 'DSML' %}{# tool_calls #}" + TURNS
    messages = calling("{}", "{}"), result(1, "second"), result(0, "first"), QUESTION
    assert "<tool>first</s><tool>second</s><user>" in text_of(source, *messages)
    assert "<tool>second</s><tool>first</s><user>" in text_of("{# function_calls #}" + source, *messages)


def named(tool_use: str | None, default: str | None = TURNS) -> ScriptedEngine:
    engine = ScriptedEngine()
    engine.model.chat_template = default
    engine.model.metadata = lambda: {} if tool_use is None else {"tokenizer.chat_template.tool_use": tool_use}
    return engine


TOOL_USE = "{% for t in tools %}{{ t.function.name }} {% endfor %}<tool_call>" + TURNS


def test_chats_with_tools_use_the_models_template_for_tools() -> None:
    assert text_of(None, engine=named(TOOL_USE)) == "<user>Add.</s><assistant>"
    assert text_of(None, engine=named(TOOL_USE), tools=[]) == "<user>Add.</s><assistant>"
    shown = "add <tool_call><user>Add.</s><assistant>"
    assert text_of(None, engine=named(TOOL_USE), tools=[TOOL]) == shown
    assert text_of(None, engine=named(TOOL_USE), tools=[TOOL], tool_choice="none") == shown
    assert text_of(None, engine=named(TOOL_USE), functions=[TOOL["function"]]) == shown
    # Without a default template it is used for every chat.
    assert text_of(None, engine=named(TOOL_USE, None)) == "<tool_call><user>Add.</s><assistant>"
    # --chat-template replaces both.
    assert text_of(TURNS, engine=named(TOOL_USE), tools=[TOOL]).startswith("<system>")


def test_an_invalid_template_for_tools_is_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    assert text_of(None, engine=named("{% for %}"), tools=[TOOL]).startswith("<system>")
    assert "chats with tools use the model's default template" in caplog.text


async def test_props_shows_the_models_template_for_tools_and_chats_use_it() -> None:
    kv_overrides = {"tokenizer.chat_template.tool_use": "<tool_call>{{ tools | length }} {{ messages[0].content }}"}
    app = create_app(weft.Engine(n_slots=1, n_ctx=256, n_threads=1, kv_overrides=kv_overrides), Settings())
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        props = (await client.get("/props")).json()
        assert props["chat_template_tool_use"] == kv_overrides["tokenizer.chat_template.tool_use"] != props["chat_template"]
        with_tools = await client.post("/apply-template", json={"messages": [QUESTION], "tools": [TOOL]})
        assert with_tools.json() == {"prompt": "<tool_call>1 Add."}
        without = await client.post("/apply-template", json={"messages": [QUESTION]})
        assert without.json()["prompt"].startswith("<|im_start|>user\nAdd.")
