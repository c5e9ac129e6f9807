"""Streams that are written whether anybody reads them or not, and that can be read again from any byte that is still kept."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import Context

from litestar.response.base import ASGIResponse
from litestar.types import Message, Receive, Scope, Send

from weft.server.errors import NobodyReadsError, OffsetLostError, StreamEndedError, StreamsFullError
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
    "OWN_BYTES",
    "Recorded",
    "Recording",
    "Recordings",
]

logger = logging.getLogger(__name__)

MAX_BYTES = 4 * 1024 * 1024
"""Most bytes that are kept of one stream, the last ones; as in llama-server."""

MAX_TOGETHER_BYTES = 256 * 1024 * 1024
"""Most bytes that are kept of all of them. Where it is reached, the key that has most gives way: of its streams those that have
ended are forgotten, and then less is kept of those that nobody reads."""

OWN_BYTES = 128 * 1024
"""So much of each is kept whatever is kept of the others."""

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

    def __init__(
        self,
        make: "Callable[[Recording], None]" = lambda _: None,
        forget: "Callable[[Recording], None]" = lambda _: None,
    ) -> None:
        self.n_bytes = 0
        self.make = make
        """Makes room for what a recording has just taken."""
        self.forget = forget
        """Forgets a recording some time after its end."""

    @property
    def is_full(self) -> bool:
        """Whether somebody must give way to whoever takes more."""
        return self.n_bytes + MAX_WRITE_BYTES > MAX_TOGETHER_BYTES


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
        self._n_read = 0
        """Bytes that the reader has who has most."""
        self._was_read = asyncio.Event()
        self._is_kept = True
        self._timer: asyncio.TimerHandle | None = None
        """When it ends because nobody reads it, or, once it has ended, when it is forgotten."""
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

    @property
    def is_read(self) -> bool:
        """Whether somebody reads it."""
        return self._n_readers > 0

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
        self._is_kept = False
        self._stop_timer()

    async def begun(self) -> None:
        """Waits until something was written.

        Raises:
            Exception: what went wrong before, which is answered as it would be without a recording.
        """
        while self.headers is None and not self.is_ended:
            await self._news.wait()
        if self.headers is None and self._failure is not None:
            # Each that waits raises the same object: where it has passed for the others is nothing to this one.
            raise self._failure.with_traceback(None)

    async def read(self, offset: int) -> bytes:
        """What was written from a byte on, at most as much as one write takes; it waits for that, and is empty at the end.

        Raises:
            OffsetLostError: it is no longer kept.
        """
        if offset > self._n_read:
            self._n_read = min(offset, self.n_bytes)
            self._was_read.set()
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
        if not self.is_ended:
            self._stop_timer()
        try:
            yield
        finally:
            self._n_readers -= 1
            self._was_read.set()
            self._be_patient()

    async def stop(self) -> None:
        """Ends the writing, and frees its slot. Who reads it is told."""
        if not self.is_ended:
            self._failure = StreamEndedError()
            self._writing.cancel()
        await asyncio.gather(self._writing, return_exceptions=True)
        # One that is cancelled before its first step is never entered.
        self._end()

    def _be_patient(self) -> None:
        """From now on somebody must come in time, unless somebody is there."""
        if self._n_readers == 0 and self._grace_s is not None and not self.is_ended:
            self._timer = asyncio.get_running_loop().call_later(self._grace_s, self._give_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

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
            if isinstance(self._failure, NobodyReadsError | StreamEndedError) and self.headers is not None:
                self._add(answer.failure(self._failure))
            self._end()

    def _end(self) -> None:
        # What is kept is bytes; what made them is not.
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()
        if self.ended_s is None:
            self.ended_s = int(time.time())
            self._stop_timer()
            if self._is_kept:
                self._timer = asyncio.get_running_loop().call_later(KEPT_S, self._room.forget, self)
            self._tell()

    async def _take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.headers = list(message["headers"])
        elif message["type"] == "http.response.body":
            body = message["body"]
            for begin in range(0, len(body), MAX_WRITE_BYTES):
                part = body[begin : begin + MAX_WRITE_BYTES]
                await self._wait_for_reader(len(part))
                self._add(part)
                self._tell()
        self._tell()

    async def _wait_for_reader(self, n_bytes: int) -> None:
        """Waits as long as somebody reads who would lose something by so much more.

        Who reads nothing for as long as it would be written with nobody there is not waited for.
        """
        while self.is_read and self._grace_s is not None and self._would_be_lost(n_bytes):
            self._was_read.clear()
            try:
                async with asyncio.timeout(self._grace_s):
                    await self._was_read.wait()
            except TimeoutError:
                self._n_read = self.n_bytes

    def _would_be_lost(self, n_bytes: int) -> bool:
        n_unread = self.n_bytes - self._n_read
        return n_unread > 0 and n_unread + n_bytes > (OWN_BYTES if self._room.is_full else MAX_BYTES)

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
        self._room = _Room(self._make_room, self._forget_old)

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
            if len(self._all) >= MAX_STREAMS and not self._forget_ended(Counter(whose for whose, _ in self._all)):
                raise StreamsFullError(MAX_STREAMS)
        except BaseException:
            answer.close()
            raise
        recording = self._all[owner, name] = Recording(name, answer, self._awake, self._room, grace_s)
        return recording

    def find(self, owner: Owner, name: str) -> Recording | None:
        """The stream of this name; None where there is none, or it has ended too long ago."""
        return self._all.get((owner, name))

    def of_conversations(self, owner: Owner, names: Sequence[str]) -> list[Recording]:
        """The streams of these names, and of these names with `::` and more behind them, in the order of the names."""
        wanted: dict[str, list[Recording]] = {name: [] for name in names}
        lengths = {len(name) for name in names}
        for (whose, name), recording in self._all.items():
            if whose == owner:
                for known in _beginnings(name, lengths) & wanted.keys():
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

    def _forget_old(self, recording: Recording) -> None:
        for key in [key for key, one in self._all.items() if one is recording]:
            self._forget(key)

    def _forget_ended(self, taken: "Counter[Owner]") -> bool:
        """Forgets the oldest stream that has ended, of the key that has taken most; whether there was one."""
        ended = {key: recording.ended_s for key, recording in self._all.items() if recording.ended_s is not None}
        if not ended:
            return False
        self._forget(max(ended, key=lambda key: (taken[key[0]], -ended[key])))
        return True

    def _make_room(self, writer: Recording) -> None:
        while (n_over := self._room.n_bytes - MAX_TOGETHER_BYTES) > 0:
            taken: Counter[Owner] = Counter()
            for (owner, _), recording in self._all.items():
                taken[owner] += recording.n_kept
            if not any(self._give_way(owner, taken, n_over) for owner, _ in taken.most_common()):
                # All the others are read; its own reader has what goes.
                writer.drop(max(min(n_over, writer.n_kept - OWN_BYTES), 0))
                return

    def _give_way(self, owner: Owner, taken: "Counter[Owner]", n_bytes: int) -> bool:
        """Takes some of what is kept for a key; whether there was anything to take."""
        theirs = [recording for (whose, _), recording in self._all.items() if whose == owner]
        if any(recording.is_ended for recording in theirs):
            return self._forget_ended(Counter({owner: taken[owner]}))
        unread = [recording for recording in theirs if not recording.is_read and recording.n_kept > OWN_BYTES]
        if unread:
            largest = max(unread, key=lambda recording: recording.n_kept)
            # So much at once that it is not looked for at every write.
            largest.drop(min(max(n_bytes, OWN_BYTES), largest.n_kept - OWN_BYTES))
        return bool(unread)


def _beginnings(name: str, lengths: set[int]) -> set[str]:
    """Of a name, and what stands before each `::` in it, what is of one of these lengths."""
    ends = (length for length in lengths if len(name) == length or name.startswith("::", length))
    return {name[:length] for length in ends}
