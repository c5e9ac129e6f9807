"""Tools and thoughts over OpenAI's chats: what a scripted model writes comes out as calls, thoughts and content."""

import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.helpers import How
from tests.scripted import Answer, AnsweringEngine, Script
from tests.server.conftest import answers
from tests.server.matchers import Json, matching
from weft.chat.pipeline import ChatPipeline
from weft.chat.request import Templates
from weft.server import create_app
from weft.settings import Settings
from weft.settings.chat import ChatSettings
from weft.work.threads import Threads

TEMPLATE = (
    "{%- if tools %}<tools>{{ tools | tojson }}</tools><tool_call>{% endif %}"
    "{%- for message in messages %}<{{ message.role }}>{{ message.content }}"
    "{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "</{{ message.role }}>{% endfor %}"
    "{%- if add_generation_prompt %}<assistant>{% endif %}"
)
"""One in Hermes's way, without thoughts."""

THINKING = TEMPLATE + "{% if add_generation_prompt %}<think>\n{% endif %}{# </think> #}"

CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Json = [{"type": "function", "function": {"name": "get_weather", "description": "Looks it up.", "parameters": CITY}}]
HELLO: Json = [{"role": "user", "content": "How is the weather?"}]

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
CALLS = f"I look.\n{CALL}\n{CALL.replace('Rome', 'Paris')}"

ID = matching("call_[A-Za-z0-9]{24}")


@asynccontextmanager
async def saying(
    text: str, template: str | None = TEMPLATE, *, ends: str = "end", **settings: Json
) -> AsyncIterator[tuple[httpx.AsyncClient, AnsweringEngine]]:
    """A client of a model that says this."""
    engine = AnsweringEngine(Script([Answer(text, ends=ends)], template))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine(), Settings(**settings))) as client:
        await answers(client, 200)
        yield client, engine


async def choices(client: httpx.AsyncClient, how: How, **body: Json) -> list[Json]:
    """The message and the reason of each branch, put together where they are streamed."""
    body = {"messages": HELLO, **body}
    if how == "whole":
        given = await client.post("/v1/chat/completions", json=body)
        assert given.status_code == 200, given.text
        told = given.json()["choices"]
        assert [choice["message"].pop("refusal") for choice in told] == [None] * len(told)
        return [{"message": choice["message"], "finish_reason": choice["finish_reason"]} for choice in told]
    given = await client.post("/v1/chat/completions", json={**body, "stream": True})
    assert given.status_code == 200, given.text
    events = [json.loads(line[6:]) for line in given.text.splitlines() if line.startswith("data: {")]
    return joined([choice for event in events for choice in event["choices"]])


def joined(chunks: Sequence[Json]) -> list[Json]:
    """The choices that chunks come to, as a client puts them together."""
    found: dict[int, Json] = {}
    for chunk in chunks:
        choice = found.setdefault(chunk["index"], {"message": {}, "finish_reason": None})
        choice["finish_reason"] = chunk["finish_reason"] or choice["finish_reason"]
        message = choice["message"]
        for name, value in chunk["delta"].items():
            if name == "tool_calls":
                for call in value:
                    calls = message.setdefault(name, [])
                    if call["index"] == len(calls):
                        calls.append({"id": call["id"], "type": call["type"], "function": {"name": "", "arguments": ""}})
                    for key, text in call["function"].items():
                        calls[call["index"]]["function"][key] += text
            elif name == "function_call":
                function = message.setdefault(name, {"name": "", "arguments": ""})
                for key, text in value.items():
                    function[key] += text
            elif isinstance(value, str) and isinstance(message.get(name), str):
                message[name] += value
            else:
                message[name] = value
    return [found[index] for index in sorted(found)]


async def refusal(client: httpx.AsyncClient, **body: Json) -> tuple[str, str]:
    given = await client.post("/v1/chat/completions", json={"messages": HELLO, **body})
    assert given.status_code == 400, given.text
    return given.json()["error"]["param"], given.json()["error"]["message"]


def call(city: str) -> Json:
    return {"id": ID, "type": "function", "function": {"name": "get_weather", "arguments": f'{{"city": "{city}"}}'}}


async def test_a_call_is_told_whole_and_in_a_stream(how: How) -> None:
    async with saying(CALLS) as (client, _):
        [choice] = await choices(client, how, tools=TOOLS)
        message = {"role": "assistant", "content": "I look.", "tool_calls": [call("Rome"), call("Paris")]}
        assert choice == {"message": message, "finish_reason": "tool_calls"}
        first, second = choice["message"]["tool_calls"]
        assert first["id"] != second["id"]


async def test_an_answer_that_only_calls_has_no_content(how: How) -> None:
    async with saying(CALL) as (client, _):
        [choice] = await choices(client, how, tools=TOOLS)
        message = {"role": "assistant", "content": None, "tool_calls": [call("Rome")]}
        assert choice == {"message": message, "finish_reason": "tool_calls"}


async def test_calls_of_branches_do_not_mix(how: How) -> None:
    async with saying(CALLS) as (client, _):
        given = await choices(client, how, tools=TOOLS, n=3)
        message = {"role": "assistant", "content": "I look.", "tool_calls": [call("Rome"), call("Paris")]}
        assert given == [{"message": message, "finish_reason": "tool_calls"}] * 3
        assert len({one["id"] for choice in given for one in choice["message"]["tool_calls"]}) == 6


@pytest.mark.parametrize(
    ("text", "ends", "arguments", "content_and_reason"),
    [
        (CALL.partition('me"}')[0], "stop", '{"city": "Ro', (None, "stop")),
        (CALL.partition('me"}')[0], "length", '{"city": "Ro', (None, "length")),
        (CALL.partition("_weather")[0], "stop", None, ('<tool_call>\n{"name": "get', "stop")),
        (f"Yes. {CALL.partition('_weather')[0]}", "length", None, ("Yes.", "length")),
        ("Yes. <tool_", "length", None, ("Yes.", "length")),
        ("Yes. <tool_", "end", None, ("Yes. <tool_", "stop")),
        ("I write <tool_call> and", "length", None, ("I write <tool_call> and", "length")),
        (CALL.partition('": {')[0], "length", "", (None, "length")),
        (f"{CALL}\n{CALL.partition('_weather')[0]}", "length", '{"city": "Rome"}', (None, "length")),
        (CALL.partition("}\n")[0], "stop", '{"city": "Rome"}', (None, "stop")),
        (CALL.partition("\n</tool_call>")[0], "stop", '{"city": "Rome"}', (None, "tool_calls")),
        (CALL, "stop", '{"city": "Rome"}', (None, "tool_calls")),
        (CALL.partition('me"}')[0], "end", '{"city": "Ro', (None, "tool_calls")),
    ],
)
async def test_a_call_that_is_cut_is_none_that_the_client_is_to_make(
    how: How, text: str, ends: str, arguments: str | None, content_and_reason: tuple[str | None, str]
) -> None:
    async with saying(text, ends=ends) as (client, _):
        [choice] = await choices(client, how, tools=TOOLS)
    assert [one["function"]["arguments"] for one in choice["message"].get("tool_calls", [])] == [arguments][
        : arguments is not None
    ]
    assert (choice["message"]["content"], choice["finish_reason"]) == content_and_reason


@pytest.mark.parametrize("ends", ["length", "context_full"])
async def test_the_markup_of_a_truncated_call_is_no_content(how: How, ends: str) -> None:
    async with saying(CALL.partition("_weather")[0], ends=ends) as (client, _):
        [choice] = await choices(client, how, tools=TOOLS)
    assert not choice["message"]["content"]
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "length"


async def test_arguments_come_in_pieces() -> None:
    async with saying(CALL) as (client, _):
        given = await client.post("/v1/chat/completions", json={"messages": HELLO, "tools": TOOLS, "stream": True})
        events = [json.loads(line[6:]) for line in given.text.splitlines() if line.startswith("data: {")]
        calls = [delta["tool_calls"][0] for event in events if "tool_calls" in (delta := event["choices"][0]["delta"])]
        assert calls[0] == {"index": 0, "id": ID, "type": "function", "function": {"name": "get_weather", "arguments": ""}}
        assert len(calls) > 4
        assert all(later.keys() == {"index", "function"} for later in calls[1:])


@pytest.mark.parametrize("asked", [{}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}], ids=str)
async def test_where_no_tool_may_be_called_all_is_content(how: How, asked: Json) -> None:
    async with saying(CALLS) as (client, engine):
        [choice] = await choices(client, how, **asked)
        assert choice == {"message": {"role": "assistant", "content": CALLS}, "finish_reason": "stop"}
        assert ("get_weather" in engine.prompts[0]) == bool(asked.get("tools"))
        assert engine.requests[0].grammar is None


async def test_the_prompt_is_the_same_whether_tools_may_be_called_now_or_not() -> None:
    async with saying(CALLS) as (client, engine):
        for choice in ("auto", "none", "required"):
            await choices(client, "whole", tools=TOOLS, tool_choice=choice)
        await choices(client, "whole", functions=[TOOLS[0]["function"]], function_call="none")
    assert len(set(engine.prompts)) == 1


@pytest.mark.parametrize(
    ("text", "content", "cities"),
    [
        ("<tool_call>\n{'name': 5}\n</tool_call>", "<tool_call>\n{'name': 5}\n</tool_call>", []),
        (CALL.replace("get_weather", "got_weather"), CALL.replace("get_weather", "got_weather"), []),
        (f"{CALL}\n<tool_call>oh", "<tool_call>oh", ["Rome"]),
        ('<tool_call>{"name": "get_weather"', '<tool_call>{"name": "get_weather"', []),
    ],
    ids=["no call", "no such tool", "one of two", "cut off"],
)
async def test_what_is_no_call_is_content(
    how: How, text: str, content: str, cities: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with saying(text) as (client, _):
        [choice] = await choices(client, how, tools=TOOLS)
        assert choice["message"]["content"] == content
        assert choice["message"].get("tool_calls", []) == list(map(call, cities))
        assert caplog.text.count("the text looks like a tool call in the format of Hermes, but cannot be parsed") == 1


async def test_answers_may_be_left_as_they_are_written(how: How) -> None:
    async with saying(f"Hm.\n</think>\n\n{CALLS}", THINKING, skip_chat_parsing=True) as (client, _):
        [choice] = await choices(client, how, tools=TOOLS)
        message = {"role": "assistant", "content": f"Hm.\n</think>\n\n{CALLS}"}
        assert choice == {"message": message, "finish_reason": "stop"}


FUNCTIONARY = (
    "{%- if tools %}{{ tools | tojson }}{% endif %}"
    "{%- for message in messages %}<{{ message.role }}>{% if message.role == 'assistant' %}"
    "{% if message.content %}>>>all\n{{ message.content }}{% endif %}"
    "{% for call in message.tool_calls or [] %}>>>{{ call.function.name }}\n{{ call.function.arguments | tojson }}{% endfor %}"
    "{% else %}{{ message.content }}{% endif %}</{{ message.role }}>{% endfor %}"
    "{%- if add_generation_prompt %}<assistant>>>>{% endif %}"
)


@pytest.mark.parametrize("asked", [{}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}], ids=str)
async def test_what_begins_an_answer_to_the_user_is_no_part_of_it(how: How, asked: Json) -> None:
    async with saying("all\nget_weather\n{}", FUNCTIONARY) as (client, _):
        [choice] = await choices(client, how, **asked)
    assert choice == {"message": {"role": "assistant", "content": "get_weather\n{}"}, "finish_reason": "stop"}


async def test_a_schema_holds_what_is_said_behind_what_begins_it(how: How) -> None:
    async with saying('all\n{"a": 1}', FUNCTIONARY) as (client, engine):
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
        [choice] = await choices(client, how, response_format=form)
        [request] = engine.requests
    assert choice["message"]["content"] == '{"a": 1}'
    assert '("all\\n" content-' in (request.grammar or "")


async def test_one_call_is_told_where_one_is_asked_for(how: How) -> None:
    async with saying(CALLS) as (client, _):
        [choice] = await choices(client, how, tools=TOOLS, parallel_tool_calls=False)
        assert choice["message"]["tool_calls"] == [call("Rome")]


async def test_functions_are_called_in_the_way_of_before(how: How) -> None:
    async with saying(CALL) as (client, _):
        [choice] = await choices(client, how, functions=[TOOLS[0]["function"]], function_call="auto")
        function = {"name": "get_weather", "arguments": '{"city": "Rome"}'}
        message = {"role": "assistant", "content": None, "function_call": function}
        assert choice == {"message": message, "finish_reason": "function_call"}


async def test_an_answer_that_is_cut_off_in_a_call_says_so(how: How) -> None:
    async with saying(CALL) as (client, _):
        [choice] = await choices(client, how, tools=TOOLS, max_tokens=20)
        assert choice["finish_reason"] == "length"
        [begun] = choice["message"]["tool_calls"]
        assert '{"city": "Rome"}'.startswith(begun["function"]["arguments"])


@pytest.mark.parametrize(
    ("choice", "n_tools"),
    [("required", 2), ({"type": "function", "function": {"name": "get"}}, 1)],
    ids=["required", "named"],
)
async def test_a_tool_that_must_be_called_is_in_a_grammar(choice: Json, n_tools: int) -> None:
    tools = [*TOOLS, {"type": "function", "function": {"name": "get"}}]
    async with saying("") as (client, engine):
        await choices(client, "whole", tools=tools, tool_choice=choice)
        grammar = engine.requests[0].grammar
        assert grammar is not None
        assert ("get_weather" in grammar) == (n_tools == 2)
        assert grammar.count("call-1 ::=") == n_tools - 1


async def test_the_grammar_of_a_tool_that_may_be_called_waits_for_the_call() -> None:
    async with saying("") as (client, engine):
        await choices(client, "whole", tools=TOOLS)
        [request] = engine.requests
        assert request.grammar is not None
        assert request.grammar_lazy
        assert request.grammar_triggers == (weft.GrammarTrigger("word", "<tool_call>"),)
        assert "<tool_call>" in request.preserved_tokens


async def test_an_answer_calls_a_tool_or_fits_a_schema() -> None:
    schema = {"type": "json_schema", "json_schema": {"schema": {"enum": ["yes"]}}}
    async with saying("") as (client, engine):
        await choices(client, "whole", tools=TOOLS, response_format=schema)
        [request] = engine.requests
        assert request.grammar is not None
        assert not request.grammar_lazy
        assert re.search(r"root ::= .*block.* \| content-root", request.grammar)
        assert request.json_schema is None


async def test_a_grammar_holds_behind_the_thought() -> None:
    async with saying("", THINKING) as (client, engine):
        for asked in ({"tools": TOOLS}, {"response_format": {"type": "json_object"}}, {"reasoning_budget_tokens": 7}):
            await choices(client, "whole", **asked)
        thoughts = [request.reasoning for request in engine.requests]
        assert all(thought is not None for thought in thoughts)
        told = [(thought.starts, thought.ends, thought.begins_inside, thought.budget) for thought in thoughts if thought]
        assert told == [(("<think>",), ("</think>",), True, budget) for budget in (None, None, 7)]


@pytest.mark.parametrize(
    ("asked", "budget"),
    [
        ({}, 5),
        ({"reasoning_budget_tokens": 3}, 3),
        ({"thinking_budget_tokens": 0}, 0),
        ({"reasoning_budget_tokens": 10**12}, 2**32 - 1),
        ({"thinking": {"type": "enabled", "budget_tokens": 10**12}}, 2**32 - 1),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, 9),
        ({"reasoning_budget_tokens": -1, "tools": TOOLS}, None),
    ],
    ids=str,
)
async def test_a_budget_is_the_chats_or_the_servers(asked: Json, budget: int | None) -> None:
    async with saying("", THINKING, reasoning_budget=5, reasoning_budget_message="Enough.") as (client, engine):
        await choices(client, "whole", **asked)
        thought = engine.requests[0].reasoning
        assert thought is not None
        assert (thought.budget, thought.message) == (budget, "Enough.")


@pytest.fixture(scope="module")
async def thinking() -> AsyncIterator[httpx.AsyncClient]:
    """The demo model with a template that begins a thought."""
    app = create_app(weft.Engine(n_slots=2, n_ctx=2048, n_threads=1), Settings(chat_template=THINKING))
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        yield client


MARKED = '{"tag": "<think>", "tool": "<tool_call>"}'


@pytest.mark.parametrize("asked", [{}, {"tools": TOOLS}], ids=["no tools", "tools"])
async def test_marks_in_what_fits_a_schema_are_said(how: How, asked: Json) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    async with saying(f"Rome?\n</think>\n\n{MARKED}", THINKING) as (client, _):
        [choice] = await choices(client, how, response_format=form, **asked)
    message = {"role": "assistant", "content": MARKED, "reasoning_content": "Rome?"}
    assert choice == {"message": message, "finish_reason": "stop"}


async def test_a_budget_that_is_used_up_ends_the_thought(thinking: httpx.AsyncClient, how: How) -> None:
    asked = {"reasoning_budget_tokens": 8, "reasoning_budget_message": " Enough.", "max_tokens": 48, "n": 2, "ignore_eos": True}
    for choice in await choices(thinking, how, **asked):
        assert choice["message"]["reasoning_content"].endswith(" Enough.")
        assert choice["message"]["content"]
        assert "think>" not in choice["message"]["content"] + choice["message"]["reasoning_content"]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("Enough.</think>", "reasoning_budget_message contains '</think>', which ends reasoning"),
        ("x" * 20_000, "it must have at most 16384"),
        ("a b " * 3_000, "at most 4096 are allowed"),
    ],
)
async def test_a_message_that_cannot_be_said_before_the_end_is_refused(
    thinking: httpx.AsyncClient, message: str, said: str
) -> None:
    param, told = await refusal(thinking, reasoning_budget_tokens=8, reasoning_budget_message=message)
    assert param == "reasoning_budget_message"
    assert said in told


async def test_a_server_whose_message_ends_the_thought_does_not_start() -> None:
    engine = AnsweringEngine(Script([Answer("")], THINKING))
    form = ChatPipeline(engine.as_engine(), ChatSettings(reasoning_budget_message="So</think>"))
    with pytest.raises(weft.InvalidConfigError, match="'</think>'"):
        form.check_settings()


async def test_a_schema_holds_the_answer_and_not_the_thought(thinking: httpx.AsyncClient, how: How) -> None:
    schema = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"n": {"type": "integer"}}}}}
    asked = {"reasoning_budget_tokens": 8, "max_tokens": 96, "response_format": schema, "seed": 2}
    [choice] = await choices(thinking, how, **asked)
    assert choice["message"]["reasoning_content"]
    assert isinstance(json.loads(choice["message"]["content"]), dict)


async def test_a_tool_is_called_behind_the_thought(thinking: httpx.AsyncClient, how: How) -> None:
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tools = [{"type": "function", "function": {"name": "count", "parameters": parameters}}]
    asked = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 128, "seed": 3}
    [choice] = await choices(thinking, how, reasoning_budget_tokens=8, **asked)
    assert choice["message"]["reasoning_content"]
    assert choice["message"]["content"] is None
    [called] = choice["message"]["tool_calls"]
    assert isinstance(json.loads(called["function"]["arguments"])["n"], int)


async def test_a_budget_holds_where_a_model_has_no_thoughts() -> None:
    async with saying("Yes.") as (client, engine):
        [choice] = await choices(client, "whole", reasoning_budget_tokens=5)
        assert choice["message"]["content"] == "Yes."
        assert engine.requests[0].reasoning is None


async def test_a_model_that_must_call_a_tool_calls_it(client: httpx.AsyncClient, how: How) -> None:
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tools = [{"type": "function", "function": {"name": "count", "parameters": parameters, "strict": True}}]
    asked = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 128, "seed": 3}
    [choice] = await choices(client, how, **asked)
    [called] = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert called["function"]["name"] == "count"
    assert isinstance(json.loads(called["function"]["arguments"])["n"], int)


TOO_MANY = [{"type": "function", "function": {"name": f"f{nth}"}} for nth in range(129)]


def with_schema(**schema: Json) -> Json:
    return [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object", **schema}}}]


@pytest.mark.parametrize(
    ("asked", "param", "message"),
    [
        ({"tool_choice": "required"}, "tool_choice", "tool_choice is 'required', but the request has no tools"),
        ({"function_call": {"name": "f"}}, "function_call", "but the request has no functions"),
        (
            {"tools": TOOLS, "tool_choice": "often"},
            "tool_choice",
            "tool_choice is 'often'; it must be 'none', 'auto', 'required'",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice",
            "tool_choice names 'f', which is not among the tools",
        ),
        ({"tools": TOOLS, "functions": [{"name": "f"}]}, "functions", "functions is the deprecated form of tools"),
        ({"tools": [{"type": "web_search"}]}, "tools", "tools[0].type is 'web_search'; only the type 'function' is supported"),
        ({"tools": [{"function": {"name": "a b"}}]}, "tools", "tools[0].function.name is 'a b'; it must be a name of letters"),
        ({"tools": [*TOOLS, *TOOLS]}, "tools", "tools has two tools of the same name; names must be unique"),
        ({"tools": TOO_MANY}, "tools", "there are 129 tools; at most 128 are allowed"),
        ({"tools": with_schema(x=" " * 600_000)}, "tools", "bytes of JSON; at most 524288 are allowed"),
        (
            {"tools": with_schema(type="string")},
            "tools",
            "tools[0].function.parameters.type is 'string'; arguments are an object",
        ),
        (
            {"tools": with_schema(properties={"a": {"type": "array", "uniqueItems": True}})},
            "tools",
            "the parameters of the tool f: ",
        ),
        ({"tools": with_schema(properties={"a": {"$ref": "https://x.org"}})}, "tools", "the parameters of the tool f: "),
        (
            {"tools": TOOLS, "grammar": 'root ::= "a"', "tool_choice": "required"},
            "grammar",
            "grammar cannot be combined with tools",
        ),
        ({"reasoning_format": "hidden"}, "reasoning_format", "reasoning_format is 'hidden'; it must be one of"),
        ({"thinking": "hard"}, "thinking", "thinking is 'hard'; it must be a boolean, or an object"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_what_cannot_be_is_refused(asked: Json, param: str, message: str) -> None:
    async with saying("") as (client, _):
        name, told = await refusal(client, **asked)
        assert name == param
        assert message in told


async def test_what_was_called_and_what_came_of_it_reach_the_template() -> None:
    arguments = {"city": "Rome"}
    called = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": json.dumps(arguments)}}
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [called]}, {"role": "tool", "content": "Rain"}]
    shown = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call></assistant><tool>Rain</tool>'
    async with saying("") as (client, engine):
        await choices(client, "whole", messages=messages)
        await choices(client, "whole", messages=[*HELLO, {"role": "assistant", "function_call": called["function"]}, messages[2]])
        assert all(shown in prompt for prompt in engine.prompts)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("{{ function.arguments | tojson }}", '{"city": "Rome"}'),
        ("{{ function.arguments }}", '{"city":"Rome"}'),
        ("{% for key, value in function.arguments | items %}{{ key }}={{ value }}{% endfor %}", "city=Rome"),
        ("{% if function.arguments is mapping %}{{ function.arguments | tojson }}{% else %}raw{% endif %}", '{"city": "Rome"}'),
    ],
    ids=["as JSON", "as a text", "one by one", "either"],
)
async def test_arguments_are_what_the_template_takes(shown: str, expected: str) -> None:
    function = {"name": "get_weather", "arguments": '{"city":"Rome"}'}
    called = {"id": "1", "type": "function", "function": function}
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [called]}, *HELLO]
    template = "{% for message in messages %}{% for call in message.tool_calls or [] %}{% set function = call.function %}"
    async with saying("", f"{template}{shown}{{% endfor %}}{{% endfor %}}") as (client, engine):
        await choices(client, "whole", messages=messages)
        assert engine.prompts == [expected]


async def test_what_was_thought_reaches_a_template_by_its_own_word() -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Fine.", "reasoning_content": "Hm."}, *HELLO]
    template = "{% for message in messages %}{{ message.thinking }}, {% endfor %}"
    async with saying("", template) as (client, engine):
        await choices(client, "whole", messages=messages)
        assert engine.prompts == [", Hm., , "]


async def test_a_template_without_tools_has_them_told_in_words(how: How) -> None:
    called = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [called]}, {"role": "tool", "content": "Rain"}]
    async with saying(CALL, template=None) as (client, engine):
        [choice] = await choices(client, how, messages=messages, tools=TOOLS)
        assert choice["message"]["tool_calls"] == [call("Rome")]
        [prompt] = engine.prompts
        assert '{"name": "get_weather", "description": "Looks it up."' in prompt
        assert f"<|im_start|>assistant\n{CALL}" in prompt
        assert "<|im_start|>user\n<tool_response>\nRain\n</tool_response>" in prompt


async def test_what_came_of_a_call_reaches_a_template_that_takes_only_parts() -> None:
    said = "{% for part in message.content %}{{ part.text }}{% endfor %}"
    template = "{% for message in messages %}<{{ message.role }}>" + said + "{% endfor %}"
    called = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    results = [{"role": "tool", "content": "Rain"}, {"role": "tool", "content": [{"type": "text", "text": "Sun"}]}]
    async with saying("", template) as (client, engine):
        await choices(
            client, "whole", messages=[*HELLO, {"role": "assistant", "content": None, "tool_calls": [called]}, *results]
        )
        [prompt] = engine.prompts
    assert "<tool_call>" in prompt
    assert "Rain" in prompt
    assert "Sun" in prompt


async def test_a_thought_is_told_apart(how: How) -> None:
    async with saying(f"Hm.\n</think>\n\n{CALLS}", THINKING) as (client, _):
        [choice] = await choices(client, how, tools=TOOLS)
        message = {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [call("Rome"), call("Paris")],
        }
        assert choice == {"message": message, "finish_reason": "tool_calls"}


@pytest.mark.parametrize(
    ("begun", "content", "thought"),
    [
        ({"content": "<think>\nshort</think>So"}, "it rains", None),
        ({"content": "\n<think>short</think>\n\nSo"}, "it rains", None),
        ({"content": "<think>\nI am"}, None, "it rains"),
        ({"content": "So"}, "it rains", None),
        ({"content": "", "reasoning_content": "I am"}, None, "it rains"),
        ({"content": "So", "reasoning_content": "I am"}, "it rains", None),
    ],
    ids=str,
)
async def test_an_answer_goes_on_where_its_beginning_ends(
    how: How, begun: Json, content: str | None, thought: str | None
) -> None:
    async with saying("it rains", TEMPLATE + "{# </think> #}") as (client, _):
        [choice] = await choices(client, how, messages=[*HELLO, {"role": "assistant", **begun}])
        assert (choice["message"].get("content") or None, choice["message"].get("reasoning_content")) == (content, thought)


@pytest.mark.parametrize("begun", [{"content": "<think>I'm"}, {"content": "", "reasoning_content": "I'm"}], ids=str)
async def test_space_at_the_beginning_of_continued_reasoning_is_kept(how: How, begun: Json) -> None:
    async with saying(" thinking.\n</think>\n\nYes.", TEMPLATE + "{# </think> #}") as (client, _):
        [choice] = await choices(client, how, messages=[*HELLO, {"role": "assistant", **begun}])
        assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == (" thinking.", "Yes.")


async def test_a_message_that_calls_is_whole(how: How) -> None:
    function = {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    for called in ({"tool_calls": [{"id": "1", "type": "function", "function": function}]}, {"function_call": function}):
        async with saying("", TEMPLATE) as (client, engine):
            messages = [*HELLO, {"role": "assistant", "content": "I look.", **called}]
            await choices(client, how, messages=messages)
            assert 'I look.<tool_call>{"name": "get_weather"' in engine.prompts[0]
            assert engine.prompts[0].endswith("</assistant><assistant>")
            refused = await client.post("/v1/chat/completions", json={"messages": messages, "continue_final_message": True})
            assert refused.status_code == 400
            assert "a message that calls tools cannot be continued" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("form", "content", "thought"),
    [
        ("auto", "Yes.", "Hm."),
        ("deepseek", "Yes.", "Hm."),
        # The prompt has opened the thought.
        ("none", "<think>\nHm.\n</think>\n\nYes.", None),
        ("deepseek-legacy", "<think>\nHm.\n</think>\n\nYes.", "Hm."),
    ],
)
@pytest.mark.parametrize("where", ["field", "setting"])
async def test_a_thought_goes_where_it_is_wanted(how: How, where: str, form: str, content: str, thought: str | None) -> None:
    settings = {"reasoning_format": form} if where == "setting" else {}
    body = {"reasoning_format": form} if where == "field" else {}
    async with saying("Hm.\n</think>\n\nYes.", THINKING, **settings) as (client, _):
        [choice] = await choices(client, how, **body)
        assert (choice["message"]["content"], choice["message"].get("reasoning_content")) == (content, thought)


@pytest.mark.parametrize(
    "asked",
    [
        {"enable_thinking": False},
        {"thinking": False},
        {"thinking": {"type": "disabled"}},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
    ids=str,
)
async def test_thinking_that_is_off_ends_the_thought_that_a_template_begins(how: How, asked: Json) -> None:
    async with saying("Yes.", THINKING) as (client, engine):
        [choice] = await choices(client, how, **asked)
        assert engine.prompts[0].endswith("<assistant><think>\n\n</think>\n\n")
        assert choice["message"] == {"role": "assistant", "content": "Yes."}


@pytest.mark.parametrize(
    ("asked", "may_think"),
    [
        ({"response_format": {"type": "json_object"}}, False),
        ({"tools": TOOLS, "tool_choice": "required"}, False),
        ({"tools": TOOLS}, True),
        ({"response_format": {"type": "json_object"}, "enable_thinking": True}, True),
    ],
    ids=str,
)
async def test_no_thought_is_begun_before_what_is_held_where_thinking_is_off(asked: Json, may_think: bool) -> None:
    async with saying("", TEMPLATE + "{# </think> #}") as (client, engine):
        await choices(client, "whole", **{"enable_thinking": False, **asked})
        assert (engine.requests[0].reasoning is not None) == may_think


async def test_whether_it_thinks_reaches_the_template() -> None:
    template = "{{ enable_thinking }} {{ thinking }} {{ reasoning_effort is defined }} {{ messages[0].content }}"
    async with saying("", template) as (client, engine):
        for asked in ({"enable_thinking": True}, {"thinking": {"type": "disabled"}}, {"reasoning_effort": "low"}):
            await choices(client, "whole", **asked)
        begun = [prompt.rsplit(" How", 1)[0] for prompt in engine.prompts]
        assert begun == ["True  False", "False  False", "False  True"]


@pytest.mark.parametrize(
    ("form", "told", "is_in_content"),
    [
        ("auto", "deepseek", False),
        ("deepseek", "deepseek", False),
        ("none", "none", False),
        ("deepseek-legacy", "deepseek-legacy", True),
    ],
)
@pytest.mark.parametrize("where", ["field", "setting"])
async def test_where_a_thought_goes_is_told_among_the_settings(where: str, form: str, told: str, is_in_content: bool) -> None:
    settings = {"reasoning_format": form} if where == "setting" else {}
    body = {"reasoning_format": form} if where == "field" else {}
    async with saying("Yes.", THINKING, **settings) as (client, _):
        whole = await client.post("/v1/chat/completions", json={"messages": HELLO, "verbose": True, **body})
        shown = whole.json()["__verbose"]["generation_settings"]
        assert (shown["reasoning_format"], shown["reasoning_in_content"]) == (told, False)
        streamed = await client.post("/v1/chat/completions", json={"messages": HELLO, "verbose": True, "stream": True, **body})
        assert streamed.text.count('"reasoning_in_content":true') == is_in_content
        params = (await client.get("/props")).json()["default_generation_settings"]["params"]
        assert params["reasoning_format"] == (told if where == "setting" else "deepseek")


@pytest.mark.parametrize(
    ("settings", "asked", "keeps"),
    [
        ({}, {}, True),
        ({"chat_template_kwargs": {"preserve_reasoning": False}}, {}, False),
        ({"chat_template_kwargs": {"preserve_reasoning": False}}, {"preserve_reasoning": True}, True),
        ({}, {"preserve_reasoning": False}, False),
    ],
    ids=str,
)
async def test_keeping_thoughts_reaches_the_template_by_all_names(settings: Json, asked: Json, keeps: bool) -> None:
    names = "preserve_thinking", "clear_thinking", "truncate_history_thinking", "drop_thinking"
    template = "".join(f"{{{{ {name} }}}} " for name in names) + "{{ messages[0].content }}"
    async with saying("", template, **settings) as (client, engine):
        await choices(client, "whole", chat_template_kwargs=asked)
        assert engine.prompts[0].startswith(f"{keeps} {not keeps} {not keeps} {not keeps} ")
        await choices(client, "whole", chat_template_kwargs={**asked, "clear_thinking": "mine"})
        assert engine.prompts[1].startswith(f"{keeps} mine ")


async def test_effort_reaches_the_template_by_both_names() -> None:
    async with saying("", "{{ reasoning_effort }} {{ reasoning_strength }} {{ messages[0].content }}") as (client, engine):
        await choices(client, "whole", reasoning_effort="low")
        assert engine.prompts[0].startswith("low low ")


async def test_what_day_it_is_reaches_the_template() -> None:
    async with saying("", "{{ date_string }}, {{ datetime }}, {{ strftime_now('%Y') }} {{ messages[0].content }}") as (
        client,
        engine,
    ):
        await choices(client, "whole")
        assert re.match(r"\d\d \w{3} \d{4}, \w{3} \d\d \d{4}, \d{4} How", engine.prompts[0])


async def test_a_tool_cannot_spell_a_control_token() -> None:
    async with weft.Engine(n_slots=1, n_ctx=1024, n_threads=1) as engine:
        spelt = [token for token in engine.model.control_tokens() if engine.model.token_bytes(token)]
        spelling = engine.model.token_bytes(spelt[-1]).decode()
        tools = [{"type": "function", "function": {"name": "f", "description": f"say {spelling} now", "parameters": CITY}}]
        asked = [{"role": "user", "content": "a"}]
        templates = Templates(engine, Threads())
        plain, _ = await templates.request(asked, {"chat_template": TEMPLATE})
        with_tools, _ = await templates.request(asked, {"chat_template": TEMPLATE, "tools": tools})
        assert isinstance(plain.prompt, list)
        assert isinstance(with_tools.prompt, list)
        assert len(with_tools.prompt) > len(plain.prompt)
        assert with_tools.prompt.count(spelt[-1]) == plain.prompt.count(spelt[-1])


FUNCTION_GEMMA = (
    "{%- if tools %}{{ tools | tojson }}{% endif %}"
    "{%- for message in messages %}{% if message.role == 'tool' %}"
    "{% if not message.name %}{{ raise_exception('a result must have a name') }}{% endif %}"
    "<start_function_response>response:{{ message.name }}{value:<escape>{{ message.content }}<escape>}<end_function_response>"
    "{% else %}<start_of_turn>{{ message.role }}\n{{ message.content }}"
    "{%- for call in message.tool_calls or [] %}{{ '<start_function_call>call:' + call.function.name }}{{ '{' }}"
    "{%- for key, value in call.function.arguments | dictsort %}{{ ',' if not loop.first }}{{ key }}:"
    "{%- if value is string %}<escape>{{ value }}<escape>{% else %}{{ value | tojson }}{% endif %}{% endfor %}{{ '}' }}"
    "<end_function_call>{% endfor %}{% endif %}{% endfor %}"
)


async def test_a_result_without_its_name_is_told_by_that_of_the_call(how: How) -> None:
    said = "<start_function_call>call:get_weather{city:<escape>Rome<escape>}<end_function_call>"
    async with saying(said, FUNCTION_GEMMA) as (client, engine):
        [choice] = await choices(client, how, tools=TOOLS)
        message = {"role": "assistant", "content": None, "tool_calls": [call("Rome")]}
        assert choice == {"message": message, "finish_reason": "tool_calls"}
        result = {"role": "tool", "tool_call_id": choice["message"]["tool_calls"][0]["id"], "content": "sunny"}
        await choices(client, how, tools=TOOLS, messages=[*HELLO, choice["message"], result])
        told = "<start_function_response>response:get_weather{value:<escape>sunny<escape>}<end_function_response>"
        assert f"{said}{told}" in engine.prompts[-1]
        assert engine.requests[-1].stop == ["<start_function_response>"]
