"""`/v1/messages`: what a body becomes, and what is told of the answer."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import msgspec
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from pydantic import TypeAdapter

import weft
from tests.server.matchers import COUNT, SOME_TEXT, Json, matching
from tests.server.said import answers_are_read
from tests.server.scripted import FullEngine, ScriptedEngine, connect, finished, token
from tests.server.serving import serving
from weft import InvalidRequestError
from weft.chat.answer.parts import CallArguments, CallStart, Content, Part, Reasoning
from weft.chat.conversation import ChatMessage, ContentPart, ImageUrl
from weft.server import create_app
from weft.server.anthropic.schemas import CountTokens, CreateMessage
from weft.server.anthropic.translate import parse
from weft.settings import Settings

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)

MESSAGES: Json = [{"role": "user", "content": "Tell me a story about a dog."}]
GREEDY: Json = {"messages": MESSAGES, "max_tokens": 8, "temperature": 0}


def frames_of(text: str) -> list[tuple[str, Json]]:
    """Names and data of events, each of which has its name in its data too."""
    found = []
    for frame in text.removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append((event["type"], event))
    return found


async def create_message(client: httpx.AsyncClient, **body: Json) -> Json:
    answer = await client.post("/v1/messages", json=GREEDY | body)
    assert answer.status_code == 200, answer.text
    Message.model_validate(answer.json(), strict=True)
    return answer.json()


async def streamed(client: httpx.AsyncClient, **body: Json) -> list[Json]:
    """The events, each as Anthropic's own types have it."""
    answer = await client.post("/v1/messages", json=GREEDY | body | {"stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = [event for _, event in frames_of(answer.text)]
    for event in events:
        EVENT.validate_python(event, strict=True)
    return events


async def refused(client: httpx.AsyncClient, body: Json, path: str = "/v1/messages", status: int = 400) -> str:
    answer = await client.post(path, json=body)
    assert answer.status_code == status, answer.text
    kind = {400: "invalid_request_error", 501: "invalid_request_error"}[status]
    assert answer.json() == {"type": "error", "error": {"type": kind, "message": SOME_TEXT}}
    return str(answer.json()["error"]["message"])


@asynccontextmanager
async def scripted(*steps: Sequence[Any]) -> AsyncIterator[tuple[httpx.AsyncClient, ScriptedEngine]]:
    """A server whose next answer has these steps."""
    engine = ScriptedEngine([*steps, []])
    engine.loaded.set()
    app = create_app(engine.as_engine(), Settings(alias="scripted"))
    await app.service.lifecycle.start()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(cast("Any", app)), base_url="http://a") as client:
        yield client, engine
    await app.service.stop()


async def test_a_whole_answer(client: httpx.AsyncClient) -> None:
    answer = await create_message(client)
    assert answer == {
        "type": "message",
        "id": matching("msg_[0-9a-f]{32}"),
        "role": "assistant",
        "model": "storyteller",
        "content": [{"type": "text", "text": SOME_TEXT}],
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "usage": {
            "input_tokens": COUNT,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": COUNT,
            "output_tokens": 8,
        },
    }


async def test_a_stream_is_the_whole_answer_in_its_order(client: httpx.AsyncClient) -> None:
    whole = await create_message(client)
    events = await streamed(client)
    kinds = [event["type"] for event in events]
    assert kinds == [
        *("message_start", "content_block_start"),
        *["content_block_delta"] * (len(kinds) - 5),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    assert [{"type": "text", "text": text}] == whole["content"]
    begun, ended = events[0]["message"], events[-2]
    assert begun == whole | {"id": begun["id"], "content": [], "stop_reason": None, "usage": begun["usage"]}
    assert begun["usage"] == ended["usage"] | {"output_tokens": 0}
    assert ended["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}


async def test_what_was_found_computed_is_told_apart(client: httpx.AsyncClient) -> None:
    said = [{"role": "user", "content": "A prompt that only this test has, about seven otters."}]
    first = (await create_message(client, messages=said))["usage"]
    second = (await create_message(client, messages=said))["usage"]
    assert first["input_tokens"] > second["input_tokens"]
    assert second["cache_read_input_tokens"] > 0
    sums = [usage["input_tokens"] + usage["cache_read_input_tokens"] for usage in (first, second)]
    counted = await client.post("/v1/messages/count_tokens", json={"messages": said})
    assert MessageTokensCount.model_validate(counted.json(), strict=True).input_tokens == sums[0] == sums[1]
    assert (await streamed(client, messages=said))[0]["message"]["usage"] == second | {"output_tokens": 0}


async def test_a_stop_sequence_is_told(client: httpx.AsyncClient) -> None:
    text = (await create_message(client))["content"][0]["text"]
    word = text.split()[1]
    answer = await create_message(client, stop_sequences=[word])
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", word)
    assert answer["content"][0]["text"] == text[: text.index(word)]
    assert (await streamed(client, stop_sequences=[word]))[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": word}


async def test_no_tokens_only_compute_the_prompt(client: httpx.AsyncClient) -> None:
    answer = await create_message(client, max_tokens=0)
    assert (answer["content"], answer["usage"]["output_tokens"]) == ([], 0)
    assert [event["type"] for event in await streamed(client, max_tokens=0)] == ["message_start", "message_delta", "message_stop"]


@pytest.mark.parametrize(
    ("reason", "told"),
    [("end", "end_turn"), ("length", "max_tokens"), ("context_full", "model_context_window_exceeded")],
)
async def test_why_it_ended(reason: str, told: str) -> None:
    async with scripted([finished(0, "a", reason=reason)]) as (client, _):
        assert (await client.post("/v1/messages", json={"messages": MESSAGES})).json()["stop_reason"] == told


SCRIPT = [[token(0, text, nth)] for nth, text in enumerate("abcdef", 1)]
SAID: dict[str | None, list[Part]] = {
    "a": [Reasoning("I need ")],
    "b": [Reasoning("the weather."), Content("Let me look.")],
    "c": [CallStart(0, "call_0", "weather"), CallArguments(0, '{"city":')],
    "d": [],
    "e": [CallArguments(0, ' "Oslo"}'), CallStart(1, "call_1", "time")],
    "f": [CallArguments(1, '{"zone')],
    None: [CallArguments(1, '":1}')],
}
BLOCKS: Json = [
    {"type": "thinking", "thinking": "I need the weather.", "signature": ""},
    {"type": "text", "text": "Let me look."},
    {"type": "tool_use", "id": "call_0", "name": "weather", "input": {"city": "Oslo"}},
    {"type": "tool_use", "id": "call_1", "name": "time", "input": {"zone": 1}},
]


async def test_thoughts_texts_and_calls_are_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    answers_are_read(monkeypatch, SAID)
    async with scripted(*SCRIPT, [finished(0)]) as (client, _):
        answer = await create_message(client)
    assert answer["content"] == BLOCKS
    assert answer["stop_reason"] == "tool_use"


async def test_blocks_are_streamed_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    answers_are_read(monkeypatch, SAID)
    async with scripted(*SCRIPT, [finished(0)]) as (client, _):
        events = await streamed(client)
    shown = [
        (event["type"].removeprefix("content_block_"), event["index"], event.get("content_block", event.get("delta")))
        for event in events
        if "index" in event
    ]
    assert shown == [
        ("start", 0, {"type": "thinking", "thinking": "", "signature": ""}),
        ("delta", 0, {"type": "thinking_delta", "thinking": "I need "}),
        ("delta", 0, {"type": "thinking_delta", "thinking": "the weather."}),
        ("delta", 0, {"type": "signature_delta", "signature": ""}),
        ("stop", 0, None),
        ("start", 1, {"type": "text", "text": ""}),
        ("delta", 1, {"type": "text_delta", "text": "Let me look."}),
        ("stop", 1, None),
        ("start", 2, {"type": "tool_use", "id": "call_0", "name": "weather", "input": {}}),
        ("delta", 2, {"type": "input_json_delta", "partial_json": '{"city":'}),
        ("delta", 2, {"type": "input_json_delta", "partial_json": ' "Oslo"}'}),
        ("stop", 2, None),
        ("start", 3, {"type": "tool_use", "id": "call_1", "name": "time", "input": {}}),
        ("delta", 3, {"type": "input_json_delta", "partial_json": '{"zone'}),
        ("delta", 3, {"type": "input_json_delta", "partial_json": '":1}'}),
        ("stop", 3, None),
    ]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


async def test_a_thought_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    answers_are_read(monkeypatch, SAID)
    hidden = {"type": "enabled", "budget_tokens": 2048, "display": "omitted"}
    async with scripted(*SCRIPT, [finished(0)]) as (client, _):
        answer = await create_message(client, thinking=hidden)
    assert answer["content"] == [BLOCKS[0] | {"thinking": ""}, *BLOCKS[1:]]
    async with scripted(*SCRIPT, [finished(0)]) as (client, _):
        events = await streamed(client, thinking=hidden)
    assert [event for event in events if event.get("delta", {}).get("type") == "thinking_delta"] == []


async def test_arguments_that_were_cut_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    answers_are_read(monkeypatch, {"a": [CallStart(0, "call_0", "weather"), CallArguments(0, '{"city": "Os')]})
    async with scripted([token(0, "a")], [finished(0, reason="length")]) as (client, _):
        answer = await create_message(client)
    assert answer["content"] == [
        {"type": "tool_use", "id": "call_0", "name": "weather", "input": {"INVALID_JSON": '{"city": "Os'}}
    ]
    assert answer["stop_reason"] == "max_tokens"


TOOL: Json = {
    "name": "weather",
    "description": "Of a city.",
    "input_schema": {"type": "object"},
    "cache_control": {"type": "ephemeral"},
}


def read(**body: Json) -> Json:
    """What a body becomes."""
    return parse(cast("CreateMessage", _decoded({"messages": MESSAGES} | body)))


def _decoded(body: Json, kind: type = CreateMessage) -> Json:
    return msgspec.json.decode(json.dumps(body), type=kind)


def said(role: str, content: Json, **more: Json) -> ChatMessage:
    return ChatMessage(role=role, content=content, **more)


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        ({}, [said("user", MESSAGES[0]["content"])]),
        ({"system": "Be kind."}, [said("system", "Be kind."), said("user", MESSAGES[0]["content"])]),
        (
            {
                "system": [
                    {"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
                    {"type": "text", "text": "b"},
                ]
            },
            [said("system", [ContentPart("text", "a"), ContentPart("text", "b")]), said("user", MESSAGES[0]["content"])],
        ),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}]},
            [said("user", [ContentPart("text", "a"), ContentPart("text", "b")])],
        ),
        ({"messages": [{"role": "user", "content": []}]}, [said("user", "")]),
        (
            {
                "messages": [
                    {"role": "user", "content": "Weather?"},
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                            {"type": "redacted_thinking", "data": "x"},
                            {"type": "text", "text": "I'll "},
                            {"type": "text", "text": "look."},
                            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
                        ],
                    },
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "Rain"}]},
                            {"type": "tool_result", "tool_use_id": "t2", "content": "gone", "is_error": True},
                            {"type": "text", "text": "And now?"},
                        ],
                    },
                    {"role": "assistant", "content": "It "},
                    {"role": "assistant", "content": "rains."},
                ]
            },
            [
                said("user", "Weather?"),
                said(
                    "assistant",
                    "I'll look.",
                    reasoning_content="Hm.",
                    tool_calls=[
                        {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
                    ],
                ),
                said("tool", "Rain", tool_call_id="t1", name="weather"),
                said("tool", [ContentPart("text", "Error:"), ContentPart("text", "gone")], tool_call_id="t2"),
                said("user", "And now?"),
                said("assistant", "It rains."),
            ],
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
                            {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}},
                        ],
                    }
                ]
            },
            [
                said(
                    "user",
                    [
                        ContentPart("image_url", image_url=ImageUrl("QUJD")),
                        ContentPart("image_url", image_url=ImageUrl("https://a/b.png")),
                    ],
                )
            ],
        ),
    ],
    ids=["a text", "a system", "a system in blocks", "one side twice", "nothing", "tools and thoughts", "pictures"],
)
def test_messages_become_those_of_every_chat(body: Json, messages: list[ChatMessage]) -> None:
    assert read(**body).fields.messages == messages


FUNCTION = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}, "description": "Of a city."}}


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (
            {"max_tokens": 7, "temperature": 0.5, "top_k": 3, "top_p": 0.25, "stop_sequences": ["x"], "stream": True},
            {"n": 1, "max_tokens": 7, "temperature": 0.5, "top_k": 3, "top_p": 0.25, "stop": ["x"], "stream": True},
        ),
        ({"tools": [TOOL]}, {"tools": [FUNCTION], "tool_choice": None, "parallel_tool_calls": None}),
        ({"tools": [TOOL], "tool_choice": {"type": "auto"}}, {"tool_choice": "auto"}),
        ({"tools": [TOOL], "tool_choice": {"type": "any"}}, {"tool_choice": "any"}),
        ({"tools": [TOOL], "tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
        (
            {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}},
            {"tool_choice": {"type": "function", "function": {"name": "weather"}}, "parallel_tool_calls": False},
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"enable_thinking": True, "reasoning_budget_tokens": 1024}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "reasoning_budget_tokens": None}),
        ({"thinking": {"type": "adaptive"}}, {"enable_thinking": True, "reasoning_budget_tokens": None}),
        (
            {"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}},
            {"reasoning_effort": "low", "json_schema": {"type": "object"}},
        ),
        ({"output_format": {"type": "json_schema", "schema": {"type": "array"}}}, {"json_schema": {"type": "array"}}),
    ],
    ids=str,
)
def test_fields_become_those_of_every_chat(body: Json, fields: dict[str, Any]) -> None:
    chat = read(**body).fields
    assert {name: getattr(chat, name) for name in fields} == fields


async def test_the_fields_reach_the_engine() -> None:
    engine = FullEngine()
    engine.loaded.set()
    app = create_app(engine.as_engine())
    await app.service.lifecycle.start()
    body = {"messages": MESSAGES, "max_tokens": 7, "temperature": 0.5, "top_k": 3, "top_p": 0.25, "stop_sequences": ["x"]}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(cast("Any", app)), base_url="http://a") as client:
        answer = await client.post("/v1/messages", json=body)
    assert answer.status_code == 429
    assert answer.json() == {"type": "error", "error": {"type": "rate_limit_error", "message": SOME_TEXT}}
    assert answer.headers["retry-after"] == "1"
    request = engine.requests[0]
    told = (request.n, request.max_tokens, request.temperature, request.top_k, request.top_p, list(request.stop))
    assert told == (1, 7, 0.5, 3, 0.25, ["x"])
    await app.service.stop()


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"mcp_servers": [{"name": "a"}]}, "mcp_servers"),
        ({"container": "a"}, "container"),
        ({"context_management": {"edits": [1]}}, "context_management"),
        ({"context_management": {"edits": 5}}, "context_management"),
        ({"context_management": {"other": 1}}, "context_management"),
        ({"diagnostics": {"previous_message_id": "a"}}, "diagnostics"),
        ({"inference_geo": "eu"}, "inference_geo"),
        ({"service_tier": "other"}, "service_tier"),
        ({"speed": "fast"}, "speed"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].source"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]}, "messages[0].content[0].name"),
        ({"messages": [{"role": "assistant", "content": [{"type": "image"}]}]}, "messages[0].content[0]"),
        ({"system": [{"type": "image"}]}, "system[0]: "),
        ({"system": [{"type": "text"}]}, "system[0].text "),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [TOOL | {"name": "a b"}]}, "tools[0].name "),
        ({"tools": [TOOL | {"input_schema": {"type": "string"}}]}, "tools[0].input_schema.type "),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"thinking": {"type": "disabled", "budget_tokens": 5}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": -5}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "a"}, "max_tokens"),
        ({"stop_sequences": ["x"] * 1000}, "stop_sequences"),
        ({"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1d"}}]}, "cache_control"),
    ],
    ids=lambda given: str(given)[:60],
)
async def test_what_is_not_there_is_refused_by_name(client: httpx.AsyncClient, body: Json, named: str) -> None:
    message = await refused(client, GREEDY | body)
    assert named in message
    if set(body) & {"max_tokens", "temperature", "stop_sequences", "service_tier"} == set():
        assert named in await refused(client, {"messages": MESSAGES} | body, "/v1/messages/count_tokens")


@pytest.mark.parametrize(
    "body",
    [
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"mcp_servers": [], "container": None, "context_management": {}, "diagnostics": None, "inference_geo": None},
        {
            "service_tier": "auto",
            "speed": "standard",
            "metadata": {"user_id": "a"},
            "model": "claude",
            "cache_control": {"type": "ephemeral"},
        },
        {"stop_sequences": [], "tools": [], "thinking": None, "output_config": {}},
    ],
    ids=str,
)
async def test_a_neutral_value_asks_for_nothing(client: httpx.AsyncClient, body: Json) -> None:
    assert (await create_message(client, **body))["content"] == (await create_message(client))["content"]


async def test_a_prompt_that_is_too_long_is_refused_in_the_words_that_clients_look_for(client: httpx.AsyncClient) -> None:
    message = await refused(client, GREEDY | {"messages": [{"role": "user", "content": "x " * 5000}]})
    assert matching(r"prompt is too long: \d+ tokens > 1024 maximum: request \(.*") == message


def test_an_error_names_the_place_of_the_body() -> None:
    """The system's message comes before the others, and results of tools are messages of their own."""
    picture = {"type": "image", "source": {"type": "url", "url": "x"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "a"}, picture]}
    chat = read(system="a", messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, picture, result, picture]}])
    places = [
        chat.rename_parameter(InvalidRequestError("messages", f"messages[{position}].content[{part}].image_url.url: no")).message
        for position, part in ((1, 1), (2, 1), (3, 0))
    ]
    assert places == [
        "messages[0].content[1].source: no",
        "messages[0].content[2].content[1].source: no",
        "messages[0].content[3].source: no",
    ]
    assert chat.rename_parameter(InvalidRequestError("messages", "messages[0].content is odd")).message == "system.content is odd"
    assert chat.rename_parameter(InvalidRequestError("messages", "messages[9] is odd")).message == "messages[9] is odd"


async def test_errors_have_the_dialects_shape_wherever_they_come_from() -> None:
    async with serving(api_keys=("k",), alias="a") as client:
        none = await client.post("/v1/messages", json=GREEDY)
        shown = await client.post("/v1/messages/count_tokens", json={"messages": MESSAGES}, headers={"x-api-key": "k"})
        wrong = await client.get("/v1/messages", headers={"x-api-key": "k"})
        absent = await client.get("/v1/messages/batches", headers={"authorization": "Bearer k"})
        other = await client.get("/v1/messagesx", headers={"x-api-key": "k"})
        no_json = await client.post("/v1/messages", content=b"{", headers={"x-api-key": "k"})
    assert (none.status_code, none.json()["error"]["type"]) == (401, "authentication_error")
    assert shown.status_code == 200
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (405, "invalid_request_error")
    assert (absent.status_code, absent.json()) == (
        404,
        {"type": "error", "error": {"type": "not_found_error", "message": "Not Found"}},
    )
    assert other.json()["error"]["code"] == 404, "only what is below the path is of the dialect"
    assert (no_json.status_code, no_json.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_an_error_before_the_model_is_loaded() -> None:
    app = create_app(ScriptedEngine().as_engine())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(cast("Any", app)), base_url="http://a") as client:
        answer = await client.post("/v1/messages", json=GREEDY)
    assert (answer.status_code, answer.json()["type"], answer.json()["error"]["type"]) == (503, "error", "overloaded_error")


async def test_a_stream_that_fails_ends_with_an_error_event() -> None:
    async with scripted([token(0, "a")], cast("Any", weft.DecodeError("boom"))) as (client, _):
        answer = await client.post("/v1/messages", json=GREEDY | {"stream": True})
    name, event = frames_of(answer.text)[-1]
    assert (name, event["error"]) == ("error", {"type": "api_error", "message": SOME_TEXT})


async def test_silence_is_filled_with_pings() -> None:
    engine = ScriptedEngine([])
    engine.loaded.set()
    app = create_app(engine.as_engine(), Settings(ping_s=0.01))
    await app.service.lifecycle.start()
    sent = await connect(app, "/v1/messages", GREEDY | {"stream": True}, lambda sent: len(sent) > 2)
    assert sent[1]["body"] == b'event: ping\ndata: {"type":"ping"}\n\n'
    await app.service.stop()


@pytest.mark.parametrize(
    ("version", "status"), [(None, 200), ("2023-06-01", 200), ("2026-10-21", 200), ("2023-01-01", 400), ("x", 400)]
)
async def test_the_version_of_the_dialect(client: httpx.AsyncClient, version: str | None, status: int) -> None:
    headers = {} if version is None else {"anthropic-version": version}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        answer = await client.post(path, json=GREEDY, headers=headers)
        assert answer.status_code == status
        assert status == 200 or "anthropic-version" in answer.json()["error"]["message"]


async def test_a_schema_holds(client: httpx.AsyncClient) -> None:
    config = {"format": {"type": "json_schema", "schema": {"enum": ["a", "b"]}}}
    assert (await create_message(client, output_config=config))["content"][0]["text"] in ('"a"', '"b"')


def test_a_count_has_all_fields_of_a_chat_but_those_of_writing() -> None:
    assert parse(_decoded({"messages": MESSAGES}, CountTokens)).fields.n is None


async def test_many_turns_of_one_side_are_read_in_a_moment(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/messages", json={"messages": [{"role": "user", "content": "a"}] * 20_000})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
