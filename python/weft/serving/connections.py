"""Every TCP connection of this process, seen from beside Granian, which holds them: which are cut, and why.

Granian has a time limit for the head of a request on HTTP/1.1 alone, from its first bytes on. A connection on which nothing is
ever sent, a TLS handshake or a preface of HTTP/2 that stops halfway, and one of HTTP/2 that is left open would all stay, and
each is one of the few that there may be. Granian takes listening sockets only, so nothing can stand before it but a proxy, which
would copy every byte twice. But they are this process's own handles: one system call for each tells whose it is, and shutting one
down is what its client could have done, which every layer above knows how to hear.
"""

import asyncio
import os
import socket
import stat
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from ipaddress import IPv6Address
from typing import Any, Protocol, Self

import msgspec

from weft.installed.platform import can_list_handles, open_handles, unacknowledged_bytes

__all__ = ["App", "Connections", "Cuts", "Send"]

SWEEP_S = 1.0
"""How often, in seconds, all connections are looked at; four times in a limit that is shorter than four of them. Three thousand
take one or two hundredths of a second of a processor."""

SETTLE_S = 0.05
"""What a loop that was busy needs to come to the requests that have waited for it, in seconds."""

HASTE = 10
"""Where more than half of the connections there may be are taken, one without a request has this part of its time."""

Client = tuple[str, int]
"""A client's address and port."""

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

App = Callable[[MutableMapping[str, Any], Any, Send], Awaitable[None]]


class Cuts(Protocol):
    """Whoever counts the connections that are cut."""

    def no_request(self, client: str) -> None:
        """A client sent no whole head of a request in its time."""

    def too_many(self, client: str) -> None:
        """A client has more connections than one address may, or there are more than there may be."""

    def unread(self, client: str) -> None:
        """A client has not read the end of an answer in its time."""


class _Work(msgspec.Struct):
    """The requests of one client's connection."""

    n_open: int = 0
    """Those that are being answered."""
    ended_at: float = 0.0
    """When the last one was answered, on the monotonic clock."""
    is_whole: bool = False
    """Whether Granian has all of the last answer. Where it has not, whoever gave the answer up has counted that."""

    def watching(self, send: Send) -> Send:
        """Sends, and learns whether the answer is whole."""

        async def send_and_learn(message: MutableMapping[str, Any]) -> None:
            await send(message)
            self.is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)

        return send_and_learn


class _Connection(msgspec.Struct):
    client: Client
    network: str
    """What counts as one address."""
    seen_at: float
    """When it was first seen, on the monotonic clock."""
    is_cut: bool = False
    """Whether it was shut down, which Granian has not heard yet."""


class Connections:
    """The TCP connections at some of this process's ports.

    A connection has `limit_s` seconds for each head of a request: from its opening, and from the end of an answer that has
    reached its client. Of one address (of IPv6, one network of 64 bits) there may be half of `n_max`.
    """

    def __init__(self, ports: Iterable[int], limit_s: float, unread_s: float, n_max: int) -> None:
        """`unread_s`: how long a client may leave the end of an answer unread."""
        self._ports = frozenset(ports)
        self._limit_s = limit_s
        self._unread_s = unread_s
        self._n_max = n_max
        self._known: dict[int, _Connection] = {}
        """By the socket's inode, which, as opposed to its handle's number, nothing else gets while it is open."""
        self._work: dict[Client, _Work] = {}
        self._lock = threading.Lock()
        """Over `_work`, which the event loop's thread writes."""

    def watching(self, app: App) -> App:
        """The application, whose requests are known from then on."""

        async def watched(scope: MutableMapping[str, Any], receive: object, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            # Granian tells the port as text.
            address, port = scope["client"]
            with self._request((address, int(port))) as work:
                await app(scope, receive, work.watching(send))

        return watched

    @contextmanager
    def _request(self, client: Client) -> Iterator[_Work]:
        with self._lock:
            work = self._work.setdefault(client, _Work())
            work.n_open += 1
            work.is_whole = False
        try:
            yield work
        finally:
            with self._lock:
                work.n_open -= 1
                work.ended_at = time.monotonic()

    def start(self, cuts: Cuts, loop: asyncio.AbstractEventLoop) -> None:
        """Inspects the connections periodically on a thread of its own, until `loop` is closed.

        On Windows, where the handles of a process cannot be listed, none is cut: Granian's own time limits apply.
        """
        if not can_list_handles():
            return
        threading.Thread(target=self._run, args=(cuts, loop), name="weft-connections", daemon=True).start()

    def _run(self, cuts: Cuts, loop: asyncio.AbstractEventLoop) -> None:
        with _Hand() as hand, suppress(RuntimeError):  # The loop is closed.
            while True:
                time.sleep(min(SWEEP_S, self._limit_s / 4))
                # A request that the loop has not come to is none of its client's delay. What came before the first turn of the
                # loop has begun by the second.
                _await_turn(loop)
                time.sleep(SETTLE_S)
                _await_turn(loop)
                self.sweep(hand, cuts)

    def sweep(self, hand: "_Hand", cuts: Cuts) -> None:
        """Looks at all of them once."""
        handles = self._find(hand)
        now = time.monotonic()
        limit_s = self._limit_s / HASTE if 2 * len(self._known) > self._n_max else self._limit_s
        with self._lock:
            self._forget_work(now)
            idle = {inode: connection for inode, connection in self._known.items() if self._is_idle(connection)}
            begun = {inode for inode in idle if idle[inode].client in self._work}
            whole = {inode for inode in begun if self._work[idle[inode].client].is_whole}
            waiting_since = {
                inode: self._work[connection.client].ended_at if inode in begun else connection.seen_at
                for inode, connection in idle.items()
            }
        for inode in self._surplus(idle):
            if self._cut(hand, handles[inode], idle[inode]) is not None:
                cuts.too_many(idle[inode].client[0])
            del waiting_since[inode]
        for inode, since in waiting_since.items():
            if now - since < (self._limit_s if inode in begun else limit_s):
                continue
            unread_s = self._unread_s if inode in begun else 0.0
            n_unread = self._cut(hand, handles[inode], idle[inode], unread=now - since < unread_s)
            if n_unread is None:
                continue
            if inode not in begun:
                cuts.no_request(idle[inode].client[0])
            elif n_unread > 0 and inode in whole:  # Between two requests every connection may end.
                cuts.unread(idle[inode].client[0])

    def _forget_work(self, now: float) -> None:
        """Forgets those that have gone; one that came after the handles were looked at has not."""
        clients = {connection.client for connection in self._known.values()}
        for client, work in list(self._work.items()):
            if not work.n_open and client not in clients and now - work.ended_at > SWEEP_S:
                del self._work[client]

    def _is_idle(self, connection: _Connection) -> bool:
        work = self._work.get(connection.client)
        return not connection.is_cut and (work is None or work.n_open == 0)

    def _surplus(self, idle: dict[int, _Connection]) -> list[int]:
        """Those of the idle ones that are too many, the youngest first."""
        by_network: defaultdict[str, list[int]] = defaultdict(list)
        for inode, connection in self._known.items():
            if not connection.is_cut:
                by_network[connection.network].append(inode)
        surplus: list[int] = []
        for inodes in by_network.values():
            surplus += _youngest(idle, inodes, len(inodes) - self._n_max // 2)
        left = {inode for inodes in by_network.values() for inode in inodes} - set(surplus)
        return surplus + _youngest(idle, left, len(left) - self._n_max)

    def _find(self, hand: "_Hand") -> dict[int, int]:
        """The handle of each connection, by its inode; which there are is known afterwards."""
        handles: dict[int, int] = {}
        known: dict[int, _Connection] = {}
        for handle in open_handles():
            try:
                status = os.fstat(handle)
            except OSError:  # Closed since.
                continue
            if not stat.S_ISSOCK(status.st_mode):
                continue
            connection = self._known.get(status.st_ino) or self._connection(hand, handle)
            if connection is not None:
                handles[status.st_ino], known[status.st_ino] = handle, connection
        self._known = known
        return handles

    def _connection(self, hand: "_Hand", handle: int) -> _Connection | None:
        with hand.taking(handle) as held:
            if held is None or held.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            try:
                if held.getsockname()[1] not in self._ports:
                    return None
                client = _client(held)
            except OSError:  # It listens, or has ended.
                return None
            return _Connection(client, _network(client[0]), time.monotonic())

    def _cut(self, hand: "_Hand", handle: int, connection: _Connection, *, unread: bool = False) -> int | None:
        """Shuts a connection down; not where `unread` may stay so, and something is.

        Returns:
            The bytes that its client has left unread; None where it was not shut down.
        """
        with hand.taking(handle) as held, suppress(OSError):
            # The handle may be another's by now.
            if held is None or _client(held) != connection.client:
                return None
            n_unread = unacknowledged_bytes(held)
            if unread and n_unread > 0:
                return None
            with self._lock:
                if not self._is_idle(connection):  # A request has come meanwhile.
                    return None
                held.shutdown(socket.SHUT_RDWR)
                connection.is_cut = True
                return n_unread
        return None


def _await_turn(loop: asyncio.AbstractEventLoop) -> None:
    is_heard = threading.Event()
    loop.call_soon_threadsafe(is_heard.set)
    is_heard.wait()


class _Hand:
    """One handle that other handles' sockets are taken up with, so that it can be done where no handle is left."""

    def __enter__(self) -> Self:
        self._empty = os.open(os.devnull, os.O_RDONLY)
        self._handle = os.dup(self._empty)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)
        os.close(self._empty)

    @contextmanager
    def taking(self, handle: int) -> Iterator[socket.socket | None]:
        """The socket behind a handle, which may be closed meanwhile; None where it is no socket any more."""
        held: socket.socket | None = None
        try:
            with suppress(OSError):
                os.dup2(handle, self._handle, inheritable=False)
                held = socket.socket(fileno=self._handle)
            yield held
        finally:
            if held is not None:
                held.detach()
            # As long as it were held here, its client would not hear that Granian has closed it.
            os.dup2(self._empty, self._handle, inheritable=False)


def _youngest(idle: dict[int, _Connection], inodes: Iterable[int], n: int) -> list[int]:
    """At most `n` of these connections, of those that are idle."""
    if n <= 0:
        return []
    return sorted((inode for inode in inodes if inode in idle), key=lambda inode: idle[inode].seen_at, reverse=True)[:n]


def _client(held: socket.socket) -> Client:
    """As Granian tells it to the application."""
    address, port, *_ = held.getpeername()
    return address.partition("%")[0], port


def _network(address: str) -> str:
    """What counts as one address: of IPv6 a network of 64 bits, of which a client can have every address."""
    if ":" not in address:
        return address
    parsed = IPv6Address(address)
    return str(parsed.ipv4_mapped) if parsed.ipv4_mapped is not None else parsed.packed[:8].hex()
