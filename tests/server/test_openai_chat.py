import json

import httpx
import pytest
from litestar.testing import AsyncTestClient

from tests.helpers import How
from tests.server.live import events_of
from tests.server.matchers import COUNT, LOGPROB, SOME_TEXT, TEXT, TIMINGS, Json, matching
from tests.server.scripted import ScriptedEngine, token
from weft import QueueFullError
from weft.server import create_app

MESSAGES: Json = [{"role": "user", "content": "Tell me a story about a dog."}]
N_PROMPT = 20

ABOUT = {
    "id": matching("chatcmpl-[0-9a-f]{32}"),
    "created": COUNT,
    "model": "storyteller",
    "system_fingerprint": matching(r"\S+"),
}
CHUNK = {**ABOUT, "object": "chat.completion.chunk"}


@pytest.fixture(params=["/v1/chat/completions", "/chat/completions"], ids=["v1", "bare"])
def route(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def answer(client: httpx.AsyncClient, route: str = "/v1/chat/completions", **body: Json) -> Json:
    given = await client.post(route, json={"messages": MESSAGES, **body})
    assert given.status_code == 200, given.text
    return given.json()


async def stream(client: httpx.AsyncClient, route: str = "/v1/chat/completions", **body: Json) -> list[Json]:
    """The chunks, `[DONE]` left off."""
    given = await client.post(route, json={"messages": MESSAGES, "stream": True, **body})
    assert given.status_code == 200, given.text
    *chunks, done = events_of(given.text)
    assert done == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]


async def texts(client: httpx.AsyncClient, how: How, **body: Json) -> list[str]:
    if how == "whole":
        return [choice["message"]["content"] for choice in (await answer(client, **body))["choices"]]
    joined: dict[int, str] = {}
    for chunk in await stream(client, **body):
        for choice in chunk["choices"]:
            joined[choice["index"]] = joined.get(choice["index"], "") + (choice["delta"].get("content") or "")
    return [joined[index] for index in sorted(joined)]


async def refusal(client: httpx.AsyncClient, **body: Json) -> tuple[str, str]:
    given = await client.post("/v1/chat/completions", json={"messages": MESSAGES, **body})
    assert given.status_code == 400, given.text
    error = given.json()["error"]
    assert error == {"code": 400, "message": SOME_TEXT, "type": "invalid_request_error", "param": SOME_TEXT}
    return error["param"], error["message"]


async def test_a_whole_answer(client: httpx.AsyncClient, route: str) -> None:
    said = {"message": {"role": "assistant", "content": SOME_TEXT, "refusal": None}, "logprobs": None, "finish_reason": "length"}
    assert await answer(client, route, model="whatever", max_tokens=4, n=2) == {
        **ABOUT,
        "object": "chat.completion",
        "choices": [{"index": 0, **said}, {"index": 1, **said}],
        "usage": {
            "prompt_tokens": N_PROMPT,
            "completion_tokens": 8,
            "total_tokens": N_PROMPT + 8,
            "prompt_tokens_details": {"cached_tokens": COUNT},
        },
        "timings": TIMINGS | {"predicted_n": 8},
    }


def choice(delta: Json, finish_reason: str | None = None) -> list[Json]:
    return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]


async def test_a_stream(client: httpx.AsyncClient, route: str) -> None:
    chunks = await stream(client, route, max_tokens=2)
    assert chunks == [
        {**CHUNK, "choices": choice({"role": "assistant", "content": None})},
        {**CHUNK, "choices": choice({"content": SOME_TEXT})},
        {**CHUNK, "choices": choice({"content": SOME_TEXT})},
        {**CHUNK, "choices": choice({}, "length"), "timings": TIMINGS | {"predicted_n": 2}},
    ]
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_the_usage_of_all_branches_is_one_last_chunk_without_choices(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, max_tokens=3, n=4, stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1] == {
        **CHUNK,
        "choices": [],
        "usage": {
            "prompt_tokens": N_PROMPT,
            "completion_tokens": 12,
            "total_tokens": N_PROMPT + 12,
            "prompt_tokens_details": {"cached_tokens": COUNT},
        },
        "timings": TIMINGS | {"predicted_n": 12},
    }


async def test_each_branch_begins_with_its_role_and_ends_with_nothing(client: httpx.AsyncClient) -> None:
    choices = [chunk["choices"][0] for chunk in await stream(client, max_tokens=3, n=4, temperature=1.5)]
    for index in range(4):
        own = [choice for choice in choices if choice["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": None}
        assert all(choice["delta"] == {"content": TEXT} and choice["finish_reason"] is None for choice in own[1:-1])
        assert (own[-1]["delta"], own[-1]["finish_reason"]) == ({}, "length")


async def test_an_answer_without_tokens_begins_and_ends(client: httpx.AsyncClient) -> None:
    assert [chunk["choices"] for chunk in await stream(client, max_tokens=0)] == [
        choice({"role": "assistant", "content": None}),
        choice({}, "length"),
    ]
    assert [one["message"] for one in (await answer(client, max_tokens=0))["choices"]] == [
        {"role": "assistant", "content": "", "refusal": None}
    ]


async def test_streamed_and_whole_are_the_same_text(client: httpx.AsyncClient) -> None:
    body = {"max_tokens": 24, "temperature": 0}
    assert await texts(client, "stream", **body) == await texts(client, "whole", **body)


async def test_the_end_token_stops_and_is_no_text(client: httpx.AsyncClient, how: How) -> None:
    # Token 4 of the demo model ends a turn.
    body: Json = {"logit_bias": {"4": 1000}}
    assert await texts(client, how, **body) == [""]
    assert (await answer(client, **body))["choices"][0]["finish_reason"] == "stop"
    assert (await stream(client, **body))[-1]["choices"][0]["finish_reason"] == "stop"


async def test_a_stop_string_is_no_part_of_the_text(client: httpx.AsyncClient, how: How) -> None:
    [free] = await texts(client, how, max_tokens=12, temperature=0)
    word = free.split()[3]
    assert await texts(client, how, max_tokens=12, temperature=0, stop=word) == [free[: free.index(word)]]


async def test_an_answer_goes_on_where_the_last_message_ends(client: httpx.AsyncClient, how: How) -> None:
    [free] = await texts(client, how, max_tokens=12, temperature=0)
    cut = free.index(" ", 8)
    begun = [*MESSAGES, {"role": "assistant", "content": free[:cut]}]
    [rest] = await texts(client, how, messages=begun, max_tokens=4, temperature=0)
    assert free[cut:].startswith(rest) or rest.startswith(free[cut:])


@pytest.mark.parametrize("n_top", [None, 0, 2])
async def test_log_probabilities_of_each_token(client: httpx.AsyncClient, n_top: int | None) -> None:
    body: Json = {"max_tokens": 3, "temperature": 0, "logprobs": True, "top_logprobs": n_top}
    [whole] = (await answer(client, **body))["choices"]
    one = {"id": COUNT, "token": TEXT, "bytes": [], "logprob": LOGPROB}
    content = whole["logprobs"]["content"]
    assert whole["logprobs"] == {"content": content, "refusal": None}
    assert [{**drawn, "bytes": [], "top_logprobs": []} for drawn in content] == [{**one, "top_logprobs": []}] * 3
    assert [[{**top, "bytes": []} for top in drawn["top_logprobs"]] for drawn in content] == [[one] * (n_top or 0)] * 3
    assert b"".join([bytes(drawn["bytes"]) for drawn in content]).decode() == whole["message"]["content"]

    chunks = [chunk["choices"][0] for chunk in await stream(client, **body)]
    assert [chunk["logprobs"] is None for chunk in chunks] == [True, False, False, False, True]
    streamed = [drawn for chunk in chunks[1:-1] for drawn in chunk["logprobs"]["content"]]
    assert [drawn["token"] for drawn in streamed] == [drawn["token"] for drawn in content]
    assert [len(drawn["top_logprobs"]) for drawn in streamed] == [n_top or 0] * 3


async def test_no_log_probabilities_unless_they_are_asked_for(client: httpx.AsyncClient) -> None:
    for fields in ({}, {"logprobs": None}, {"logprobs": False}, {"logprobs": False, "top_logprobs": 0}):
        assert (await answer(client, max_tokens=1, **fields))["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs is 21; it must be 0 to 20"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", "top_logprobs is -1; it must be 0 to 20"),
        ({"top_logprobs": 2}, "top_logprobs", "top_logprobs requires logprobs to be true"),
        ({"logprobs": 2}, "logprobs", "logprobs: Expected `boolean | null`, got `integer`"),
        ({"n": 300}, "n", "n is 300; it must be 1 to 256"),
        ({"temperature": "hot"}, "temperature", "temperature: Expected `number | null`, got `string`"),
    ],
    ids=str,
)
async def test_a_wrong_field_is_named(client: httpx.AsyncClient, fields: Json, param: str, message: str) -> None:
    assert await refusal(client, **fields) == (param, message)


ASKING: Json = {
    "audio": {"voice": "alloy"},
    "modalities": ["text", "audio"],
    "web_search_options": {},
}


@pytest.mark.parametrize("field", ASKING)
async def test_what_is_not_there_is_refused_by_name(client: httpx.AsyncClient, field: str) -> None:
    assert await refusal(client, **{field: ASKING[field]}) == (field, f"{field} is not supported; leave it out")


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "functions": [], "modalities": ["text"], "tool_choice": "auto", "function_call": "none"},
        {"tools": None, "audio": None, "modalities": None, "prediction": None, "tool_choice": "none"},
        {"parallel_tool_calls": True, "user": "me", "store": False, "metadata": {}, "service_tier": "auto"},
        {"response_format": {"type": "text"}, "grammar": "", "mirostat": 0},
    ],
    ids=str,
)
async def test_a_neutral_value_asks_for_nothing(client: httpx.AsyncClient, fields: Json) -> None:
    assert len((await answer(client, max_tokens=1, **fields))["choices"]) == 1


@pytest.mark.parametrize(
    ("body", "request_"),
    [
        ({"max_tokens": 9}, {"max_tokens": 9}),
        ({"max_completion_tokens": 8, "max_tokens": 9}, {"max_tokens": 8}),
        ({"n": 3, "seed": 5, "stop": ["a"]}, {"n": 3, "seed": 5, "stop": ["a"]}),
        ({"top_k": 1, "min_p": 0.25, "id_slot": 2}, {"top_k": 1, "min_p": 0.25, "slot": 2}),
        ({"logprobs": True}, {"logprobs": 1}),
        ({"logprobs": True, "top_logprobs": 5}, {"logprobs": 5}),
        ({"n_probs": 3}, {"logprobs": 3}),
        ({"logit_bias": {"65": 1}}, {"logit_bias": [(65, 1)]}),
    ],
    ids=str,
)
async def test_each_field_reaches_the_engine(body: Json, request_: Json) -> None:
    engine = ScriptedEngine(QueueFullError(1))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        await client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}], **body})
    [request] = engine.requests
    assert {name: getattr(request, name) for name in request_} == request_
    assert "".join(map(chr, request.prompt)) == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"  # type: ignore[arg-type]


async def test_an_error_in_mid_stream_is_an_event_and_the_last_one() -> None:
    engine = ScriptedEngine([[token(0, "a")], QueueFullError(3)])
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        given = await client.post("/v1/chat/completions", json={"messages": MESSAGES, "stream": True})
    *chunks, error = [json.loads(event) for event in events_of(given.text)]
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [{"role": "assistant", "content": None}, {"content": "a"}]
    assert error["error"]["code"] == 429
    assert engine.streams[0].is_closed
