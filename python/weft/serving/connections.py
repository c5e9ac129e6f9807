"""Monitors the TCP connections that Granian holds, and closes idle or excessive ones.

Granian limits the time for the head of a request on HTTP/1.1 only, and only from its first bytes. Silent connections, incomplete
TLS handshakes or HTTP/2 prefaces, and idle HTTP/2 connections would stay open forever, and each counts towards the maximum number
of connections. Granian accepts listening sockets only, so the alternative would be a proxy, which copies every byte twice. But
the connections are file handles of this process: one system call per handle returns the peer address, and shutting one down has
the same effect as a disconnect by its client, which every layer above handles.
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

SWEEP_S = 1.0
"""Interval between two checks of all connections, in seconds; a quarter of the time limit if that is shorter. Checking three
thousand connections takes 10 to 20 ms of processor time."""

LOOP_DELAY_S = 0.05
"""Seconds that a busy event loop gets to handle requests that have already arrived."""

PRESSURE_DIVISOR = 10
"""Divisor of the time limit of connections without a request, when more than half of the maximum connections are in use."""

Client = tuple[str, int]
"""Address and port of a client."""

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

App = Callable[[MutableMapping[str, Any], Any, Send], Awaitable[None]]


class DisconnectCounters(Protocol):
    """Counters of closed connections."""

    def no_request(self, client: str) -> None:
        """Called if a client did not send the complete head of a request in time."""

    def too_many(self, client: str) -> None:
        """Called if a client's address has too many connections, or if the total is exceeded."""

    def unread(self, client: str) -> None:
        """Called if a client did not read the end of a response in time."""


class _ClientRequests(msgspec.Struct):
    """Requests of one connection."""

    n_open: int = 0
    """Number of requests being answered."""
    ended_at: float = 0.0
    """Time when the last response ended, on the monotonic clock."""
    is_whole: bool = False
    """True if the last response was passed to Granian completely. An incomplete one was counted where it was aborted."""


class _Connection(msgspec.Struct):
    client: Client
    network: str
    """Network of the client, which counts as one address."""
    seen_at: float
    """Time of its discovery, on the monotonic clock."""
    is_cut: bool = False
    """True if it was shut down; Granian may not have noticed yet."""


class Connections:
    """TCP connections on some ports of this process.

    A connection has `limit_s` seconds for the head of each request: from its opening, and from the end of a response that its
    client has received. Each address (for IPv6, each /64 network) may have half of `n_max` connections.
    """

    def __init__(self, ports: Iterable[int], limit_s: float, unread_s: float, n_max: int) -> None:
        """`unread_s` is the time limit for a client to read the end of a response, in seconds."""
        self._ports = frozenset(ports)
        self._limit_s = limit_s
        self._unread_s = unread_s
        self._n_max = n_max
        self._connections: dict[int, _Connection] = {}
        """Connections by the inode of their socket, which is unique while it is open, unlike its handle."""
        self._requests: dict[Client, _ClientRequests] = {}
        self._lock = threading.Lock()
        """Protects `_requests`, which the event loop's thread writes."""

    def wrap(self, app: App) -> App:
        """Wraps an application to record its requests."""

        async def wrapped(scope: MutableMapping[str, Any], receive: object, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            # Granian passes the port as a string.
            address, port = scope["client"]
            with self._lock:
                requests = self._requests.setdefault((address, int(port)), _ClientRequests())
                requests.n_open += 1
                requests.is_whole = False

            async def send_and_learn(message: MutableMapping[str, Any]) -> None:
                await send(message)
                requests.is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)

            try:
                await app(scope, receive, send_and_learn)
            finally:
                with self._lock:
                    requests.n_open -= 1
                    requests.ended_at = time.monotonic()

        return wrapped

    def start(self, cuts: DisconnectCounters, loop: asyncio.AbstractEventLoop) -> None:
        """Checks the connections periodically on a separate thread, until `loop` is closed.

        On Windows, where the handles of a process cannot be listed, no connection is closed: only Granian's time limits apply.
        """
        if not can_list_handles():
            return
        threading.Thread(target=self._run, args=(cuts, loop), name="weft-connections", daemon=True).start()

    def _run(self, cuts: DisconnectCounters, loop: asyncio.AbstractEventLoop) -> None:
        with _ReservedHandle() as reserved, suppress(RuntimeError):  # The loop is closed.
            while True:
                time.sleep(min(SWEEP_S, self._limit_s / 4))
                # A request that the loop has not handled yet must not count as a delay of its client. Requests that arrived
                # before the first iteration have been started after the second.
                _wait_for_loop(loop)
                time.sleep(LOOP_DELAY_S)
                _wait_for_loop(loop)
                self.sweep(reserved, cuts)

    def sweep(self, reserved: "_ReservedHandle", cuts: DisconnectCounters) -> None:
        """Checks all connections once."""
        handles = self._update_connections(reserved)
        now = time.monotonic()
        limit_s = self._limit_s / PRESSURE_DIVISOR if 2 * len(self._connections) > self._n_max else self._limit_s
        with self._lock:
            self._drop_closed(now)
            idle = {inode: connection for inode, connection in self._connections.items() if self._is_idle(connection)}
            last = {
                inode: (requests.ended_at, requests.is_whole)
                for inode, connection in idle.items()
                if (requests := self._requests.get(connection.client)) is not None
            }
        for inode in self._surplus(idle):
            connection = idle.pop(inode)
            if self._cut(reserved, handles[inode], connection) is not None:
                cuts.too_many(connection.client[0])
        for inode, connection in idle.items():
            has_begun = inode in last
            since, is_whole = last.get(inode, (connection.seen_at, False))
            if now - since < (self._limit_s if has_begun else limit_s):
                continue
            unread = has_begun and now - since < self._unread_s
            n_unread = self._cut(reserved, handles[inode], connection, unread=unread)
            if n_unread is not None and not has_begun:
                cuts.no_request(connection.client[0])
            elif n_unread and is_whole:  # Without unread data, closing between two requests is normal.
                cuts.unread(connection.client[0])

    def _drop_closed(self, now: float) -> None:
        """Removes entries of closed connections, except recent ones, which may be newer than the list of handles."""
        clients = {connection.client for connection in self._connections.values()}
        for client, requests in list(self._requests.items()):
            if not requests.n_open and client not in clients and now - requests.ended_at > SWEEP_S:
                del self._requests[client]

    def _is_idle(self, connection: _Connection) -> bool:
        requests = self._requests.get(connection.client)
        return not connection.is_cut and (requests is None or requests.n_open == 0)

    def _surplus(self, idle: dict[int, _Connection]) -> list[int]:
        """Returns the idle connections that exceed a limit, the most recent first."""
        by_network: defaultdict[str, list[int]] = defaultdict(list)
        for inode, connection in self._connections.items():
            if not connection.is_cut:
                by_network[connection.network].append(inode)
        surplus: list[int] = []
        for inodes in by_network.values():
            surplus += _youngest(idle, inodes, len(inodes) - self._n_max // 2)
        left = {inode for inodes in by_network.values() for inode in inodes} - set(surplus)
        return surplus + _youngest(idle, left, len(left) - self._n_max)

    def _update_connections(self, reserved: "_ReservedHandle") -> dict[int, int]:
        """Updates `_connections` and returns the handle of each connection by its inode."""
        handles: dict[int, int] = {}
        known: dict[int, _Connection] = {}
        for handle in open_handles():
            try:
                status = os.fstat(handle)
            except OSError:  # Closed meanwhile.
                continue
            if not stat.S_ISSOCK(status.st_mode):
                continue
            connection = self._connections.get(status.st_ino) or self._connection(reserved, handle)
            if connection is not None:
                handles[status.st_ino], known[status.st_ino] = handle, connection
        self._connections = known
        return handles

    def _connection(self, reserved: "_ReservedHandle", handle: int) -> _Connection | None:
        with reserved.borrow(handle) as sock:
            if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            try:
                if sock.getsockname()[1] not in self._ports:
                    return None
                client = _client(sock)
            except OSError:  # A listening or closed socket.
                return None
            return _Connection(client, _network(client[0]), time.monotonic())

    def _cut(self, reserved: "_ReservedHandle", handle: int, connection: _Connection, *, unread: bool = False) -> int | None:
        """Shuts a connection down. With `unread`, only if its client has read everything.

        Returns:
            Number of bytes that the client has not read; None if the connection was not shut down.
        """
        with reserved.borrow(handle) as sock, suppress(OSError):
            # The handle may have been reused for another socket.
            if sock is None or _client(sock) != connection.client:
                return None
            n_unread = unacknowledged_bytes(sock)
            if unread and n_unread > 0:
                return None
            with self._lock:
                if not self._is_idle(connection):  # A request has arrived meanwhile.
                    return None
                sock.shutdown(socket.SHUT_RDWR)
                connection.is_cut = True
                return n_unread
        return None


def _wait_for_loop(loop: asyncio.AbstractEventLoop) -> None:
    is_processed = threading.Event()
    loop.call_soon_threadsafe(is_processed.set)
    is_processed.wait()


class _ReservedHandle:
    """A reserved file handle, into which other sockets' handles are duplicated, so that this works at the handle limit too."""

    def __enter__(self) -> Self:
        self._empty = os.open(os.devnull, os.O_RDONLY)
        self._handle = os.dup(self._empty)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)
        os.close(self._empty)

    @contextmanager
    def borrow(self, handle: int) -> Iterator[socket.socket | None]:
        """Yields the socket of a handle, which may be closed at any time; None if it is not a socket any more."""
        sock: socket.socket | None = None
        try:
            with suppress(OSError):
                os.dup2(handle, self._handle, inheritable=False)
                sock = socket.socket(fileno=self._handle)
            yield sock
        finally:
            if sock is not None:
                sock.detach()
            # While this duplicate is open, a close by Granian does not reach the client.
            os.dup2(self._empty, self._handle, inheritable=False)


def _youngest(idle: dict[int, _Connection], inodes: Iterable[int], n: int) -> list[int]:
    """Returns at most `n` of these connections that are idle, the most recent first."""
    if n <= 0:
        return []
    return sorted((inode for inode in inodes if inode in idle), key=lambda inode: idle[inode].seen_at, reverse=True)[:n]


def _client(sock: socket.socket) -> Client:
    """Returns a client's address in the form that Granian passes to the application."""
    address, port, *_ = sock.getpeername()
    return address.partition("%")[0], port


def _network(address: str) -> str:
    """Returns the key that counts as one address: for IPv6 the /64 network, since a client can use all its addresses."""
    if ":" not in address:
        return address
    parsed = IPv6Address(address)
    return str(parsed.ipv4_mapped) if parsed.ipv4_mapped is not None else parsed.packed[:8].hex()
