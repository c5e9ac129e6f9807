"""Connections that say nothing, or too little, or are too many: none of them keeps others from being heard."""

import asyncio
import resource
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from tests.certificates import CERTIFICATE, KEY
from tests.helpers import wait_until
from tests.server.http2 import Http2Client
from tests.server.live import LiveServer
from weft.serving.connections import Connections, Send, _network, _ReservedHandle
from weft.serving.endpoint import N_OTHERS, N_STREAMS, connection_limit

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"


class Counted:
    """Whom the watch tells what it has cut."""

    def __init__(self) -> None:
        self.silent: list[str] = []
        self.surplus: list[str] = []
        self.slow: list[str] = []

    def no_request(self, client: str) -> None:
        self.silent.append(client)

    def too_many(self, client: str) -> None:
        self.surplus.append(client)

    def unread(self, client: str) -> None:
        self.slow.append(client)


class Port:
    """A port of this process, whose connections are held and not answered."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
        self.number: int = self._listener.getsockname()[1]
        self.cuts = Counted()
        self._hand = stack.enter_context(_ReservedHandle())
        self.held: list[socket.socket] = []

    def connect(self, host: str = "127.0.0.1") -> socket.socket:
        client = self._stack.enter_context(socket.create_connection(("127.0.0.1", self.number), 5, (host, 0)))
        self.held.append(self._stack.enter_context(self._listener.accept()[0]))
        return client

    def watch(self, limit_s: float = 0, unread_s: float = 0, n_max: int = 1000) -> Connections:
        return Connections([self.number], limit_s, unread_s, n_max)

    def sweep(self, connections: Connections) -> None:
        connections.sweep(self._hand, self.cuts)


@pytest.fixture
def port() -> Iterator[Port]:
    with ExitStack() as stack:
        yield Port(stack)


def is_cut(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


async def unheard(_: object) -> None:
    """Sends to nobody."""


def test_a_connection_that_asks_nothing_is_cut_when_its_time_is_over(port: Port) -> None:
    patient, strict = port.watch(limit_s=1000), port.watch()
    client = port.connect()
    port.sweep(patient)
    assert not is_cut(client)
    port.sweep(strict)
    assert is_cut(client)
    assert port.cuts.silent == ["127.0.0.1"]


def test_connections_of_other_ports_are_left_alone(port: Port) -> None:
    with ExitStack() as stack:
        other = Port(stack)
        client = other.connect()
        port.sweep(port.watch())
        assert not is_cut(client)


async def test_a_connection_is_not_cut_while_its_request_is_answered_and_has_its_time_again_afterwards(port: Port) -> None:
    client = port.connect()
    watch = port.watch()
    is_answered = asyncio.Event()

    async def app(*_: object) -> None:
        await is_answered.wait()

    address, number = client.getsockname()
    scope = {"type": "http", "client": (address, str(number))}
    request = asyncio.ensure_future(watch.wrap(app)(scope, None, unheard))
    await asyncio.sleep(0)
    port.sweep(watch)
    assert not is_cut(client)
    is_answered.set()
    await request
    port.sweep(watch)
    assert is_cut(client)
    # Between two requests every connection may end.
    assert port.cuts.silent == port.cuts.slow == []


@pytest.mark.parametrize(
    ("unread_s", "is_whole", "is_given_up", "is_counted"),
    [(1000, True, False, False), (0, True, True, True), (0, False, True, False)],
    ids=["within", "beyond", "an answer that was given up, and counted, before its end"],
)
async def test_the_end_of_an_answer_may_stay_unread_as_long_as_the_timeout_says(
    port: Port, unread_s: float, *, is_whole: bool, is_given_up: bool, is_counted: bool
) -> None:
    client = port.connect()
    watch = port.watch(unread_s=unread_s)

    async def app(_: object, receive: object, send: Send) -> None:
        await send({"type": "http.response.body", "body": b"", "more_body": not is_whole})

    async def send(_: object) -> None:
        port.held[0].setblocking(False)
        # More than the buffers hold that the client's machine confirms unread.
        port.held[0].send(bytes(2**24))

    address, number = client.getsockname()
    await watch.wrap(app)({"type": "http", "client": (address, str(number))}, None, send)
    port.sweep(watch)
    assert port.cuts.slow == ["127.0.0.1"] * is_counted
    assert port.cuts.silent == []
    client.settimeout(0.2)
    with suppress(TimeoutError):
        while client.recv(2**20):
            pass
        assert is_given_up, "only what is shut down has an end"
        return
    assert not is_given_up


def test_one_address_may_have_half_of_the_connections_and_its_youngest_go_first(port: Port) -> None:
    watch = port.watch(limit_s=1000, n_max=6)
    clients: list[socket.socket] = []
    for host in ("127.0.0.2", "127.0.0.2", "127.0.0.2", "127.0.0.2", "127.0.0.3"):
        clients.append(port.connect(host))
        port.sweep(watch)
    assert [is_cut(client) for client in clients] == [False, False, False, True, False]
    assert port.cuts.surplus == ["127.0.0.2"]


def test_all_addresses_together_have_no_more_than_there_may_be(port: Port) -> None:
    watch = port.watch(limit_s=1000, n_max=4)
    clients = [port.connect(f"127.0.0.{last}") for last in (2, 3, 4, 5, 6, 7)]
    port.sweep(watch)
    assert sum(is_cut(client) for client in clients) == 2


def test_where_half_of_the_connections_are_taken_the_silent_ones_have_a_tenth_of_the_time(port: Port) -> None:
    now = time.monotonic
    watch = port.watch(limit_s=1, n_max=4)
    clients = [port.connect(f"127.0.0.{last}") for last in (2, 3, 4)]
    port.sweep(watch)
    began = now()
    while not all(is_cut(client) for client in clients):
        port.sweep(watch)
        assert now() - began < 0.9


def test_of_ipv6_a_network_of_64_bits_counts_as_one_address() -> None:
    assert _network("2001:db8::1") == _network("2001:db8::ffff:1") != _network("2001:db8:0:1::1")
    assert _network("::ffff:10.0.0.1") == _network("10.0.0.1") == "10.0.0.1"


def test_there_are_never_more_connections_than_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = (1024, 4096)
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: raised.append(both))
    assert connection_limit(2, 1024) == (4096 - N_OTHERS) // 2
    assert raised == [(4096, 4096)]
    limits = (1024, 1_000_000)
    assert connection_limit(1, 1024) == 8192
    assert raised.pop()[0] > 8192 + N_OTHERS
    limits = (1_000_000, 1_000_000)
    assert connection_limit(1, 20_000) == 21_024
    assert len(raised) == 1


@pytest.fixture(scope="module")
async def hasty(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveServer]:
    """A server that gives a head one second."""
    with LiveServer(tmp_path_factory.mktemp("hasty") / "log", "-np", "1", "--timeout", "1", "--metrics") as server:
        await server.ready()
        yield server
        assert "ERROR" not in server.log


def until_closed(client: socket.socket) -> bytes:
    """What the server says before it closes the connection."""
    client.settimeout(8)
    said = b""
    with suppress(ConnectionResetError):  # As where there is something that it has not read.
        while part := client.recv(65_536):
            said += part
    return said


UNREAD = "a connection of 127.0.0.1 was closed: the end of its answer stayed unread"


def refused(server: LiveServer, reason: str) -> int:
    text = httpx.get(f"{server.url}/metrics").text
    return int(float(text.partition(f'weft:refused_total{{reason="{reason}"}} ')[2].partition("\n")[0]))


@pytest.mark.parametrize(
    "said",
    [b"", b"P", PREFACE[:20], PREFACE, PREFACE + SETTINGS, b"GET / HTT", b"GET / HTTP/1.1\r\nHost: localhost\r\n"],
    ids=["nothing", "P", "half a preface", "a preface", "settings", "a line", "a header"],
)
async def test_a_connection_without_a_request_is_given_up_whatever_it_has_said(hasty: LiveServer, said: bytes) -> None:
    before = refused(hasty, "no_request")
    with socket.create_connection(("127.0.0.1", hasty.port)) as client:
        client.sendall(said)
        await asyncio.to_thread(until_closed, client)
    # It is closed, and then counted.
    await wait_until(lambda: refused(hasty, "no_request") == before + 1)
    assert "a connection of 127.0.0.1 was closed: it sent no request" in hasty.log


async def test_a_head_that_comes_a_byte_at_a_time_is_given_up(hasty: LiveServer) -> None:
    with socket.create_connection(("127.0.0.1", hasty.port), 0.05) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")

        def is_given_up() -> bool:
            try:
                client.sendall(b"x")
                return client.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        await wait_until(is_given_up, 8)


@pytest.mark.parametrize("is_http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
async def test_a_connection_that_is_left_open_after_its_answer_is_closed(hasty: LiveServer, *, is_http2: bool) -> None:
    before = refused(hasty, "no_request")
    # HEADERS with END_STREAM and END_HEADERS: GET, http, /, and an authority, as HPACK's static table has them.
    block = b"\x82\x86\x84\x41\x09localhost"
    headers = struct.pack(">I", len(block))[1:] + b"\x01\x05\0\0\0\x01" + block
    with socket.create_connection(("127.0.0.1", hasty.port)) as client:
        client.sendall(PREFACE + SETTINGS + headers if is_http2 else b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"</html>" in await asyncio.to_thread(until_closed, client)
    assert refused(hasty, "no_request") == before


async def test_a_connection_whose_answers_end_is_not_read_is_counted_as_that_of_a_slow_reader(hasty: LiveServer) -> None:
    before = {reason: refused(hasty, reason) for reason in ("slow_reader", "no_request")}
    n_lines = hasty.log.count(UNREAD)
    with socket.socket() as client:
        # What the client's machine takes unread; the rest of the page stays in the server's.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", hasty.port))
        client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await wait_until(lambda: refused(hasty, "slow_reader") > before["slow_reader"], 8)
        await wait_until(lambda: hasty.log.count(UNREAD) == n_lines + 1)
        assert await asyncio.to_thread(until_closed, client)
    assert {reason: refused(hasty, reason) - n for reason, n in before.items()} == {"slow_reader": 1, "no_request": 0}


async def test_a_tls_handshake_that_does_not_end_is_given_up(tmp_path: Path) -> None:
    flags = ("-np", "1", "--timeout", "1", "--ssl-key-file", KEY, "--ssl-cert-file", CERTIFICATE)
    with LiveServer(tmp_path / "log", *flags) as server:
        await wait_until(lambda: "ready" in server.log, 120)
        outgoing = ssl.MemoryBIO()
        handshake = ssl.create_default_context(cafile=CERTIFICATE).wrap_bio(
            ssl.MemoryBIO(), outgoing, server_hostname="localhost"
        )
        with pytest.raises(ssl.SSLWantReadError):
            handshake.do_handshake()
        hello = outgoing.read()
        for said in (b"", hello[:100], hello):
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(said)
                await asyncio.to_thread(until_closed, client)


async def test_silence_on_a_unix_socket_is_given_up_too(tmp_path: Path) -> None:
    path = tmp_path / "weft.sock"
    with LiveServer(tmp_path / "log", "-np", "1", "--timeout", "1", "--host", str(path)) as server:
        await wait_until(lambda: "ready" in server.log, 120)
        for said in (b"", b"P", b"GET / HTT"):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
                client.sendall(said)
                await asyncio.to_thread(until_closed, client)


async def test_thousands_of_silent_connections_keep_nobody_from_being_heard(live: LiveServer) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    with ExitStack() as stack:
        for _ in range(2500):
            stack.enter_context(socket.create_connection(("127.0.0.1", live.port), 5))
        answer = await asyncio.to_thread(httpx.get, f"{live.url}/health", timeout=5)
    assert answer.status_code == 200


async def test_a_connection_of_http2_is_told_how_many_requests_it_may_have_at_once(live: LiveServer) -> None:
    async with Http2Client(live.port) as client:
        await client.first_data(await client.request("GET", "/health"))
        assert client.most_at_once == N_STREAMS


FEW_HANDLES = 192

UNDER_A_LIMIT = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({FEW_HANDLES}, {FEW_HANDLES}))
from weft.cli.main import main
sys.exit(main())
"""


async def test_a_server_whose_handles_run_out_does_not_spin_and_recovers(tmp_path: Path) -> None:
    """More connect than there are handles for, and stay: nothing is done until those that were first are given up."""
    flags = ("-np", "1", "--timeout", "3")
    with LiveServer(tmp_path / "log", *flags, program=("-c", UNDER_A_LIMIT)) as server, ExitStack() as stack:
        await wait_until(lambda: "ready" in server.log, 120)
        for _ in range(2 * FEW_HANDLES):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 5))
        began, before = time.monotonic(), cpu_s(server.worker_id())
        answer = await asyncio.to_thread(httpx.get, f"{server.url}/health", timeout=15)
        assert answer.status_code == 200
        assert (cpu_s(server.worker_id()) - before) / (time.monotonic() - began) < 0.5
        assert "Too many open files" not in server.log


def cpu_s(process: int) -> float:
    """Seconds of the processors that a process has used, to a hundredth."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
