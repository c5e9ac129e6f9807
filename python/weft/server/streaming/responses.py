"""Streamed and collected responses, and their cancellation when the client disconnects."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar, cast

import msgspec
from litestar import Response
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from weft import Event
from weft.server.inference.generation import Generation
from weft.server.memory_budget import MemoryBudget, Reservation
from weft.server.response_fields.explanation import explanation_header
from weft.server.streaming.client_timeouts import run_while_connected
from weft.server.streaming.encoder import Encoder
from weft.server.streaming.fair_scheduler import TimeSlice, yield_fairly
from weft.server.streaming.json_chunks import groups

Events = Sequence[Event]

Body = TypeVar("Body")

REQUEST_ID = "x-request-id"
"""Header with the request's id in the requests API."""

MAX_WRITE_BYTES = 64 * 1024
"""Size of a write after which other tasks run. For slow clients events accumulate: encoding thousands of them with a thousand
logprobs each would block the event loop for many seconds. This size is reached by two hundred plain events or by one with a
thousand logprobs, within milliseconds."""


class StreamedResponse(ASGIResponse):
    """An event stream. Frames of a step are sent in one write; during silence, `ping` is sent.

    The status is sent with the first events, so that earlier errors produce an HTTP error. After `ping_s` seconds without events
    it is sent with a ping, to confirm to the client that the request was received.
    """

    def __init__(self, generation: Generation, encoder: Encoder, ping_s: float | None) -> None:
        super().__init__(headers={**encoder.headers, REQUEST_ID: generation.id})
        del self.headers["content-length"]
        self._generation = generation
        self._encoder = encoder
        self._ping_s = ping_s
        self._is_started = False
        self._sending = asyncio.Lock()
        self._n_unyielded = 0
        """Bytes written since other tasks last ran."""
        self._time_slice = TimeSlice()
        self._last_write = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Streams until the last event, an error, or a disconnect."""
        try:
            await run_while_connected(self.write(send), receive)
        finally:
            self.close()

    def failure(self, error: Exception) -> bytes:
        """Returns the bytes that end the stream prematurely."""
        return self._encoder.failure(error)

    def close(self) -> None:
        """Cancels the generation. Must be called once no task reads it."""
        self._generation.close()

    async def write(self, send: Send) -> None:
        """Streams to `send` until the last event or an error, without watching for a disconnect."""
        self._last_write = time.monotonic()
        ping, ping_s = self._encoder.ping, self._ping_s
        pinging = None if ping is None or ping_s is None else asyncio.create_task(self._ping(send, ping, ping_s))
        try:
            if opening := self._encoder.opening():
                await self._write(send, [opening], len(opening))
            while batches := await self._generation.next_batches():
                await self._write_events(send, batches)
            tail = self._encoder.end()
        except Exception as error:
            if not self._is_started:
                raise
            tail = self.failure(error)
        finally:
            if pinging is not None:
                pinging.cancel()
        async with self._sending:
            await self._start(send)  # A stream that failed or ended without output has not started.
            await send({"type": "http.response.body", "body": tail, "more_body": False})

    async def _start(self, send: Send) -> None:
        if not self._is_started:
            self._is_started = True
            await self.start_response(send)

    async def _write_events(self, send: Send, batches: Sequence[tuple[int, Events]]) -> None:
        """Writes events in as few writes as possible. Events that show no text, such as half a character, produce none."""
        waiting: list[bytes] = []
        n_bytes = 0
        self._time_slice.begin()
        for prompt, event in ((prompt, event) for prompt, events in batches for event in events):
            try:
                pieces = self._encoder.frames(prompt, event)
            except Exception:
                await self._write(send, waiting, n_bytes)
                raise
            waiting += pieces
            for piece in pieces:
                n_bytes += len(piece)
            is_full = n_bytes + self._n_unyielded >= MAX_WRITE_BYTES
            if is_full or time.monotonic() >= self._time_slice.until:
                self._time_slice.pause()
                has_written_much = n_bytes >= MAX_WRITE_BYTES
                if is_full:
                    await self._write(send, waiting, n_bytes)
                    waiting, n_bytes, self._n_unyielded = [], 0, 0
                await self._time_slice.yield_to_others(has_written_much=has_written_much)
        self._time_slice.pause()
        if n_bytes:
            # If events are always ready, several small writes count like a large one.
            self._n_unyielded += n_bytes
            await self._write(send, waiting, n_bytes)

    async def _ping(self, send: Send, ping: bytes, ping_s: float) -> None:
        while True:
            await asyncio.sleep(self._last_write + ping_s - time.monotonic())
            if time.monotonic() >= self._last_write + ping_s:
                await self._write(send, [ping], len(ping))

    async def _write(self, send: Send, pieces: Sequence[bytes], n_bytes: int) -> None:
        """Writes whole frames of `n_bytes` in total; other writes cannot come between their chunks."""
        async with self._sending:
            if n_bytes and not self._is_started:
                await self._start(send)
            for nth, frames in enumerate(_writes(pieces, n_bytes)):
                if nth:
                    await yield_fairly()
                await send({"type": "http.response.body", "body": frames, "more_body": True})
        self._last_write = time.monotonic()


def _writes(pieces: Sequence[bytes], n_bytes: int) -> Iterable[bytes]:
    """Joins chunks of `n_bytes` in total to as few writes as possible."""
    return (b"".join(pieces),) if 0 < n_bytes <= MAX_WRITE_BYTES else groups(pieces, MAX_WRITE_BYTES)


class ChunkedResponse(ASGIResponse):
    """A JSON response in chunks. Long responses are sent in several writes, between which other tasks run."""

    def __init__(self, pieces: Sequence[bytes], headers: Mapping[str, str] = MappingProxyType({})) -> None:
        size = sum(map(len, pieces))
        self._pieces = pieces if size > MAX_WRITE_BYTES else ()
        super().__init__(body=b"" if self._pieces else b"".join(pieces))
        self.headers["content-length"] = str(size)
        self.headers.update(headers)

    async def send_body(self, send: Send, receive: Receive) -> None:
        """Sends the body that the headers announce."""
        for group in groups(self._pieces, MAX_WRITE_BYTES):
            await send({"type": "http.response.body", "body": group, "more_body": True})
            await yield_fairly()
        await super().send_body(send, receive)


class CollectedResponse(ASGIResponse):
    """A JSON response that is collected until every branch has finished. Exceeding the memory budget ends it with an error."""

    def __init__(self, generation: Generation, encoder: Encoder, budget: MemoryBudget) -> None:
        super().__init__()
        self._budget = budget
        self._generation = generation
        self._encoder = encoder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Collects events, then responds. A disconnect cancels the generation at any time."""
        try:
            with Reservation(self._budget) as collected:
                await run_while_connected(self._collect(collected, scope, receive, send), receive)
        except Exception as error:
            self._encoder.failure(error)
            raise
        finally:
            self._generation.close()

    async def _collect(self, collected: Reservation, scope: Scope, receive: Receive, send: Send) -> None:
        time_slice = TimeSlice()
        while batches := await self._generation.next_batches():
            time_slice.begin()
            for prompt, event in ((prompt, event) for prompt, events in batches for event in events):
                collected.grow(self._encoder.add(prompt, event))
                # Reading events that are ready does not yield, and with a thousand logprobs each they are generated as fast as
                # they are read: without a pause, no other task would run until the end.
                if time.monotonic() >= time_slice.until:
                    time_slice.pause()
                    await time_slice.yield_to_others()
            time_slice.pause()
        headers = {**explanation_header(self._generation.explanations), REQUEST_ID: self._generation.id}
        await ChunkedResponse(self._encoder.body(), headers)(scope, receive, send)


class AwaitedResponse(ASGIResponse):
    """The result of an asynchronous computation, which a disconnect cancels: a response, or a value that is encoded as JSON."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Awaits the computation, then responds."""
        await run_while_connected(self._answer(scope, receive, send), receive)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        made = await self._work()
        response = made if isinstance(made, ASGIResponse) else ASGIResponse(body=msgspec.json.encode(made))
        await response(scope, receive, send)


class AwaitedChunks(AwaitedResponse):
    """JSON that an asynchronous computation makes in chunks, which count toward the memory budget; a disconnect cancels it."""

    def __init__(self, work: Callable[[Reservation], Coroutine[Any, Any, Sequence[bytes]]], budget: MemoryBudget) -> None:
        self._collected = Reservation(budget)
        self._pieces = partial(work, self._collected)
        super().__init__(self._pieces)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._collected:
            await ChunkedResponse(await self._pieces())(scope, receive, send)


class Answer(Response[Body]):
    """Return type of handlers: wraps a response, bypassing Litestar's serialization. `Body` documents the JSON's schema."""

    def __init__(self, answer: ASGIResponse) -> None:
        super().__init__(cast("Body", None))
        self._answer = answer

    def to_asgi_response(self, *_args: object, **_kwargs: object) -> ASGIResponse:
        """Returns the wrapped response."""
        return self._answer
