"""Timeouts for clients that stop sending or reading, and detection of disconnects."""

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import ContextVar
from contextvars import Token as Previous
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from litestar.types import HTTPReceiveMessage, Message, Receive, Send

from weft.server.errors import BodyTimeoutError, ClientDisconnectedError
from weft.server.refusals import Reason
from weft.server.request_line import current_line

logger = logging.getLogger(__name__)

T = TypeVar("T")

CANCEL_S = 1.0
"""Upper bound for the time that cancelling the response takes after a disconnect."""

_current: ContextVar["ClientTimeouts | None"] = ContextVar("client_timeouts", default=None)


BODY_GRACE_S = 10.0
BODY_BYTES_PER_S = 1024
"""Minimum rate of a body: after the first ten seconds of waiting, this many bytes for each further second. A client that sends
single bytes would otherwise hold its connection, and the partial body, indefinitely."""

BODY_SAVED_S = 60.0
"""Maximum waiting time that received bytes earn. Without it, a client that sends megabytes quickly could then pause for hours."""


class MinBodyRate(msgspec.Struct, frozen=True):
    """Slowest rate at which a body may arrive."""

    grace_s: float = BODY_GRACE_S
    """Waiting time that is always allowed, in seconds."""
    bytes_per_s: float = BODY_BYTES_PER_S
    """Bytes that earn one more second."""
    saved_s: float = BODY_SAVED_S
    """Maximum of earned seconds."""


DEFAULT_MIN_RATE = MinBodyRate()


class ClientTimeouts:
    """Wraps the ASGI callables of a request, with a timeout for each wait for the client.

    A body of which nothing arrives for `timeout_s` seconds, or which arrives more slowly than `least`, is answered 408. A client
    that reads nothing for `timeout_s` counts as disconnected: `receive` reports that, and `send` discards further messages.
    (`send` only waits once the connection's buffers of some megabytes are full.)

    The block is left when the request is answered. Once the body is read, or if there is none, any number of tasks may wait in
    `receive` for the disconnect.
    """

    def __init__(
        self,
        receive: Receive,
        send: Send,
        timeout_s: float,
        least: MinBodyRate = DEFAULT_MIN_RATE,
        *,
        has_body: bool = True,
        n_announced: int | None = None,
    ) -> None:
        """Wraps `receive` and `send`.

        Args:
            receive: The server's `receive`.
            send: The server's `send`.
            timeout_s: Maximum of each wait for the client, in seconds.
            least: Minimum rate of the body.
            has_body: Whether a route may read a body.
            n_announced: Length of the body according to the headers, which the HTTP server enforces.
        """
        self._receive = receive
        self._send = send
        self._timeout_s = timeout_s
        self._least = least
        self._remaining_s = least.grace_s
        """Seconds that the server will still wait for the body."""
        # The server reports an empty body only once, possibly to a task that has been cancelled: it must not be awaited.
        self._is_body_read = not has_body
        self._n_announced = n_announced
        self._is_disconnected = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self.n_body_bytes = 0
        """Bytes of the body received so far."""

    def __enter__(self) -> Self:
        self._previous: Previous[ClientTimeouts | None] = _current.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _current.reset(self._previous)
        if self._watching is not None:
            self._watching.cancel()
            # Breaks the reference cycle through the task's exception.
            self._watching = None

    async def receive(self) -> HTTPReceiveMessage:
        """Returns the next part of the body, or a disconnect.

        Raises:
            BodyTimeoutError: The body stalled or arrives too slowly.
        """
        if self._is_body_read and not self._is_disconnected.is_set():
            # One task receives on behalf of all, as ASGI servers need not support concurrent calls of `receive`.
            if self._watching is None:
                self._watching = asyncio.create_task(self._watch())
            await self._is_disconnected.wait()
        if self._is_disconnected.is_set():
            return {"type": "http.disconnect"}
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(min(self._timeout_s, self._remaining_s)):
                message = await self._receive()
        except TimeoutError:
            if self._remaining_s < self._timeout_s:
                raise BodyTimeoutError.slow(self._least.bytes_per_s, self._least.saved_s) from None
            raise BodyTimeoutError.silent(self._timeout_s) from None
        if message["type"] == "http.request":
            n_bytes = len(message.get("body", b""))
            # Only the time spent waiting counts; the rest is the server's.
            waited_s = asyncio.get_running_loop().time() - began
            patience_s = self._remaining_s - waited_s + n_bytes / self._least.bytes_per_s
            self._remaining_s = min(patience_s, max(self._least.saved_s, self._least.grace_s))
            self.n_body_bytes += n_bytes
            # The final empty message would cost another iteration of the event loop, so a body of the announced length counts as
            # complete.
            self._is_body_read = not message.get("more_body", False) or self.n_body_bytes == self._n_announced
            message["more_body"] = not self._is_body_read
        return message  # type: ignore[return-value]

    async def _watch(self) -> None:
        try:
            await _wait_for_disconnect(self._receive)
        finally:
            self._is_disconnected.set()

    async def send(self, message: Message) -> None:
        """Sends a message unless the client has disconnected."""
        if self._is_disconnected.is_set():
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(message)
        except TimeoutError:
            if (line := current_line()) is not None:
                line.refuse(Reason.SLOW_READER)
            logger.info("a client has not read for %g s; its response is cancelled", self._timeout_s)
            await self._disconnect()

    async def _disconnect(self) -> None:
        self._is_disconnected.set()
        if self._watching is not None:
            # A task that waits in `receive` now cancels this one. Returning would continue to generate the response in the
            # meantime.
            await asyncio.sleep(CANCEL_S)


def n_body_bytes() -> int:
    """Returns the size of the current request's body, an estimate for the cost of processing it."""
    client = _current.get()
    return 0 if client is None else client.n_body_bytes


async def cancel_on_disconnect(future: "asyncio.Future[T]") -> T:
    """Returns the result of a future. Cancels the future if the client disconnects or the caller is cancelled.

    Raises:
        ClientDisconnectedError: The client has disconnected.
    """
    if (client := _current.get()) is None:
        return await future
    leaving = asyncio.create_task(_wait_for_disconnect(client.receive))
    either: set[asyncio.Future[Any]] = {future, leaving}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise ClientDisconnectedError
        return future.result()
    finally:
        leaving.cancel()
        future.cancel()
        # The error's traceback refers to this frame, and the future to the error: a reference cycle otherwise.
        del future, either


async def run_while_connected(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Runs `work` to its end, or cancels it when the client disconnects.

    Granian does not cancel the handler after a disconnect, so a separate task waits for `http.disconnect`.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        has_left = watching.done()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
    # Errors after a disconnect have no recipient.
    if not has_left:
        working.result()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
