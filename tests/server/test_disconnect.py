"""A client that leaves ends its work: on HTTP/1.1 and HTTP/2, in mid-stream, in silence, and before any answer."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.helpers import How, prompt_of, wait_until
from tests.server.conftest import PROMPT
from tests.server.http2 import Http2Client
from tests.server.live import LiveServer

ENDLESS = {"prompt": PROMPT, "n": 200, "ignore_eos": True}
"""Far more work than a test waits for: what ends it is that its client leaves."""


@pytest.fixture
async def client(live: LiveServer) -> AsyncIterator[httpx.AsyncClient]:
    """A client that speaks HTTP/1.1, where leaving is closing the connection."""
    async with httpx.AsyncClient(base_url=live.url, timeout=20) as client:
        yield client
        await wait_until(lambda: live.busy_slots() == [])


@pytest.fixture
async def client2(live: LiveServer) -> AsyncIterator[Http2Client]:
    """A client that speaks HTTP/2, where one request can be cancelled and the connection stays open."""
    async with Http2Client(live.port) as client:
        yield client
        await wait_until(lambda: live.busy_slots() == [])


async def test_leaving_in_mid_stream_frees_the_slots(client: httpx.AsyncClient, live: LiveServer, path: str) -> None:
    async with client.stream("POST", path, json=ENDLESS | {"stream": True}) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        await wait_until(lambda: len(live.busy_slots()) == 4)
    await wait_until(lambda: live.busy_slots() == [], 2)


async def test_leaving_before_a_whole_answer_frees_the_slots(client: httpx.AsyncClient, live: LiveServer, path: str) -> None:
    asking = asyncio.create_task(client.post(path, json=ENDLESS))
    await wait_until(lambda: len(live.busy_slots()) == 4)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await wait_until(lambda: live.busy_slots() == [], 2)


async def test_cancelling_a_stream_of_http2_frees_the_slots(client2: Http2Client, live: LiveServer, path: str) -> None:
    stream = await client2.request("POST", path, ENDLESS | {"stream": True})
    assert (await client2.first_data(stream)).startswith(b"data: ")
    await wait_until(lambda: len(live.busy_slots()) == 4)
    await client2.reset(stream)
    await wait_until(lambda: live.busy_slots() == [], 2)
    # The connection still serves.
    health = await client2.first_data(await client2.request("GET", "/health"))
    assert health.startswith(b'{"status":"ok"')


async def test_cancelling_a_whole_answer_of_http2_frees_the_slots(client2: Http2Client, live: LiveServer, path: str) -> None:
    stream = await client2.request("POST", path, ENDLESS)
    await wait_until(lambda: len(live.busy_slots()) == 4)
    await client2.reset(stream)
    await wait_until(lambda: live.busy_slots() == [], 2)
    health = await client2.first_data(await client2.request("GET", "/health"))
    assert health.startswith(b'{"status":"ok"')


async def test_closing_a_connection_of_http2_frees_the_slots_of_all_its_requests(live: LiveServer, how: How) -> None:
    async with Http2Client(live.port) as client2:
        for path in ("/completion", "/v1/completions"):
            await client2.request("POST", path, ENDLESS | {"n": 100, "stream": how == "stream"})
        await wait_until(lambda: len(live.busy_slots()) == 4)
    await wait_until(lambda: live.busy_slots() == [], 2)


async def test_leaving_in_the_queue_takes_the_request_out(
    client: httpx.AsyncClient, live: LiveServer, path: str, how: How
) -> None:
    async with client.stream("POST", path, json=ENDLESS | {"stream": True}) as running:
        lines = running.aiter_lines()
        await anext(lines)
        submitted = max(slot["id_task"] for slot in live.get("/slots") if slot["is_processing"])
        with pytest.raises(httpx.ReadTimeout):
            await client.post(path, json=ENDLESS | {"stream": how == "stream", "prompt": "A cow"}, timeout=0.2)
    await wait_until(lambda: live.busy_slots() == [], 2)
    # Requests are counted as they are submitted: the one that waited was, and yet it never got a slot.
    answer = asyncio.create_task(client.post("/completion", json={"prompt": PROMPT, "n_predict": 900, "ignore_eos": True}))
    # One look: what runs may have ended before a second one.
    seen: list[int] = []

    def sees_it() -> bool:
        seen.extend(slot["id_task"] for slot in live.get("/slots") if slot["is_processing"])
        return seen != []

    await wait_until(sees_it)
    assert max(seen) == submitted + 2
    answer.cancel()
    await asyncio.gather(answer, return_exceptions=True)


async def test_others_go_on_when_one_leaves(client: httpx.AsyncClient, live: LiveServer) -> None:
    staying = asyncio.create_task(client.post("/completion", json={"prompt": PROMPT, "n_predict": 300, "ignore_eos": True}))
    async with client.stream("POST", "/completion", json=ENDLESS | {"stream": True}) as leaving:
        lines = leaving.aiter_lines()
        await anext(lines)
    assert (await staying).json()["tokens_predicted"] == 300


@pytest.fixture(scope="module")
async def busy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveServer]:
    """Eight slots, so small a gap that a long prompt takes many steps, and a cache that is soon as large as it gets."""
    arguments = ("-np", "8", "--kv-unified", "--max-token-gap", "1", "--cache-ram", "1")
    with LiveServer(tmp_path_factory.mktemp("busy") / "log", *arguments) as server:
        await server.ready()
        yield server
        assert "ERROR" not in server.log
        assert "WARNING" not in server.log


async def test_two_hundred_requests_of_which_half_hang_up_leave_nothing_behind(busy: LiveServer, path: str) -> None:
    async with httpx.AsyncClient(base_url=busy.url, timeout=25, limits=httpx.Limits(max_connections=50)) as client:

        async def ask(number: int) -> int:
            body = {"prompt": f"{PROMPT} {number}", "max_tokens": 24, "n": 2, "stream": True}
            async with client.stream("POST", path, json=body) as answer:
                n_lines = 0
                async for line in answer.aiter_lines():
                    n_lines += bool(line)
                    if number % 2 and n_lines == 5:
                        break
                return answer.status_code

        async def round_of(n: int) -> None:
            assert await asyncio.gather(*(ask(number) for number in range(n))) == [200] * n
            await wait_until(lambda: busy.busy_slots() == [], 2)

        await round_of(50)
        before = busy.memory_bytes()
        await round_of(200)
        # What 200 requests allocate and free leaves the heap a little ragged; what they leaked would show as megabytes.
        assert busy.memory_bytes() - before < 8 * 1024 * 1024


async def test_twenty_that_leave_during_a_long_prefill_free_their_slots(busy: LiveServer, path: str, how: How) -> None:
    def is_prefilling() -> bool:
        slots = [slot for slot in busy.get("/slots") if slot["is_processing"]]
        return any(slot["next_token"][0]["n_decoded"] == 0 for slot in slots)

    async with httpx.AsyncClient(base_url=busy.url, timeout=25) as client:
        # To the end they would take many seconds.
        body = {"ignore_eos": True, "n": 50, "stream": how == "stream"}
        prompts = [prompt_of(900, f"{path} {how} {number}") for number in range(20)]
        asking = [asyncio.create_task(client.post(path, json=body | {"prompt": prompt})) for prompt in prompts]
        await wait_until(is_prefilling)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await wait_until(lambda: busy.busy_slots() == [], 1)
        assert (await client.post("/completion", json={"prompt": PROMPT, "n_predict": 1})).status_code == 200
