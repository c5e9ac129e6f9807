"""Branches of requests that run are forked by whoever made them, into the same stream or into one of their own."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import PROMPT
from tests.server.live import LiveServer
from tests.server.matchers import Json
from tests.server.test_requests import ENDLESS, Running


def client_of(live: Any) -> httpx.AsyncClient:  # noqa: ANN401 (a live server)
    return httpx.AsyncClient(base_url=live.url, timeout=60)


async def test_the_first_event_says_by_which_id_the_request_is_found(live: Any) -> None:  # noqa: ANN401 (as above)
    async with client_of(live) as client:
        answer = await client.post("/completion", json={"prompt": PROMPT, "n_predict": 3, "stream": True})
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[0]["id"] == answer.headers["x-request-id"]
    assert not any("id" in event for event in events[1:])


async def test_forks_come_into_the_stream_of_their_request(live: Any) -> None:  # noqa: ANN401 (as above)
    async with client_of(live) as client, client.stream("POST", "/completion", json=ENDLESS) as answer:
        stream = Running(answer)
        await stream.read(8)
        url = f"/requests/{stream.id}/branches"
        made = await client.post(f"{url}/0/fork", json={"n": 2, "n_predict": 5})
        assert made.json() == {"indices": [1, 2]}, made.text
        while not {1, 2} <= stream.ends.keys():
            await stream.read(1)
        assert [stream.ends[index]["tokens_predicted"] for index in (1, 2)] == [5, 5]
        assert stream.ends[1]["generation_settings"]["n_predict"] == 5
        seeds = [stream.ends[index]["generation_settings"]["seed"] for index in (1, 2)]
        report = (await client.get(f"/requests/{stream.id}")).json()
        assert (report["n_branches"], report["n_finished"]) == (3, 2)
        assert [branch["state"] for branch in report["branches"]] == ["running", "finished", "finished"]
        seed = report["branches"][0]["params"]["seed"]
        assert seeds == [(seed + 1) % 2**32, (seed + 2) % 2**32]
        assert (await client.post(f"{url}/3/fork", json={})).status_code == 404


async def test_forks_get_a_stream_of_their_own(live: Any) -> None:  # noqa: ANN401 (as above)
    async with client_of(live) as client, client.stream("POST", "/completion", json=ENDLESS) as answer:
        stream = Running(answer)
        await stream.read(12)
        url = f"/requests/{stream.id}/branches/0/fork"
        body: Json = {"n": 3, "stream": True, "n_predict": 6, "temperature": 0, "at": {"token": 12}, "append": " But then"}
        forks = await client.post(url, json=body)
        assert forks.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line.removeprefix("data: ")) for line in forks.text.splitlines() if line.startswith("data: ")]
        assert events[0]["id"] == forks.headers["x-request-id"] != stream.id
        ends = {event["index"]: event for event in events if event["stop"]}
        texts = ["".join(event["content"] for event in events if event["index"] == index) for index in range(3)]
        assert ends.keys() == {0, 1, 2}
        assert texts[0] == texts[1] == texts[2] != ""
        assert all((end["reason"], end["tokens_predicted"]) == ("length", 6) for end in ends.values())
        assert sum(end["tokens_computed"] for end in ends.values()) < 8, "fewer than 16 tokens are never shared"
        before = dict(stream.texts)
        await stream.read(4)
        assert stream.texts != before, "the branch goes on"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        pytest.param({"at": {"token": 100_000}}, "at", id="beyond its end"),
        pytest.param({"at": {"byte": 100_000}}, "at", id="beyond its last byte"),
        pytest.param({"at": {}}, "at", id="nowhere"),
        pytest.param({"at": {"token": 1, "byte": 1}}, "at", id="in two places"),
        pytest.param({"n": 0}, "n", id="none"),
        pytest.param({"n": 257}, "n", id="too many"),
        pytest.param({"grammar": "root ::= ("}, "grammar", id="no grammar"),
        pytest.param({"n_predict": -7}, "n_predict", id="no limit that there is"),
    ],
)
async def test_what_cannot_be_forked_is_refused(live: Any, body: Json, param: str) -> None:  # noqa: ANN401 (as above)
    async with client_of(live) as client, client.stream("POST", "/completion", json=ENDLESS) as answer:
        stream = Running(answer)
        await stream.read(4)
        refused = await client.post(f"/requests/{stream.id}/branches/0/fork", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text


@pytest.mark.parametrize("field", ["suffix_prompt", "beam_width", "distinct", "lora", "prompt", "tempreature"])
async def test_a_field_that_forks_do_not_have_is_refused_by_name(live: Any, field: str) -> None:  # noqa: ANN401 (as above)
    async with client_of(live) as client, client.stream("POST", "/completion", json=ENDLESS) as answer:
        stream = Running(answer)
        await stream.read(1)
        refused = await client.post(f"/requests/{stream.id}/branches/0/fork", json={field: 1})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


async def test_a_byte_inside_a_token_is_refused_with_the_places_beside_it(live: Any) -> None:  # noqa: ANN401 (as above)
    async with client_of(live) as client, client.stream("POST", "/completion", json=ENDLESS) as answer:
        stream = Running(answer)
        await stream.read(30)
        refusals = []
        for byte in range(12):
            body: Json = {"at": {"byte": byte}, "stream": True, "n_predict": 1}
            answered = await client.post(f"/requests/{stream.id}/branches/0/fork", json=body)
            if answered.status_code == 400:
                refusals.append(answered.json()["error"]["message"])
        assert refusals
        assert all("the nearest are" in message for message in refusals)


async def test_a_dialect_that_has_no_room_for_forks_says_so(live: Any) -> None:  # noqa: ANN401 (as above)
    async with client_of(live) as client:
        body = {"messages": [{"role": "user", "content": "A story!"}], "max_tokens": 3000, "ignore_eos": True}
        answering = asyncio.create_task(client.post("/v1/chat/completions", json=body, timeout=60))
        listed: list[Json] = []
        while not (listed and listed[0]["n_running"] == 1):
            listed = [one for one in (await client.get("/requests")).json()["requests"] if not one["stream"]]
            await asyncio.sleep(0.01)
        url = f"/requests/{listed[0]['id']}/branches/0"
        refused = await client.post(f"{url}/fork", json={})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")
        own = await client.post(f"{url}/fork", json={"stream": True, "n_predict": 2})
        assert own.status_code == 200
        await client.delete(url)
        await answering


async def test_a_branch_is_forked_by_nobody_else(tmp_path: Path) -> None:
    keys = [{"authorization": f"Bearer {key}"} for key in ("one", "two")]
    with LiveServer(tmp_path / "log", "-np", "2", "-c", "8192", "--kv-unified", "--api-key", "one,two") as server:
        await server.ready()
        client = httpx.AsyncClient(base_url=server.url, timeout=60)
        async with client.stream("POST", "/completion", json=ENDLESS, headers=keys[0]) as answer:
            stream = Running(answer)
            await stream.read(4)
            url = f"/requests/{stream.id}/branches/0/fork"
            assert (await client.post(url, json={}, headers=keys[1])).status_code == 404
            assert (await client.post(url, json={"n_predict": 2}, headers=keys[0])).json() == {"indices": [1]}
        await client.aclose()
