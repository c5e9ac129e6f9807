"""Bodies of real clients, a little wrong: whatever is sent, an answer comes, and nothing is left running.

`WEFT_MUTATED_BODIES` sets how many there are (300; `make fuzz` sends 10,000). They are always the same; to see one again, send
`mutation(number).body`.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.helpers import wait_until
from tests.server.client_bodies import SENT
from tests.server.live import LiveServer, events_of
from tests.server.matchers import Json
from tests.server.mutations import Mutation, mutation
from tests.server.test_anthropic import frames_of

N_BODIES = int(os.environ.get("WEFT_MUTATED_BODIES", "300"))

N_CLIENTS = 4
"""Clients that send at once."""

ERROR = {"code": int, "message": str, "type": str, "param": str, "n_prompt_tokens": int, "n_ctx": int}
"""The fields that an error may have; the first three it has always."""

MOST_MESSAGE = 2000 + len("…")
"""Characters that an error has at most."""

MOST_NAME = 200
"""And where it stands before the message, the name of the field."""


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveServer]:
    """Everything is switched on, so that nothing is 501, and completions are short unless they are told otherwise."""
    folder = tmp_path_factory.mktemp("mutated")
    flags = ("-np", "4", "-c", "512", "--kv-unified", "-n", "8", "--cache-ram", "16")
    with LiveServer(folder / "log", *flags, "--metrics", "--props", "--slot-save-path", str(folder)) as server:
        await server.ready()
        yield server


def n_handles(server: LiveServer) -> int:
    return len(list(Path(f"/proc/{server.worker_id()}/fd").iterdir()))


def check_error(path: str, status: int, answer: Json) -> None:
    """That an error says what is documented."""
    if path.startswith("/api/"):
        assert answer.keys() == {"error"}
        assert 0 < len(answer["error"]) <= MOST_MESSAGE + MOST_NAME
        return
    if path.startswith("/v1/messages"):
        assert answer.keys() == {"type", "error"}
        assert answer["type"] == "error"
        assert answer["error"].keys() == {"type", "message"}
        assert 0 < len(answer["error"]["message"]) <= MOST_MESSAGE + MOST_NAME
        return
    error = answer.pop("error")
    assert answer == {}
    assert error.keys() >= {"code", "message", "type"}
    for name, value in error.items():
        assert type(value) is ERROR[name], f"{name} is {value!r}"
    assert error["code"] == status
    assert 0 < len(error["message"]) <= MOST_MESSAGE


def check(answer: httpx.Response) -> None:
    """That this is an answer, to its end."""
    assert answer.status_code < 500
    path = answer.request.url.path
    if answer.status_code != 200:
        check_error(path, answer.status_code, answer.json())
    elif answer.headers["content-type"] == "application/x-ndjson":
        *told, last = [json.loads(line) for line in answer.text.splitlines()]
        assert [line["done"] for line in told] == [False] * len(told)
        assert last["done"]
    elif path == "/v1/messages" and answer.headers["content-type"].startswith("text/event-stream"):
        assert [name for name, _ in frames_of(answer.text)][-1] == "message_stop"
    elif answer.headers["content-type"].startswith("text/event-stream"):
        *events, last = events_of(answer.text)
        told = [json.loads(event) for event in events]
        assert all("error" not in event for event in told)
        if last != "[DONE]":
            end = json.loads(last)
            assert end.get("stop", True), "what is last is no token"
            if "error" in end:
                check_error(path, end["error"]["code"], end)
    else:
        answer.json()


async def send(client: httpx.AsyncClient, route: str, body: bytes) -> httpx.Response:
    return await client.post(route, content=body, headers={"content-type": "application/json"})


@pytest.mark.parametrize("name", SENT)
async def test_every_body_is_answered_as_it_is_sent(server: LiveServer, name: str) -> None:
    route, body = SENT[name]
    async with httpx.AsyncClient(base_url=server.url) as client:
        if "/slots/" in route:
            (await client.post("/completion", json={"prompt": list(range(300, 340)), "id_slot": 0})).raise_for_status()
            (await client.post(SENT["a saved slot"].route, json=SENT["a saved slot"].body)).raise_for_status()
        answer = await send(client, route, json.dumps(body).encode())
    assert answer.status_code == 200, answer.text
    check(answer)


def test_a_number_is_always_the_same_body() -> None:
    assert [mutation(number) for number in range(50)] == [mutation(number) for number in range(50)]


@pytest.mark.timeout(3600)
async def test_every_mutated_body_is_answered_and_nothing_is_left_running(server: LiveServer) -> None:
    statuses: Counter[int] = Counter()
    numbers = iter(range(N_BODIES))

    async def work(client: httpx.AsyncClient) -> None:
        for number in numbers:
            sent = mutation(number)
            statuses[await answered(client, sent)] += 1

    async with httpx.AsyncClient(base_url=server.url) as client:
        # What is opened once and kept, for threads and the like, is no leak.
        for route, body in SENT.values():
            await send(client, route, json.dumps(body).encode())
    handles = n_handles(server)
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        await asyncio.gather(*(work(client) for _ in range(N_CLIENTS)))
        await wait_until(lambda: server.busy_slots() == [])
        metrics = (await client.get("/metrics")).text
    assert "llamacpp:requests_processing 0.0\n" in metrics
    assert "llamacpp:requests_deferred 0.0\n" in metrics
    await wait_until(lambda: n_handles(server) <= handles)
    assert "ERROR" not in server.log
    assert "Traceback" not in server.log
    # Otherwise nothing but refusals was seen, or none.
    assert statuses[200] >= N_BODIES // 10, statuses
    assert statuses[400] >= N_BODIES // 10, statuses


async def answered(client: httpx.AsyncClient, sent: Mutation) -> int:
    """The status of the answer, which is checked."""
    try:
        answer = await send(client, sent.route, sent.body)
        check(answer)
    except (AssertionError, ValueError, httpx.HTTPError) as error:
        raise AssertionError(f"{sent}\n{error!r}") from error
    return answer.status_code
