"""From events to the connection: streamed and whole answers, and what happens when the client leaves."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, cast

import msgspec
from litestar import Response
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from weft.server.response_fields.explanation import explanation_header
from weft.server.run import sse
from weft.server.run.collected import Collected
from weft.server.run.generation import Event, Generation
from weft.server.run.pieces import groups
from weft.server.run.room import Room
from weft.server.run.writing import Stint, next_turn

__all__ = [
    "REQUEST_ID",
    "Answer",
    "AwaitedAnswer",
    "AwaitedPieces",
    "AwaitedText",
    "PiecedAnswer",
    "StreamedAnswer",
    "StreamedForm",
    "WholeAnswer",
    "WholeForm",
    "run_while_connected",
]

Events = Sequence[Event]

Body = TypeVar("Body")

REQUEST_ID = "x-request-id"
"""The header with the id by which a request is found while it runs."""

MAX_WRITE_BYTES = 64 * 1024
"""A write of more is cut here, and others have their turn. A client that reads slowly lets events pile up: thousands of them,
each with a thousand probabilities, would take the event loop many seconds to write out at once. So much is made of two hundred
plain events or of one with a thousand probabilities, in some milliseconds."""


class StreamedForm(Protocol):
    """How a dialect writes a stream."""

    def frames(self, prompt: int, events: Events) -> Sequence[bytes]:
        """The frames of events of one prompt, in order and in pieces: one frame may be in several."""

    def end(self) -> bytes:
        """What follows the last event of the last branch."""


class WholeForm(Protocol):
    """How a dialect writes a whole answer."""

    def add(self, prompt: int, events: Events) -> int:
        """Takes events of one prompt, in order; returns how many bytes more are held by then."""

    def body(self) -> Sequence[bytes]:
        """The JSON in pieces, once every branch has finished."""


async def run_while_connected(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Runs `work` to its end, or until the client leaves, which cancels it.

    Granian does not cancel the handler of a client that has left, and whoever waits for the next event would wait for
    nobody. So the wait for `http.disconnect` is a task of its own.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        has_left = watching.done()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
    # What goes wrong with nobody there to be told is no error of ours.
    if not has_left:
        working.result()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class StreamedAnswer(ASGIResponse):
    """An event stream: the frames of a step leave in one write, and silence is filled with comments, or what `ping` is.

    The status is sent with the first events, so that what fails before them is still an HTTP error; after `ping_s`
    seconds of silence it is sent without them, so that a client knows that it was heard.
    """

    def __init__(
        self,
        generation: Generation,
        form: StreamedForm,
        ping_s: float | None,
        *,
        headers: Mapping[str, str] = sse.HEADERS,
        ping: bytes = sse.PING,
        failure: Callable[[Exception], bytes] = sse.error_frame,
        opening: bytes = b"",
    ) -> None:
        super().__init__(headers={**headers, REQUEST_ID: generation.id})
        self.failure = failure
        """The end of a stream that could not be written to its end."""
        self._silence = ping
        """What is sent where nothing else is."""
        self._opening = opening
        """What is sent at once, before there is any event."""
        del self.headers["content-length"]
        self._generation = generation
        self._form = form
        self._ping_s = ping_s
        self._is_started = False
        self._sending = asyncio.Lock()
        self._n_unyielded = 0
        """Bytes that were written since others had their turn."""
        self._stint = Stint()
        self._last_write = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Streams until the last event, an error, or the client's leaving."""
        try:
            await run_while_connected(self.write(send), receive)
        finally:
            self.close()

    def close(self) -> None:
        """Cancels what is not yet written; to be called when nobody reads the generation."""
        self._generation.close()

    async def write(self, send: Send) -> None:
        """Streams until the last event or an error, whoever reads it."""
        self._last_write = time.monotonic()
        pinging = asyncio.create_task(self._ping(send, self._ping_s)) if self._ping_s is not None else None
        try:
            if self._opening:
                await self._write(send, [self._opening], len(self._opening))
            while batches := await self._generation.next_batches():
                await self._write_events(send, batches)
            tail = self._form.end()
        except Exception as error:
            if not self._is_started:
                raise
            tail = self.failure(error)
        finally:
            if pinging is not None:
                pinging.cancel()
        async with self._sending:
            await self._start(send)  # Where nothing was written there may be no event either.
            await send({"type": "http.response.body", "body": tail, "more_body": False})

    async def _start(self, send: Send) -> None:
        if not self._is_started:
            self._is_started = True
            await self.start_response(send)

    async def _write_events(self, send: Send, batches: Sequence[tuple[int, Events]]) -> None:
        """Writes events in as few writes as may be; none where a step shows nothing, as with half a character."""
        waiting: list[bytes] = []
        n_bytes = 0
        self._stint.begin()
        for prompt, event in ((prompt, event) for prompt, events in batches for event in events):
            try:
                pieces = self._form.frames(prompt, (event,))
            except Exception:
                await self._write(send, waiting, n_bytes)
                raise
            waiting += pieces
            for piece in pieces:
                n_bytes += len(piece)
            is_full = n_bytes + self._n_unyielded >= MAX_WRITE_BYTES
            if is_full or time.monotonic() >= self._stint.until:
                self._stint.pause()
                has_much = n_bytes >= MAX_WRITE_BYTES
                if is_full:
                    await self._write(send, waiting, n_bytes)
                    waiting, n_bytes, self._n_unyielded = [], 0, 0
                await self._stint.give_way(has_much=has_much)
        self._stint.pause()
        if n_bytes:
            # Where events are ready whenever they are asked for, several small writes come to a large one.
            self._n_unyielded += n_bytes
            await self._write(send, waiting, n_bytes)

    async def _ping(self, send: Send, ping_s: float) -> None:
        while True:
            await asyncio.sleep(self._last_write + ping_s - time.monotonic())
            if time.monotonic() >= self._last_write + ping_s:
                await self._write(send, [self._silence], len(self._silence))

    async def _write(self, send: Send, pieces: Sequence[bytes], n_bytes: int) -> None:
        """Writes whole frames, which are so many bytes; nothing comes between their pieces."""
        async with self._sending:
            if n_bytes and not self._is_started:
                await self._start(send)
            for nth, frames in enumerate(_writes(pieces, n_bytes)):
                if nth:
                    await next_turn()
                await send({"type": "http.response.body", "body": frames, "more_body": True})
        self._last_write = time.monotonic()


def _writes(pieces: Sequence[bytes], n_bytes: int) -> Iterable[bytes]:
    """The pieces, which are so many bytes, in as few writes as may be."""
    return (b"".join(pieces),) if 0 < n_bytes <= MAX_WRITE_BYTES else groups(pieces, MAX_WRITE_BYTES)


class PiecedAnswer(ASGIResponse):
    """JSON in pieces. What is long is sent in several writes, between which others have their turn."""

    def __init__(self, pieces: Sequence[bytes], headers: Mapping[str, str] = MappingProxyType({})) -> None:
        size = sum(map(len, pieces))
        self._pieces = pieces if size > MAX_WRITE_BYTES else ()
        super().__init__(body=b"" if self._pieces else b"".join(pieces))
        self.headers["content-length"] = str(size)
        self.headers.update(headers)

    async def send_body(self, send: Send, receive: Receive) -> None:
        """Sends what the headers announce."""
        for group in groups(self._pieces, MAX_WRITE_BYTES):
            await send({"type": "http.response.body", "body": group, "more_body": True})
            await next_turn()
        await super().send_body(send, receive)


class WholeAnswer(ASGIResponse):
    """One JSON body, sent when every branch has finished. What comes to more than there is room for is ended with an error."""

    def __init__(
        self,
        generation: Generation,
        form: WholeForm,
        room: Room,
        *,
        failure: Callable[[Exception], object] = lambda _: None,
    ) -> None:
        super().__init__()
        self._failure = failure
        """Is told of what goes wrong before it is answered."""
        self._room = room
        self._generation = generation
        self._form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Collects, then answers; a client that leaves ends the work, also when nothing was to be sent yet."""
        try:
            with Collected(self._room) as collected:
                await run_while_connected(self._collect(collected, scope, receive, send), receive)
        except Exception as error:
            self._failure(error)
            raise
        finally:
            self._generation.close()

    async def _collect(self, collected: Collected, scope: Scope, receive: Receive, send: Send) -> None:
        stint = Stint()
        while batches := await self._generation.next_batches():
            stint.begin()
            for prompt, event in ((prompt, event) for prompt, events in batches for event in events):
                collected.grow(self._form.add(prompt, [event]))
                # Events that are ready are had without waiting, and those with a thousand probabilities each are as fast drawn
                # as taken up: without this nobody else would be served before the answer's end.
                if time.monotonic() >= stint.until:
                    stint.pause()
                    await stint.give_way()
            stint.pause()
        headers = {**explanation_header(self._generation.explanations), REQUEST_ID: self._generation.id}
        await PiecedAnswer(self._form.body(), headers)(scope, receive, send)


class AwaitedAnswer(ASGIResponse):
    """The JSON of what some work makes; a client that leaves cancels it."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Works, then answers."""
        await run_while_connected(self._answer(scope, receive, send), receive)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await ASGIResponse(body=msgspec.json.encode(await self._work()))(scope, receive, send)


class AwaitedText(AwaitedAnswer):
    """What some work writes, of another type than JSON; a client that leaves cancels it."""

    def __init__(
        self, work: Callable[[], Coroutine[Any, Any, bytes]], content_type: str, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        super().__init__(work)
        self._write = work
        self._content_type = content_type
        self._headers = dict(headers)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._write()
        await ASGIResponse(body=body, media_type=self._content_type, headers=self._headers)(scope, receive, send)


class AwaitedPieces(AwaitedAnswer):
    """JSON that some work makes in pieces, which count as collected; a client that leaves cancels it."""

    def __init__(self, work: Callable[[Collected], Coroutine[Any, Any, Sequence[bytes]]], room: Room) -> None:
        self._collected = Collected(room)
        self._pieces = partial(work, self._collected)
        super().__init__(self._pieces)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._collected:
            await PiecedAnswer(await self._pieces())(scope, receive, send)


class Answer(Response[Body]):
    """What a handler returns: one of those above, past Litestar's own rendering. `Body` is what the JSON holds."""

    def __init__(self, answer: ASGIResponse) -> None:
        super().__init__(cast("Body", None))
        self._answer = answer

    def to_asgi_response(self, *_args: object, **_kwargs: object) -> ASGIResponse:
        """The answer itself."""
        return self._answer
