"""`--timeout`: a client that stops sending, and one that stops reading."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from typing import cast

import pytest
from litestar.types import HTTPResponseBodyEvent

import weft
from tests.helpers import How, wait_until
from tests.server.live import LiveServer
from tests.server.matchers import Json
from tests.server.scripted import ScriptedEngine, token
from weft.server import create_app
from weft.server.errors import BodyTimeoutError
from weft.server.streaming.client_timeouts import ClientTimeouts, MinBodyRate
from weft.settings import Settings

A, B, C = cast(
    "list[HTTPResponseBodyEvent]",
    [{"type": "http.response.body", "body": body, "more_body": True} for body in (b"a", b"b", b"c")],
)

N_PARTS = 60
"""Parts of a body that comes a byte at a time."""

LAST = {"type": "http.request", "body": b"", "more_body": False}


class Client:
    """A client at the other end: it has sent `messages`, and reads while `reads` is set."""

    def __init__(self, *messages: Json) -> None:
        self.messages = list(messages)
        self.sent: list[Json] = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def receive(self) -> Json:
        if not self.messages:
            await asyncio.get_running_loop().create_future()
        return self.messages.pop(0)

    async def send(self, message: Json) -> None:
        await self.reads.wait()
        self.sent.append(message)


async def test_a_body_that_stops_arriving_is_an_error() -> None:
    first = {"type": "http.request", "body": b"{", "more_body": True}
    client = Client(first)
    patience = ClientTimeouts(client.receive, client.send, 0.01)
    assert await patience.receive() == first
    with pytest.raises(BodyTimeoutError, match=r"no more of the body arrived for 0\.01 s"):
        await patience.receive()


async def test_a_body_that_arrives_a_byte_at_a_time_is_an_error() -> None:
    class Dripping(Client):
        async def receive(self) -> Json:
            await asyncio.sleep(0.002)
            return {"type": "http.request", "body": b"x", "more_body": True}

    async def read_all(least: MinBodyRate) -> int:
        client = Dripping()
        patience = ClientTimeouts(client.receive, client.send, 10, least)
        for _ in range(N_PARTS):
            await patience.receive()
        return N_PARTS

    assert await read_all(MinBodyRate(grace_s=10, bytes_per_s=1)) == N_PARTS
    with pytest.raises(BodyTimeoutError, match="the body arrives too slowly; send at least 1000 bytes a second"):
        await read_all(MinBodyRate(grace_s=0.02, bytes_per_s=1000))


async def test_of_what_a_body_came_to_at_once_only_so_much_is_saved_for_a_pause() -> None:
    client = Client({"type": "http.request", "body": b"x" * 1_000_000, "more_body": True})
    patience = ClientTimeouts(client.receive, client.send, 3600, MinBodyRate(grace_s=0.01, bytes_per_s=1, saved_s=0.05))
    await patience.receive()
    message = "the body arrives too slowly; send at least 1 bytes a second, and pause for 0.05 s at most"
    with pytest.raises(BodyTimeoutError, match=f"^{message}$"):
        await patience.receive()


async def test_what_the_server_itself_waits_is_not_the_clients_slowness() -> None:
    client = Client(*({"type": "http.request", "body": b"x", "more_body": True} for _ in range(3)), LAST)
    patience = ClientTimeouts(client.receive, client.send, 10, MinBodyRate(grace_s=0.03, bytes_per_s=1_000_000))
    for _ in range(4):
        await asyncio.sleep(0.01)
        await patience.receive()


async def test_a_client_whose_request_is_whole_may_wait_for_its_answer_as_long_as_it_likes() -> None:
    client = Client(LAST)
    patience = ClientTimeouts(client.receive, client.send, 0.01)
    assert await patience.receive() == LAST
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(patience.receive(), 0.1)


async def test_a_body_is_whole_once_all_that_was_announced_is_there() -> None:
    client = Client(*({"type": "http.request", "body": b"ab", "more_body": True} for _ in range(2)), LAST)
    patience = ClientTimeouts(client.receive, client.send, 10, n_announced=4)
    parts = [await patience.receive(), await patience.receive()]
    assert [(part["body"], part["more_body"]) for part in parts if part["type"] == "http.request"] == [
        (b"ab", True),
        (b"ab", False),
    ]
    # The message that says so is passed over, and not taken for the client's leaving.
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(patience.receive(), 0.01)
    assert not client.messages


async def test_who_asks_without_a_body_may_wait_too_though_nobody_has_heard_that_there_is_none() -> None:
    class Slow(ScriptedEngine):
        async def prefixes(self) -> list[weft.Prefix]:
            # Longer than a body may take.
            await asyncio.sleep(1.1)
            return []

    # The server under us says it once, perhaps to one who was cancelled meanwhile.
    client = Client()
    await _ask(Settings(timeout_s=1), Slow(), client, "GET", "/prefixes")
    assert [message.get("status") for message in client.sent] == [200, None]


async def test_a_client_that_reads_nothing_has_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client = Client(LAST)
    patience = ClientTimeouts(client.receive, client.send, 0.01)
    await patience.receive()
    watching = asyncio.create_task(patience.receive())
    await patience.send(A)
    client.reads.clear()
    await patience.send(B)
    assert await watching == {"type": "http.disconnect"}
    client.reads.set()
    await patience.send(C)
    assert await patience.receive() == {"type": "http.disconnect"}
    assert client.sent == [A]
    assert [record.message for record in caplog.records] == ["a client has not read for 0.01 s; its response is cancelled"]


async def test_a_client_that_reads_nothing_while_it_sends_its_body_has_left_too() -> None:
    client = Client({"type": "http.request", "body": b"{", "more_body": True})
    patience = ClientTimeouts(client.receive, client.send, 0.01)
    client.reads.clear()
    await patience.send(A)
    assert await patience.receive() == {"type": "http.disconnect"}


async def _ask(
    settings: Settings,
    engine: ScriptedEngine,
    client: Client,
    method: str = "POST",
    path: str = "/completion",
    *,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    engine.loaded.set()
    app = create_app(engine.as_engine(), settings)
    scope: Json = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": list(headers)}
    await app.service.lifecycle.start()
    await app(scope | {"http_version": "1.1"}, client.receive, client.send)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param([(b"content-length", b"14")], 429, id="as long as it is"),
        pytest.param([], 408, id="of no length"),
        pytest.param([(b"content-length", b"14"), (b"transfer-encoding", b"chunked")], 408, id="in chunks"),
    ],
)
async def test_a_body_is_not_waited_for_beyond_its_length(headers: list[tuple[bytes, bytes]], status: int) -> None:
    client = Client({"type": "http.request", "body": b'{"prompt":"a"}', "more_body": True})
    await _ask(Settings(timeout_s=1), ScriptedEngine(weft.QueueFullError(1)), client, headers=headers)
    assert client.sent[0]["status"] == status


async def test_a_request_whose_body_stops_arriving_is_answered_408() -> None:
    client = Client({"type": "http.request", "body": b'{"prompt"', "more_body": True})
    await _ask(Settings(timeout_s=1), ScriptedEngine(), client)
    assert client.sent[0]["status"] == 408
    assert json.loads(client.sent[1]["body"]) == {
        "error": {"code": 408, "message": "no more of the body arrived for 1 s", "type": "timeout_error"}
    }


async def test_an_answer_that_is_not_read_ends_and_closes_its_streams(caplog: pytest.LogCaptureFixture, how: How) -> None:
    body = json.dumps({"prompt": "abc", "stream": how == "stream"}).encode()
    client = Client(LAST | {"body": body})
    client.reads.clear()
    engine = ScriptedEngine([[token(0, "a")], [token(0, "b")], []] if how == "stream" else [[]])
    await _ask(Settings(timeout_s=1), engine, client)
    assert client.sent == []
    assert [stream.is_closed for stream in engine.streams] == [True]
    # What asyncio says of tasks that other tests have left is not of this one.
    assert "ERROR" not in [record.levelname for record in caplog.records if record.name != "asyncio"]


@pytest.fixture(scope="module")
async def impatient(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveServer]:
    """A server that waits for a second."""
    with LiveServer(tmp_path_factory.mktemp("impatient") / "log", "--timeout", "1", "-np", "4") as server:
        await server.ready()
        yield server
        assert "ERROR" not in server.log


async def test_a_server_gives_up_a_client_that_does_not_read(impatient: LiveServer) -> None:
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", impatient.port))
        # Far more than the buffers between the two hold.
        body = b'{"prompt": "Once", "n": 200, "ignore_eos": true, "stream": true, "n_probs": 1000, "n_predict": 200}'
        client.sendall(b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await wait_until(lambda: len(impatient.busy_slots()) == 4)
        await wait_until(lambda: impatient.busy_slots() == [], 25)
        await wait_until(lambda: "a client has not read for 1 s; its response is cancelled" in impatient.log)


@pytest.mark.parametrize(
    "part", [b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{", b"POST /comp"], ids=["body", "head"]
)
async def test_a_server_gives_up_a_client_that_does_not_send(impatient: LiveServer, part: bytes) -> None:
    with socket.socket() as client:
        client.settimeout(10)
        client.connect(("127.0.0.1", impatient.port))
        client.sendall(part)
        answer = await asyncio.to_thread(client.recv, 4096)
    assert answer.startswith(b"HTTP/1.1 408 ") or (answer == b"" and b"\r\n" not in part)
