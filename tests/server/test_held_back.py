"""Text that was held back in case a stop string followed, and that no token shows: every dialect tells it before the end."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.helpers import prompt_of
from tests.server.conftest import answers
from tests.server.live import events_of
from tests.server.matchers import TIMINGS, Json
from tests.server.scripted import finished, token
from tests.server.serving import serving
from weft.server import create_app
from weft.settings import Settings

STOP = "cat " * 300 + "dog"
"""Begins like a text of which every token is " cat", and is not reached: all but the first blank is held back."""


@pytest.fixture(scope="module")
async def crowded() -> AsyncIterator[httpx.AsyncClient]:
    """A context of 256 tokens, 100 of which are pinned: what does not fit in the rest is ended."""
    app = create_app(weft.Engine(n_slots=1, n_ctx=256, n_threads=1, cache_ram=0), Settings())
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        pinned = await client.post("/prefixes", json={"prompt": prompt_of(100, "pinned")})
        assert pinned.status_code == 200, pinned.text
        yield client


async def ask(client: httpx.AsyncClient, path: str, **body: Json) -> httpx.Response:
    asked = {"prompt": "A", "messages": [{"role": "user", "content": "A"}], "stop": STOP, "logit_bias": [[" cat", 1000]]}
    answer = await client.post(path, json=asked | body)
    assert answer.status_code == 200, answer.text
    return answer


async def stream(client: httpx.AsyncClient, path: str, **body: Json) -> list[Json]:
    """The events, `[DONE]` left off."""
    events = events_of((await ask(client, path, stream=True, **body)).text)
    return [json.loads(event) for event in events if event != "[DONE]"]


def is_of_cats(text: str) -> bool:
    return text.count("cat") > 100 and text.replace(" cat", "") == ""


async def test_llama_cpps_stream_and_whole_answer(crowded: httpx.AsyncClient) -> None:
    whole = (await ask(crowded, "/completion")).json()
    assert (whole["stop_type"], whole["truncated"]) == ("limit", True)
    assert is_of_cats(whole["content"])
    *shown, rest, last = await stream(crowded, "/completion")
    assert "".join(event["content"] for event in shown) == " "
    assert (rest["content"], rest["tokens"], rest["stop"]) == (whole["content"][1:], [], False)
    assert rest["tokens_predicted"] == last["tokens_predicted"] == len(shown) == whole["tokens_predicted"]
    assert (last["content"], last["stop"], last["stop_type"]) == ("", True, "limit")


async def test_openais_completions_streamed_and_whole(crowded: httpx.AsyncClient) -> None:
    [whole] = (await ask(crowded, "/v1/completions", verbose=True)).json()["choices"]
    assert whole["finish_reason"] == "length"
    assert is_of_cats(whole["text"])
    shown, rest, last = [chunk["choices"][0] for chunk in await stream(crowded, "/v1/completions")]
    assert (shown["text"], shown["finish_reason"]) == (" ", None)
    assert (rest["text"], rest["finish_reason"]) == (whole["text"][1:], None)
    assert (last["text"], last["finish_reason"]) == ("", "length")


async def test_openais_chats_streamed_and_whole(crowded: httpx.AsyncClient) -> None:
    answer = (await ask(crowded, "/v1/chat/completions", verbose=True)).json()
    [whole] = answer["choices"]
    assert whole["finish_reason"] == "length"
    assert is_of_cats(whole["message"]["content"])
    assert answer["__verbose"]["content"] == whole["message"]["content"]
    role, shown, rest, last = [chunk["choices"][0] for chunk in await stream(crowded, "/v1/chat/completions")]
    assert role["delta"] == {"role": "assistant", "content": None}
    assert shown["delta"] == {"content": " "}
    assert (rest["delta"], rest["finish_reason"]) == ({"content": whole["message"]["content"][1:]}, None)
    assert (last["delta"], last["finish_reason"]) == ({}, "length")


async def test_single_request_batching_has_an_event_more(crowded: httpx.AsyncClient) -> None:
    events = await stream(crowded, "/v1/completions", event_format="srb", n=1)
    assert [event["event"] for event in events] == ["start", "stream", "stream", "stop", "done"]
    assert is_of_cats(events[1]["text"] + events[2]["text"])
    assert events[3]["length"] == 1


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
async def test_it_has_timings_as_every_event_where_they_are_asked_for(path: str) -> None:
    async with serving([[token(0, "a")], [finished(0, "b")], []]) as client:
        events = await stream(client, path, timings_per_token=True, logit_bias=[])
    assert [event["timings"] for event in events if "timings" in event] == [TIMINGS | {"predicted_n": n} for n in (1, 2, 2)]


async def test_a_new_line_in_it_is_one_of_the_text() -> None:
    async with serving(*[[[token(0, "a")], [finished(0, text)], []] for text in ("b", "\n")]) as client:
        told = [(await ask(client, "/completion", logit_bias=[])).json() for _ in range(2)]
    assert [(one["content"], one["has_new_line"]) for one in told] == [("ab", False), ("a\n", True)]
