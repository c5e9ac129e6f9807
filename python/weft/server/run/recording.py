"""Streams that are written whether anybody reads them or not, and that can be read again from any byte that is still kept."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import Context

from litestar.response.base import ASGIResponse
from litestar.types import Message, Receive, Scope, Send

from weft.server.errors import NobodyReadsError, OffsetLostError, StreamsFullError
from weft.server.run import sse
from weft.server.run.stream import MAX_WRITE_BYTES, StreamedAnswer, run_while_connected
from weft.server.run.writing import next_turn

__all__ = [
    "GRACE_S",
    "KEPT_S",
    "MAX_BYTES",
    "MAX_NAME",
    "MAX_STREAMS",
    "MAX_TOGETHER_BYTES",
    "Recorded",
    "Recording",
    "Recordings",
]

logger = logging.getLogger(__name__)

MAX_BYTES = 4 * 1024 * 1024
"""Most bytes that are kept of one stream, the last ones; as in llama-server."""

MAX_TOGETHER_BYTES = 256 * 1024 * 1024
"""Most bytes that are kept of all of them: those that have ended go first, and then each keeps less of what it writes."""

MAX_STREAMS = 1_024
"""Most streams that are kept; of those that have ended the oldest go first."""

KEPT_S = 300.0
"""Seconds for which a stream is kept after its end; as in llama-server."""

GRACE_S = 60.0
"""Seconds for which a stream is written that nobody reads. In llama-server it is written to its end, and only who asks for that
ends it; here a client that does not come back gives its slot to others."""

MAX_NAME = 256
"""Most characters of a stream's name."""

Owner = str | None
"""Whose key was shown, as a digest of it; None where the server has no keys."""

Awake = Callable[[], AbstractAsyncContextManager[None]]
"""Holds the model loaded."""


class _Room:
    """What recordings take together."""

    def __init__(self, make: "Callable[[Recording], None]" = lambda _: None) -> None:
        self.n_bytes = 0
        self.make = make
        """Makes room for what a recording has just taken."""


class Recording:
    """One stream: a task of its own writes it, and any number of readers read it."""

    def __init__(
        self,
        name: str,
        answer: StreamedAnswer,
        awake: Awake,
        room: "_Room",
        grace_s: float | None,
    ) -> None:
        self.name = name
        self.started_s = int(time.time())
        """When it began, in seconds since 1970."""
        self.ended_s: int | None = None
        """When it ended, likewise."""
        self.n_bytes = 0
        """Bytes that were written so far, those that are no longer kept among them."""
        self.headers: Sequence[tuple[bytes, bytes]] | None = None
        """Those of the answer, once it has begun."""
        self._answer: StreamedAnswer | None = answer
        """What writes it, until it has ended."""
        self._awake = awake
        self._room = room
        self._grace_s = grace_s
        self._kept = bytearray()
        self._news = asyncio.Event()
        self._failure: Exception | None = None
        self._n_readers = 0
        self._leaving: asyncio.TimerHandle | None = None
        # No part of the request that begins it: its client may leave.
        self._writing = asyncio.create_task(self._write(answer), context=Context())
        self._be_patient()

    @property
    def n_kept(self) -> int:
        """Bytes that are kept."""
        return len(self._kept)

    @property
    def n_dropped(self) -> int:
        """Bytes from the beginning that are no longer kept."""
        return self.n_bytes - len(self._kept)

    @property
    def is_ended(self) -> bool:
        """Whether nothing more will be written."""
        return self.ended_s is not None

    def kept(self) -> bytes:
        """All that is kept."""
        return bytes(self._kept)

    def drop(self, n_bytes: int) -> None:
        """Keeps so many bytes less, from the beginning."""
        del self._kept[:n_bytes]
        self._room.n_bytes -= n_bytes

    def let_go(self) -> None:
        """What is kept no longer counts: only those who read it now have it."""
        self._room.n_bytes -= len(self._kept)
        self._room = _Room()

    async def begun(self) -> None:
        """Waits until something was written.

        Raises:
            Exception: what went wrong before, which is answered as it would be without a recording.
        """
        while self.headers is None and not self.is_ended:
            await self._news.wait()
        if self.headers is None and self._failure is not None:
            raise self._failure

    async def read(self, offset: int) -> bytes:
        """What was written from a byte on, at most as much as one write takes; it waits for that, and is empty at the end.

        Raises:
            OffsetLostError: it is no longer kept.
        """
        while True:
            if offset < self.n_dropped:
                raise OffsetLostError(offset, self.n_dropped)
            if offset < self.n_bytes:
                begin = offset - self.n_dropped
                return bytes(self._kept[begin : begin + MAX_WRITE_BYTES])
            if self.is_ended:
                return b""
            await self._news.wait()

    @contextmanager
    def reader(self) -> Iterator[None]:
        """Somebody reads, until the block is left."""
        self._n_readers += 1
        if self._leaving is not None:
            self._leaving.cancel()
        try:
            yield
        finally:
            self._n_readers -= 1
            self._be_patient()

    async def stop(self) -> None:
        """Ends the writing, and frees its slot."""
        self._writing.cancel()
        await asyncio.gather(self._writing, return_exceptions=True)
        # One that is cancelled before its first step is never entered.
        self._end()

    def _be_patient(self) -> None:
        """From now on somebody must come in time, unless somebody is there."""
        if self._n_readers == 0 and self._grace_s is not None and not self.is_ended:
            self._leaving = asyncio.get_running_loop().call_later(self._grace_s, self._give_up)

    def _give_up(self) -> None:
        if self._n_readers == 0 and not self.is_ended and self._grace_s is not None:
            logger.info("a stream ends that nobody has read for %g s", self._grace_s)
            self._failure = NobodyReadsError(self._grace_s)
            self._writing.cancel()

    async def _write(self, answer: StreamedAnswer) -> None:
        try:
            async with self._awake():
                await answer.write(self._take)
        except Exception as error:  # noqa: BLE001 (it is told to who reads)
            # Where it has passed knows this object, which would know it.
            self._failure = error.with_traceback(None)
            # The answer has told it of what went wrong within; what went wrong before it is told here.
            answer.failure(error)
        finally:
            if isinstance(self._failure, NobodyReadsError) and self.headers is not None:
                self._add(answer.failure(self._failure))
            self._end()

    def _end(self) -> None:
        # What is kept is bytes; what made them is not.
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()
        if self.ended_s is None:
            self.ended_s = int(time.time())
            self._tell()

    async def _take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.headers = list(message["headers"])
        elif message["type"] == "http.response.body":
            self._add(message["body"])
        self._tell()

    def _add(self, written: bytes) -> None:
        self._kept += written
        self.n_bytes += len(written)
        self._room.n_bytes += len(written)
        self.drop(max(len(self._kept) - MAX_BYTES, 0))
        self._room.make(self)

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class Recorded(ASGIResponse):
    """The answer that reads a recording, from a byte on, and waits for what is still being written."""

    def __init__(self, recording: Recording, offset: int = 0) -> None:
        super().__init__()
        self.recording = recording
        self._offset = offset

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Sends until the end, or until the client leaves, which ends nothing but this answer."""
        with self.recording.reader():
            await run_while_connected(self._send(send), receive)

    async def _send(self, send: Send) -> None:
        recording, offset = self.recording, self._offset
        await recording.begun()
        await send({"type": "http.response.start", "status": 200, "headers": recording.headers or _SSE_HEADERS})
        try:
            while part := await recording.read(offset):
                await send({"type": "http.response.body", "body": part, "more_body": True})
                offset += len(part)
                if len(part) == MAX_WRITE_BYTES:
                    await next_turn()
            tail = b""
        except OffsetLostError as error:  # It was read more slowly than written.
            tail = sse.error_frame(error)
        await send({"type": "http.response.body", "body": tail, "more_body": False})


_SSE_HEADERS = [(name.encode(), value.encode()) for name, value in sse.HEADERS.items()]


class Recordings:
    """The streams of one server, each by the key that it was asked for with and its name there.

    Args:
        awake: Holds the model loaded.
    """

    def __init__(self, awake: Awake) -> None:
        self._awake = awake
        self._all: dict[tuple[Owner, str], Recording] = {}
        self._room = _Room(self._make_room)

    async def begin(self, owner: Owner, name: str, answer: StreamedAnswer, *, grace_s: float | None) -> Recording:
        """Writes a stream. One of the same name ends before.

        Args:
            owner: Whose it is; nobody else finds it.
            name: What it is found by.
            answer: What writes it.
            grace_s: Seconds for which it is written while nobody reads it; None has no limit.

        Raises:
            StreamsFullError: there are too many that have not ended.
        """
        try:
            # While one ends another may have begun.
            while (owner, name) in self._all:
                await self.end(owner, name)
            self._forget_old()
            self._forget_ended(lambda: len(self._all) >= MAX_STREAMS)
            if len(self._all) >= MAX_STREAMS:
                raise StreamsFullError(MAX_STREAMS)
        except BaseException:
            answer.close()
            raise
        recording = self._all[owner, name] = Recording(name, answer, self._awake, self._room, grace_s)
        return recording

    def find(self, owner: Owner, name: str) -> Recording | None:
        """The stream of this name; None where there is none, or it has ended too long ago."""
        self._forget_old()
        return self._all.get((owner, name))

    def of_conversations(self, owner: Owner, names: Sequence[str]) -> list[Recording]:
        """The streams of these names, and of these names with `::` and more behind them, in the order of the names."""
        self._forget_old()
        wanted: dict[str, list[Recording]] = {name: [] for name in names}
        for (whose, name), recording in self._all.items():
            if whose == owner:
                for known in _beginnings(name) & wanted.keys():
                    wanted[known].append(recording)
        return list(dict.fromkeys(recording for found in wanted.values() for recording in found))

    async def end(self, owner: Owner, name: str) -> None:
        """Ends a stream and forgets it; nothing where there is none."""
        if (recording := self._all.get((owner, name))) is not None:
            self._forget((owner, name))
            await recording.stop()

    async def close(self) -> None:
        """Ends all of them."""
        for owner, name in list(self._all):
            await self.end(owner, name)

    def _forget(self, key: tuple[Owner, str]) -> None:
        self._all.pop(key).let_go()

    def _forget_old(self) -> None:
        oldest = time.time() - KEPT_S
        for key, recording in list(self._all.items()):
            if recording.ended_s is not None and recording.ended_s < oldest:
                self._forget(key)

    def _forget_ended(self, is_too_much: Callable[[], bool]) -> None:
        """Forgets what has ended, the oldest first, as long as it is too much."""
        if not is_too_much():
            return
        ended = {key: recording.ended_s for key, recording in self._all.items() if recording.ended_s is not None}
        for key in sorted(ended, key=ended.__getitem__):
            if not is_too_much():
                return
            self._forget(key)

    def _make_room(self, writer: Recording) -> None:
        self._forget_ended(lambda: self._room.n_bytes > MAX_TOGETHER_BYTES)
        writer.drop(min(max(self._room.n_bytes - MAX_TOGETHER_BYTES, 0), writer.n_kept))


def _beginnings(name: str) -> set[str]:
    """A name, and what stands before each `::` in it."""
    parts = name.split("::")
    return {"::".join(parts[:n]) for n in range(1, len(parts) + 1)}
