"""Requests that run are found, looked at and ended, by whoever made them."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import PROMPT
from tests.server.live import LiveServer
from tests.server.matchers import Json

ENDLESS: Json = {"prompt": PROMPT, "n_predict": 3000, "ignore_eos": True, "stream": True, "temperature": 1.2}


class Running:
    """A stream that is being read."""

    def __init__(self, answer: httpx.Response) -> None:
        self.id = answer.headers["x-request-id"]
        self._lines = answer.aiter_lines()
        self.ends: dict[int, Json] = {}
        self.texts: dict[int, str] = {}

    async def read(self, n_events: int | None = None) -> None:
        """Reads so many events, or all to the end."""
        async for line in self._lines:
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            index = event["index"]
            self.texts[index] = self.texts.get(index, "") + event["content"]
            if event["stop"]:
                self.ends[index] = event
            n_events = None if n_events is None else n_events - 1
            if n_events == 0:
                return


@pytest.fixture
async def running(live: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Running]]:  # noqa: ANN401 (a live server)
    async with (
        httpx.AsyncClient(base_url=live.url, timeout=60) as client,
        client.stream("POST", "/completion", json=ENDLESS | {"n": 3}) as answer,
    ):
        stream = Running(answer)
        await stream.read(12)
        yield client, stream


async def test_a_request_that_runs_is_listed_with_what_it_has_written(running: tuple[httpx.AsyncClient, Running]) -> None:
    client, stream = running
    listed = (await client.get("/requests")).json()["requests"]
    (told,) = [one for one in listed if one["id"] == stream.id]
    assert (told["n_prompts"], told["n_branches"], told["n_finished"], told["stream"]) == (1, 3, 0, True)
    report = (await client.get(f"/requests/{stream.id}")).json()
    assert [branch["index"] for branch in report["branches"]] == [0, 1, 2]
    for branch in report["branches"]:
        assert branch["state"] in ("running", "waiting")
        assert branch["text"].startswith(stream.texts[branch["index"]])
        assert branch["params"]["n_predict"] == 3000
    seeds = [branch["params"]["seed"] for branch in report["branches"]]
    assert seeds == [seeds[0], (seeds[0] + 1) % 2**32, (seeds[0] + 2) % 2**32]
    assert [one["index"] for one in (await client.get(f"/requests/{stream.id}?first=2")).json()["branches"]] == [2]
    assert (await client.get(f"/requests/{stream.id}?first=-1")).status_code == 400


async def test_one_branch_is_ended_and_the_others_go_on(running: tuple[httpx.AsyncClient, Running]) -> None:
    client, stream = running
    assert (await client.delete(f"/requests/{stream.id}/branches/1")).status_code == 204
    while 1 not in stream.ends:
        await stream.read(1)
    assert (stream.ends[1]["stop_type"], stream.ends[1]["stopped_limit"]) == ("none", False)
    before = dict(stream.texts)
    await stream.read(8)
    assert stream.texts[1] == before[1]
    assert stream.texts != before
    report = (await client.get(f"/requests/{stream.id}")).json()
    assert [branch["reason"] for branch in report["branches"]] == [None, "cancelled", None]
    assert (await client.delete(f"/requests/{stream.id}/branches/1")).status_code == 204
    assert (await client.delete(f"/requests/{stream.id}/branches/3")).status_code == 404


@pytest.mark.parametrize("n", [1, 2])
async def test_why_a_prompt_was_computed_is_told_while_its_first_branch_runs(live: Any, n: int) -> None:  # noqa: ANN401 (as above)
    body = ENDLESS | {"n": n, "explain_cache": True}
    async with (
        httpx.AsyncClient(base_url=live.url, timeout=60) as client,
        client.stream("POST", "/completion", json=body) as answer,
    ):
        stream = Running(answer)
        await stream.read(1)
        report = (await client.get(f"/requests/{stream.id}")).json()
        assert report["branches"][0]["reason"] is None
        told = report["cache_explanation"]
        await client.delete(f"/requests/{stream.id}/branches/0")
        while 0 not in stream.ends:
            await stream.read(1)
        assert told == stream.ends[0]["cache_explanation"]
        if n > 1:
            assert (await client.get(f"/requests/{stream.id}")).json()["cache_explanation"] == told
        assert told["n_found"] + sum(one["end"] - one["start"] for one in told["computed"]) == told["n_prompt"]


async def test_a_whole_answer_that_is_being_made_tells_it_too(live: Any) -> None:  # noqa: ANN401 (as above)
    async with httpx.AsyncClient(base_url=live.url, timeout=60) as client:
        answering = asyncio.create_task(client.post("/completion", json=ENDLESS | {"stream": False, "explain_cache": True}))
        url, report = "", {}
        while "cache_explanation" not in report:
            await asyncio.sleep(0.01)
            assert not answering.done(), answering.result().text
            for one in (await client.get("/requests")).json()["requests"]:
                if not one["stream"]:
                    url = f"/requests/{one['id']}"
                    report = (await client.get(url)).json()
        await client.delete(url)
        assert (report["n_branches"], report["n_finished"]) == (1, 0)
        assert report["cache_explanation"] == (await answering).json()["cache_explanation"]


async def test_a_request_is_ended_whole_and_its_client_is_answered(running: tuple[httpx.AsyncClient, Running]) -> None:
    client, stream = running
    assert (await client.delete(f"/requests/{stream.id}")).status_code == 204
    await stream.read()
    assert {index: end["stop_type"] for index, end in stream.ends.items()} == dict.fromkeys(range(3), "none")
    for _ in range(100):
        if (await client.get(f"/requests/{stream.id}")).status_code == 404:
            break
        await asyncio.sleep(0.02)
    assert (await client.get(f"/requests/{stream.id}")).status_code == 404
    assert (await client.delete(f"/requests/{stream.id}")).status_code == 404


async def test_a_whole_answer_tells_which_branch_was_ended(live: Any) -> None:  # noqa: ANN401 (as above)
    async with httpx.AsyncClient(base_url=live.url, timeout=60) as client:
        body = {"messages": [{"role": "user", "content": "A story!"}], "max_tokens": 3000, "ignore_eos": True, "n": 2}
        answering = asyncio.create_task(client.post("/v1/chat/completions", json=body, timeout=60))
        listed: list[Json] = []
        while not (listed and listed[0]["n_running"] == 2):
            listed = [one for one in (await client.get("/requests")).json()["requests"] if not one["stream"]]
            await asyncio.sleep(0.01)
        await client.delete(f"/requests/{listed[0]['id']}/branches/0")
        await client.delete(f"/requests/chatcmpl-{listed[0]['id']}/branches/1")
        answer = (await answering).json()
    assert answer["id"] == f"chatcmpl-{listed[0]['id']}"
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["cancelled", "cancelled"]


async def test_a_request_is_nobody_elses(tmp_path: Path) -> None:
    keys = [{"authorization": f"Bearer {key}"} for key in ("one", "two")]
    with LiveServer(tmp_path / "log", "-np", "2", "-c", "8192", "--kv-unified", "--api-key", "one,two") as server:
        await server.ready()
        client = httpx.AsyncClient(base_url=server.url, timeout=60)
        body: Json = ENDLESS | {"n": 2, "n_predict": 1500, "stream": False, "explain_cache": True}
        answering = asyncio.create_task(client.post("/completion", json=body, headers=keys[0]))
        listed: list[Json] = []
        while not listed:
            assert not answering.done(), answering.result().text
            listed = (await client.get("/requests", headers=keys[0])).json()["requests"]
            await asyncio.sleep(0.01)
        own = f"/requests/{listed[0]['id']}"
        assert (await client.get("/requests", headers=keys[1])).json() == {"requests": []}
        other = await client.get(own, headers=keys[1])
        assert (other.status_code, "cache_explanation" in other.text) == (404, False)
        assert (await client.delete(own, headers=keys[1])).status_code == 404
        assert (await client.delete(f"{own}/branches/0", headers=keys[1])).status_code == 404
        assert (await client.get(own, headers=keys[0])).json()["n_finished"] == 0
        assert (await client.delete(own, headers=keys[0])).status_code == 204
        assert [one["stop_type"] for one in (await answering).json()] == ["none", "none"]
        await client.aclose()
