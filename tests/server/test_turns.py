"""What one client asks for holds nobody else up: work and writes come in pieces, between which others have their turn."""

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.helpers import How
from tests.server.conftest import PROMPT, answers
from tests.server.matchers import Json
from tests.server.scripted import connect, token
from weft.server import create_app
from weft.server.inference.generation import Generation
from weft.server.inference.request_builder import MAX_PROMPT_LOGPROBS
from weft.server.inference.usage_counters import UsageCounters
from weft.server.request_fields.fields import CompletionFields
from weft.server.request_fields.paths import MAX_NESTED, MAX_PATH_CHARACTERS, MAX_PATHS, paths
from weft.server.streaming.json_chunks import GAP, entries, filled, groups, json_list
from weft.server.streaming.responses import MAX_WRITE_BYTES

LIKELY = 1000
FRAME_BYTES = 200_000
"""More than any dialect makes of one token with so many likely ones."""


class Turns:
    """Counts the turns of the event loop, and the bytes that were sent in each."""

    def __init__(self) -> None:
        self.n = 0
        self.sent: defaultdict[int, int] = defaultdict(int)

    async def count(self) -> None:
        while True:
            self.n += 1
            await asyncio.sleep(0)

    def note(self, sent: list[Json]) -> bool:
        if sent:
            self.sent[self.n] += len(sent[-1].get("body", b""))
        return False


async def turns_of(path: str, body: Json) -> tuple[Turns, bytes]:
    turns = Turns()
    engine = weft.Engine(n_slots=4, n_ctx=4096, kv_unified=True, n_threads=1)
    app = create_app(engine)
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        counting = asyncio.create_task(turns.count())
        sent = await connect(app, path, body, turns.note)
        counting.cancel()
    assert sent[0]["status"] == 200, sent
    return turns, b"".join(message["body"] for message in sent[1:])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", {"prompt": PROMPT, "n_probs": LIKELY, "n": 4}),
        ("/v1/completions", {"prompt": PROMPT, "logprobs": LIKELY, "n": 4}),
        ("/v1/completions", {"prompt": PROMPT * 10, "logprobs": LIKELY, "echo": True, "verbose": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "n_probs": LIKELY, "n": 4, "verbose": True}),
    ],
    ids=["llamacpp", "openai", "echo", "chat"],
)
async def test_what_is_sent_in_one_turn_is_bounded(path: str, body: Json, how: How) -> None:
    turns, text = await turns_of(path, body | {"max_tokens": 8, "ignore_eos": True, "stream": how == "stream"})
    assert len(text) > 4 * MAX_WRITE_BYTES
    assert max(turns.sent.values()) <= MAX_WRITE_BYTES + FRAME_BYTES
    assert len(turns.sent) > len(text) / (MAX_WRITE_BYTES + FRAME_BYTES)
    if how == "whole":
        json.loads(text)


NESTED = (
    f"response_fields has {MAX_NESTED + 1} nested paths, such as a, a/b and a/b/c; at most {MAX_NESTED}"
    " are allowed, since each repeats the content of the next"
)


@pytest.mark.parametrize("route", ["/completion", "/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["a"] * (MAX_PATHS + 1), f"response_fields has {MAX_PATHS + 1} paths; at most {MAX_PATHS} are allowed"),
        (
            ["a/" * MAX_PATH_CHARACTERS],
            f"response_fields has a path of {2 * MAX_PATH_CHARACTERS} characters; at most {MAX_PATH_CHARACTERS} are allowed",
        ),
        (
            ["generation_settings", *("generation_settings/json_schema" + "/a" * n for n in range(MAX_NESTED)), "stop"],
            NESTED,
        ),
        ("a" * 1_000, f"response_fields has a path of 1000 characters; at most {MAX_PATH_CHARACTERS} are allowed"),
    ],
    ids=["many", "long", "nested", "one"],
)
async def test_the_paths_of_an_answer_are_bounded(client: httpx.AsyncClient, route: str, paths: Json, message: str) -> None:
    body = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "response_fields": paths, "max_tokens": 1}
    answer = await client.post(route, json=body)
    error = {"code": 400, "message": message, "type": "invalid_request_error", "param": "response_fields"}
    assert answer.json() == {"error": error}


def test_paths_lead_into_each_other_by_their_steps_and_not_by_their_letters() -> None:
    beside = [f"a-{n}" for n in range(99)] + [f"b/{n}" for n in range(99)] + ["a"] * 9
    within = ["a" + "/b" * n for n in range(MAX_NESTED - 1)]
    assert len(paths(CompletionFields(response_fields=beside + within))) == len(beside + within)
    at_most = paths(CompletionFields(response_fields=[*beside, *within, "a" + "/b" * MAX_NESTED]))
    with pytest.raises(weft.InvalidRequestError, match=f"has {MAX_NESTED + 1} nested paths"):
        paths(CompletionFields(response_fields=[*at_most, "a" + "/b" * (MAX_NESTED + 1)]))


async def test_as_many_paths_as_there_may_be_are_taken(client: httpx.AsyncClient) -> None:
    paths = ["content", "generation_settings/seed", "generation_settings/json_schema/type", "tokens/0", "content/0"]
    paths += ["completion_probabilities", "generation_settings/speculative.types", "no/" * 80]
    body = {"prompt": PROMPT, "response_fields": paths + ["n"] * (MAX_PATHS - len(paths)), "seed": 7, "n_probs": 1}
    told = (await client.post("/completion", json=body | {"json_schema": {"type": "null"}, "n_predict": 2})).json()
    assert set(told) == {
        "content",
        "generation_settings/seed",
        "generation_settings/json_schema/type",
        "generation_settings/speculative.types",
        "completion_probabilities",
    }
    assert told["generation_settings/seed"] == 7
    assert told["generation_settings/json_schema/type"] == "null"


async def test_the_log_probabilities_of_a_prompt_are_bounded(client: httpx.AsyncClient) -> None:
    n_tokens = 2_000
    body = {"prompt": [[300] * (n_tokens // 4)] * 4, "echo": True, "logprobs": 1_000, "max_tokens": 0}
    answer = await client.post("/v1/completions", json=body)
    n = n_tokens * 1_001
    message = f"prompt_logprobs requests {n} log-probabilities of {n_tokens} tokens; at most {MAX_PROMPT_LOGPROBS} are allowed"
    error = {"code": 400, "message": message.replace("prompt_logprobs", "logprobs", 1), "type": "invalid_request_error"}
    assert answer.json() == {"error": error | {"param": "logprobs"}}


class Stream:
    """A stream of a prompt, as a test feeds it."""

    seed = 1
    n_prompt = 1

    def __init__(self, request_id: int) -> None:
        self.request_id = request_id
        self.events: asyncio.Queue[Sequence[Json]] = asyncio.Queue()
        self._has_more = asyncio.Event()

    def feed(self, events: Sequence[Json]) -> None:
        self.events.put_nowait(events)
        self._has_more.set()

    async def readable(self) -> None:
        await self._has_more.wait()

    async def next_batch(self, *, compact: bool) -> Sequence[Json]:
        events = await self.events.get()
        if self.events.empty():
            self._has_more.clear()
        return events

    def close(self) -> None:
        self.feed([])


async def calls_of_a_step(n_prompts: int) -> int:
    """Calls of functions that it takes to read one token of one of so many prompts."""
    streams = [Stream(prompt) for prompt in range(n_prompts)]
    generation = Generation(
        cast("Any", SimpleNamespace(branches=())),
        [weft.Request(prompt=[1])] * len(streams),
        cast("Any", streams),
        UsageCounters(),
    )
    reading = asyncio.create_task(generation.next_batches())
    await asyncio.sleep(0)
    streams[1].feed([token(0, "a")])
    assert [prompt for prompt, _ in await reading] == [1]
    n_calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal n_calls
        n_calls += event in ("call", "c_call")

    sys.setprofile(cast("Callable[..., Any]", count))
    try:
        for _ in range(10):
            streams[1].feed([token(0, "a")])
            await generation.next_batches()
    finally:
        sys.setprofile(None)
        generation.close()
    return n_calls


async def test_a_step_costs_what_has_changed_however_many_prompts_there_are() -> None:
    assert await calls_of_a_step(1_000) <= 1.1 * await calls_of_a_step(10)


async def test_of_many_streams_that_have_much_a_bounded_part_is_taken_at_once() -> None:
    streams = [Stream(prompt) for prompt in range(8)]
    for stream in streams:
        stream.feed([token(0, "a")] * 2_000)
        stream.feed([])
    generation = Generation(
        cast("Any", SimpleNamespace(branches=())),
        [weft.Request(prompt=[1])] * len(streams),
        cast("Any", streams),
        UsageCounters(),
    )
    found: list[int] = []
    while batches := await generation.next_batches():
        assert len(batches) <= 3
        found += [prompt for prompt, _ in batches]
    assert sorted(found) == list(range(8))


def test_gaps_are_filled_in_order() -> None:
    lists = [json_list([entries([1, 2]), entries([3])]), json_list([])]
    frame = b'{"a":' + bytes(GAP) + b',"b":"\\u0000","c":' + bytes(GAP) + b"}"
    assert json.loads(b"".join(filled(frame, *lists))) == {"a": [1, 2, 3], "b": "\0", "c": []}
    assert list(groups([b"ab", b"c", b"def", b""], 3)) == [b"abc", b"def"]
