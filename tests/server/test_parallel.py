"""The events of llama.cpp's first server for several users: text and nothing else."""

import json
from typing import Any

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.server.conftest import PROMPT, answers
from tests.server.live import events_of
from tests.server.serving import serving
from weft.server import create_app
from weft.settings import Settings

PARALLEL = {"event_format": "parallel"}
GREEDY = {"prompt": PROMPT, "temperature": 0, "n_predict": 12}


async def texts(client: httpx.AsyncClient, body: dict[str, Any]) -> list[str]:
    answer = await client.post("/completion", json=body)
    assert answer.status_code == 200, answer.text
    events = [json.loads(event) for event in events_of(answer.text)]
    assert all(event.keys() == {"content"} for event in events)
    return [event["content"] for event in events]


async def names(client: httpx.AsyncClient) -> tuple[str, str]:
    props = (await client.get("/props")).json()
    return props["user_name"], props["assistant_name"]


async def test_each_event_is_text_and_nothing_else(client: httpx.AsyncClient) -> None:
    whole = (await client.post("/completion", json=GREEDY)).json()["content"]
    told = await texts(client, GREEDY | PARALLEL)
    assert len(told) > 6
    assert "".join(told) == whole


async def test_where_no_text_is_written_there_is_no_event(client: httpx.AsyncClient) -> None:
    answer = await client.post("/completion", json=GREEDY | PARALLEL | {"n_predict": 0})
    assert (answer.status_code, answer.text) == (200, "")


async def test_with_its_flag_nothing_needs_to_be_asked_for() -> None:
    app = create_app(weft.Engine(n_slots=2, n_ctx=1024, kv_unified=True, n_threads=1), Settings(compat="parallel"))
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        document = {
            "system_prompt": "A chat of Human and Assistant.\nHuman: Hello\nAssistant: Hi, how may I help you?\nHuman:",
            "anti_prompt": "Human:",
            "assistant_name": "Assistant:",
            "prompt": "When does the story begin?",
            "temperature": 0.2,
            "n_predict": 8,
        }
        assert await names(client) == ("User:", "Assistant:")
        assert await texts(client, document)
        assert await names(client) == ("Human:", "Assistant:")
        own = await client.post("/completion", json=GREEDY | {"event_format": "llama.cpp"})
        assert own.json()["tokens_predicted"] == 12


async def test_the_reverse_prompt_is_the_users_name() -> None:
    async with serving(compat="parallel", stop=("Human:",)) as client:
        assert await names(client) == ("Human:", "Assistant:")
    async with serving(stop=("Human:",)) as client:
        assert await names(client) == ("", "")


@pytest.mark.parametrize("more", [{"n": 2}, {"n_probs": 2}, {"return_progress": True}, {"response_fields": ["content"]}], ids=str)
async def test_what_the_events_have_no_place_for_is_refused(client: httpx.AsyncClient, more: dict[str, Any]) -> None:
    answer = await client.post("/completion", json=GREEDY | PARALLEL | more)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(more)))


async def test_a_format_there_is_not_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("/completion", json=GREEDY | {"event_format": "srb"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "event_format is 'srb'; it must be one of llama.cpp, parallel"
