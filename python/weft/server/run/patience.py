"""How long the server waits for a client that does not send, or does not read, and how it hears that one has left."""

import asyncio
import logging
from contextvars import ContextVar
from contextvars import Token as Previous
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from litestar.types import HTTPReceiveMessage, Message, Receive, Send

from weft.server.errors import BodyTimeoutError, ClientLeftError
from weft.server.refusals import Reason
from weft.server.request_line import current_line

__all__ = ["LeastRate", "Patience", "n_body_bytes", "unless_left"]

logger = logging.getLogger(__name__)

Made = TypeVar("Made")

CANCEL_S = 1.0
"""More than whoever hears that the client has left needs to cancel the answer."""

_current: ContextVar["Patience | None"] = ContextVar("patience", default=None)


BODY_GRACE_S = 10.0
BODY_BYTES_PER_S = 1024
"""What a body must come to: so many bytes for each second that the server waits for it, beyond the first ten. One that comes a
byte at a time would hold its connection, and what has come of it, for as long as its sender likes."""

BODY_SAVED_S = 60.0
"""Of what it has come to, so many seconds are saved at most for a pause: megabytes that are sent at once would else be held for
hours."""


class LeastRate(msgspec.Struct, frozen=True):
    """How slowly a body may arrive."""

    grace_s: float = BODY_GRACE_S
    """Seconds that may be waited for it in any case."""
    bytes_per_s: float = BODY_BYTES_PER_S
    """For so many bytes it may be one second more."""
    saved_s: float = BODY_SAVED_S
    """Most of these seconds that are saved."""


DEFAULT_RATE = LeastRate()


class Patience:
    """The two ends of one request, each with a limit to every single wait for the client.

    A body of which nothing arrives for `timeout_s` seconds, or which arrives more slowly than `least`, is answered 408. A client
    that reads nothing for `timeout_s` counts as one that has left: `receive` says so, and what is still to be sent goes nowhere.
    Whoever writes the answer has only that one end to know. (A client reads nothing where the connection's buffers are full, of
    some megabytes.)

    Its block is left when the request is answered. Once the body is read, or where there is none, any number of tasks may wait in
    `receive` for the client's leaving.
    """

    def __init__(
        self,
        receive: Receive,
        send: Send,
        timeout_s: float,
        least: LeastRate = DEFAULT_RATE,
        *,
        has_body: bool = True,
        n_announced: int | None = None,
    ) -> None:
        """`n_announced`: the bytes that the body has, by its head; whoever speaks HTTP sees to it that they are so many."""
        self._receive = receive
        self._send = send
        self._timeout_s = timeout_s
        self._least = least
        self._patience_s = least.grace_s
        """Seconds that may still be waited for the body."""
        # That there is none is said once, and may be said to one who was cancelled meanwhile: it must not be waited for.
        self._is_body_read = not has_body
        self._n_announced = n_announced
        self._has_left = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self.n_body_bytes = 0
        """Bytes of the body, as far as it was read."""

    def __enter__(self) -> Self:
        self._previous: Previous[Patience | None] = _current.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _current.reset(self._previous)
        if self._watching is not None:
            self._watching.cancel()
            # What it ends with knows this object: the two would have to be found by the collector of garbage.
            self._watching = None

    async def receive(self) -> HTTPReceiveMessage:
        """The next part of the body, or that the client has left.

        Raises:
            BodyTimeoutError: nothing more of the body has arrived, or too little.
        """
        if self._is_body_read and not self._has_left.is_set():
            # One task hears it for all: what the server under us does with two that wait is its own matter.
            if self._watching is None:
                self._watching = asyncio.create_task(self._watch())
            await self._has_left.wait()
        if self._has_left.is_set():
            return {"type": "http.disconnect"}
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(min(self._timeout_s, self._patience_s)):
                message = await self._receive()
        except TimeoutError:
            if self._patience_s < self._timeout_s:
                raise BodyTimeoutError.slow(self._least.bytes_per_s, self._least.saved_s) from None
            raise BodyTimeoutError.silent(self._timeout_s) from None
        if message["type"] == "http.request":
            n_bytes = len(message.get("body", b""))
            # Only what was waited for counts: the rest of the time is ours.
            waited_s = asyncio.get_running_loop().time() - began
            patience_s = self._patience_s - waited_s + n_bytes / self._least.bytes_per_s
            self._patience_s = min(patience_s, max(self._least.saved_s, self._least.grace_s))
            self.n_body_bytes += n_bytes
            # That nothing more comes is said in a message of its own: who waits for that loses a turn of the loop.
            self._is_body_read = not message.get("more_body", False) or self.n_body_bytes == self._n_announced
            message["more_body"] = not self._is_body_read
        return message  # type: ignore[return-value]

    async def _watch(self) -> None:
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass
        finally:
            self._has_left.set()

    async def send(self, message: Message) -> None:
        """Sends, unless the client has left."""
        if self._has_left.is_set():
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(message)
        except TimeoutError:
            if (line := current_line()) is not None:
                line.refuse(Reason.SLOW_READER)
            logger.info("a client has read nothing for %g s; its answer ends", self._timeout_s)
            await self._leave()

    async def _leave(self) -> None:
        self._has_left.set()
        if self._watching is not None:
            # Whoever waits in `receive` is told, and cancels this. To return would be to write on until then, and much has
            # gathered that could be written.
            await asyncio.sleep(CANCEL_S)


def n_body_bytes() -> int:
    """Bytes of the body that this task answers: what it costs to work on all that is in it follows this."""
    client = _current.get()
    return 0 if client is None else client.n_body_bytes


async def unless_left(future: "asyncio.Future[Made]") -> Made:
    """The result of a future, which is cancelled where the client leaves before, or the caller gives up.

    Raises:
        ClientLeftError: the client has left.
    """
    if (client := _current.get()) is None:
        return await future
    leaving = asyncio.create_task(_until_left(client))
    either: set[asyncio.Future[Any]] = {future, leaving}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise ClientLeftError
        return future.result()
    finally:
        leaving.cancel()
        future.cancel()
        # An error knows where it passed, and so the future that holds it: only the collector of garbage would find them.
        del future, either


async def _until_left(client: Patience) -> None:
    while (await client.receive())["type"] != "http.disconnect":
        pass
