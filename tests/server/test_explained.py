"""Why a prompt had to be computed, over HTTP: in every dialect, streamed or not, and nothing of what others sent."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import httpx
import msgspec
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.helpers import How, wait_until
from tests.server.conftest import answers
from tests.server.matchers import Json
from tests.server.scripted import ScriptedEngine
from weft.server import create_app
from weft.settings import Settings

ROUTES = ["/completion", "/v1/completions", "/v1/chat/completions"]
DIALECTS = ["/v1/responses", "/v1/messages", "/api/chat", "/api/generate"]

STORY = "there was a little dog who lived in a small house near the big forest with his old friend the cat and a red bird"


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A server with two keys that has answered nobody yet."""
    app = create_app(weft.Engine(n_slots=2, n_ctx=2048, n_threads=1), Settings(api_keys=("first", "second")))
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        yield client


async def post(client: httpx.AsyncClient, route: str, text: str | list[int], key: str = "first", **body: Json) -> httpx.Response:
    said = {"messages": [{"role": "user", "content": text}]} if "chat" in route or "messages" in route else {"prompt": text}
    headers = {"authorization": f"Bearer {key}"}
    how: Json = {"max_tokens": 2, "temperature": 0}
    if route.startswith("/api/"):
        how, body = {"options": {"num_predict": 2, "temperature": 0}}, {"stream": False, **body}
    elif route == "/v1/responses":
        how, said = {"max_output_tokens": 2, "temperature": 0}, {"input": text}
    given = await client.post(route, json=how | said | body, headers=headers)
    assert given.status_code == 200, given.text
    return given


async def explained(client: httpx.AsyncClient, route: str, text: str | list[int], how: How = "whole", **body: Json) -> Json:
    given = await post(client, route, text, stream=how == "stream", explain_cache=True, **body)
    if how == "whole":
        return given.json()["cache_explanation"]
    if route.startswith("/api/"):
        told = [json.loads(line) for line in given.text.splitlines()]
    else:
        lines = [line.removeprefix("data: ") for line in given.text.splitlines() if line.startswith("data: {")]
        told = [event.get("response", event) for event in map(json.loads, lines)]
    [explanation] = [event["cache_explanation"] for event in told if "cache_explanation" in event]
    return explanation


def causes(explanation: Json) -> list[str]:
    return [one["cause"] for one in explanation["computed"]]


@pytest.mark.parametrize("route", [*ROUTES, *DIALECTS])
async def test_an_edited_prompt_is_told_where_it_differs(client: httpx.AsyncClient, route: str, how: How) -> None:
    await post(client, route, f"Once upon a time {STORY}. They ate apples.")
    told = await explained(client, route, f"Once upon a time {STORY}. They ate bananas and slept.", how)
    [stretch] = told["computed"]
    assert stretch["cause"] == "differs"
    assert 0 < told["n_found"] == stretch["start"] == stretch["at"] < stretch["end"] == told["n_prompt"]
    assert stretch["before"].endswith("ate") or "They" in stretch["before"]
    assert "banana" in stretch["here"]
    assert "banana" not in stretch["before"]
    assert "apples" in stretch["earlier"]["text"]
    assert stretch["earlier"]["request_id"] < told["request_id"]
    assert stretch["earlier"]["is_in_answer"] is False
    assert stretch["byte"] == stretch["character"] > 60


@pytest.mark.parametrize("route", DIALECTS)
async def test_every_dialect_tells_it_in_its_header_where_it_is_asked(client: httpx.AsyncClient, route: str) -> None:
    given = await post(client, route, f"One day {STORY}.", explain_cache=True)
    assert given.headers["weft-cache"].startswith("found=0/")
    given = await post(client, route, f"One day {STORY}.")
    assert "weft-cache" not in given.headers
    assert "cache_explanation" not in given.text


@pytest.mark.parametrize("route", ROUTES)
async def test_the_same_prompt_again_is_told_so(client: httpx.AsyncClient, route: str) -> None:
    assert causes(await explained(client, route, f"One day {STORY}.")) == ["never_seen"]
    assert causes(await explained(client, route, f"One day {STORY}.")) == ["last_token"]
    assert causes(await explained(client, route, f"One day {STORY}.", cache_prompt=False)) == ["cache_unused"]


@pytest.mark.parametrize("route", [*ROUTES, *DIALECTS])
async def test_nothing_that_another_key_sent_is_told(client: httpx.AsyncClient, route: str) -> None:
    await post(client, route, f"At night {STORY}. The password is apricot.", key="first")
    told = await explained(client, route, f"At night {STORY}. The password is not told.", key="second")
    assert causes(told) == ["differs"], "the place in its own prompt and the cause are told"
    assert told["n_found"] > 16
    assert "earlier" not in told["computed"][0]
    assert "apricot" not in json.dumps(told)
    own = await explained(client, route, f"At night {STORY}. The password is not known.", key="second")
    assert "told" in own["computed"][0]["earlier"]["text"]
    assert "apricot" not in json.dumps(own)


async def test_a_chat_that_goes_on_is_new_and_one_with_another_system_message_is_told_so(client: httpx.AsyncClient) -> None:
    route = "/v1/chat/completions"

    def chat(system: str, *said: str) -> Json:
        roles = ["user", "assistant"] * len(said)
        turns = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
        return {"messages": [{"role": "system", "content": system}, *turns]}

    first = chat(f"You tell stories. {STORY}. Today is Monday.", "Tell me one.")
    answer = (await post(client, route, "", **first)).json()["choices"][0]["message"]["content"]
    changed = chat(f"You tell stories. {STORY}. Today is Friday.", "Tell me one.")
    told = await explained(client, route, "", **changed)
    assert causes(told) == ["system_changed"]
    assert "Monday" in told["computed"][0]["earlier"]["text"]
    again = chat(f"You tell stories. {STORY}. Today is Monday.", "Tell me one.", answer, "Another one.")
    assert set(causes(await explained(client, route, "", **again))) <= {"new", "retokenized", "differs"}


async def test_the_same_text_in_other_tokens_is_told_so(client: httpx.AsyncClient) -> None:
    text = f"In the morning {STORY}."
    whole = await client.post("/tokenize", json={"content": text, "add_special": True}, headers={"authorization": "first"})
    tokens = whole.json()["tokens"]
    spelt = await client.post("/tokenize", json={"content": "r", "add_special": False}, headers={"authorization": "Bearer first"})
    assert spelt.json()["tokens"], "a letter has a token"
    at = len(tokens) // 2
    pieces = await client.post("/detokenize", json={"tokens": tokens[at : at + 1]}, headers={"authorization": "first"})
    letters = []
    for letter in pieces.json()["content"]:
        one = await client.post("/tokenize", json={"content": letter}, headers={"authorization": "first"})
        letters += one.json()["tokens"]
    respelt = [*tokens[:at], *letters, *tokens[at + 1 :]]
    await post(client, "/completion", tokens)
    told = await explained(client, "/completion", respelt)
    [stretch] = told["computed"]
    assert (stretch["cause"], stretch["at"]) in [("retokenized", at), ("differs", at)]
    assert stretch["cause"] == "retokenized", (tokens, respelt, told)


async def test_a_whole_answer_has_a_header_without_any_text(client: httpx.AsyncClient) -> None:
    await post(client, "/v1/completions", f"On a hill {STORY}. A cow.")
    given = await post(client, "/v1/completions", f"On a hill {STORY}. A dog.", explain_cache=True)
    told = given.json()["cache_explanation"]
    [one] = told["computed"]
    place = f"{one['start']}-{one['end']}@{one['at']}"
    assert given.headers["weft-cache"] == f"found={told['n_found']}/{told['n_prompt']}; differs={place}"
    assert "weft-cache" not in (await post(client, "/v1/completions", "A hill.")).headers
    streamed = await post(client, "/v1/completions", "A hill.", stream=True, explain_cache=True)
    assert "weft-cache" not in streamed.headers


@pytest.mark.parametrize("route", ROUTES)
async def test_who_does_not_ask_is_told_nothing(client: httpx.AsyncClient, route: str, how: How) -> None:
    assert "cache_explanation" not in (await post(client, route, "A hill.", stream=how == "stream")).text


async def test_several_prompts_have_a_list_of_explanations(client: httpx.AsyncClient) -> None:
    body: Json = {"prompt": ["By a lake stood a very old boat.", "Under the tree sat three frogs."], "n": 2}
    given = await post(client, "/v1/completions", "", explain_cache=True, **body)
    told = given.json()["cache_explanation"]
    assert [causes(one)[-1] for one in told] == ["never_seen", "never_seen"]
    assert given.headers["weft-cache"].count("found=") == 2
    results = (await post(client, "/completion", "", explain_cache=True, **body)).json()
    assert ["cache_explanation" in one for one in results] == [True, False, True, False], "the first branch computes for others"


@pytest.mark.parametrize("asks", [True, False])
async def test_a_request_that_waits_tells_nothing_and_one_that_has_begun_tells_before_any_token(asks: bool) -> None:
    engine = ScriptedEngine([], [])
    engine.loaded.set()
    app = create_app(engine.as_engine(), Settings())
    await app.service.lifecycle.start()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(cast("Any", app)), base_url="http://a") as client:
        body: Json = {"prompt": ["a", "b"], "max_tokens": 2, "explain_cache": asks}
        answering = asyncio.create_task(client.post("/v1/completions", json=body))
        await wait_until(lambda: len(engine.streams) == 2)

        async def report() -> Json:
            [one] = (await client.get("/requests")).json()["requests"]
            return (await client.get(f"/requests/{one['id']}")).json()

        assert "cache_explanation" not in await report()
        known = [weft.CacheExplanation(nth, n_prompt=1, n_found=1, n_awaited=0, computed=()) for nth in range(2)]
        as_told = json.loads(msgspec.json.encode(known))
        for nth, shown in ((1, [None, as_told[1]]), (0, as_told)):
            engine.streams[nth].explanation = known[nth]
            told = await report()
            assert told.get("cache_explanation") == (shown if asks else None)
            assert [branch["n_predicted"] for branch in told["branches"]] == [0, 0]
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
    await app.service.stop()


async def test_the_log_has_a_line_at_its_debug_level_whoever_asks(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="weft.server"):
        given = await post(client, "/completion", f"In a boat {STORY}.")
    assert "cache_explanation" not in given.text
    lines = [record.getMessage() for record in caplog.records if "the cache for request" in record.getMessage()]
    assert len(lines) == 1
    assert "never_seen=0-" in lines[0]
    assert STORY[:20] not in lines[0]


def test_the_page_tells_of_every_cause() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "explain-cache.md").read_text(encoding="utf-8")
    table = page[page.index("| cause | meaning |") :].partition("\n\n")[0]
    told = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    hint = get_type_hints(weft.ComputedRange, include_extras=False)["cause"]
    assert sorted(told) == sorted(get_args(hint))
