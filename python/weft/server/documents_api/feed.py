"""Events of documents: one resumable stream per client has all changes of its documents."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from secrets import token_hex

import msgspec
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from weft.server.documents_api.events import DocumentEvent, ReadyEvent, ResetEvent
from weft.server.streaming import sse
from weft.server.streaming.client_timeouts import run_while_connected
from weft.server.streaming.fair_scheduler import yield_fairly
from weft.server.streaming.recording import Owner
from weft.server.streaming.responses import MAX_WRITE_BYTES

MAX_FEED_BYTES = 4 * 1024 * 1024
"""Maximum buffered events of an owner, in bytes, the latest ones. Clients that missed earlier ones receive
`ResetEvent`."""

_encode = msgspec.json.Encoder().encode


class Feed:
    """Events of one owner, for any number of readers, none of which delays the writer."""

    def __init__(self, epoch: str) -> None:
        self._epoch = epoch
        self._frames: deque[bytes] = deque()
        self._n_dropped = 0
        self.n_bytes = 0
        """Bytes of the buffered events."""
        self._changed = asyncio.Event()
        self.is_closed = False

    @property
    def n_events(self) -> int:
        """Number of events so far, which is the position after the last one."""
        return self._n_dropped + len(self._frames)

    @property
    def cursor(self) -> str:
        """Position after the last event, as clients send it to resume."""
        return self._cursor(self.n_events)

    def _cursor(self, position: int) -> str:
        return f"{self._epoch}-{position}"

    def publish(self, event: DocumentEvent) -> None:
        """Adds an event, and drops the oldest ones beyond `MAX_FEED_BYTES`."""
        frame = self.frame(event, self.n_events + 1)
        self._frames.append(frame)
        self.n_bytes += len(frame)
        while self.n_bytes > MAX_FEED_BYTES and len(self._frames) > 1:
            self.n_bytes -= len(self._frames.popleft())
            self._n_dropped += 1
        self._notify()

    def frame(self, event: DocumentEvent | ReadyEvent | ResetEvent, position: int) -> bytes:
        """Returns a server-sent event whose id is the position after it."""
        name = type(event).__struct_config__.tag
        return f"id: {self._cursor(position)}\nevent: {name}\n".encode() + b"data: " + _encode(event) + b"\n\n"

    def position(self, cursor: str | None) -> int | None:
        """Returns the position of a cursor; the current one without a cursor, and None if its events are no longer buffered."""
        if not cursor:
            return self.n_events
        epoch, _, number = cursor.rpartition("-")
        position = int(number) if number.isdecimal() and len(number) < 16 else -1
        return position if epoch == self._epoch and self._n_dropped <= position <= self.n_events else None

    def read(self, position: int) -> list[bytes] | None:
        """Returns buffered events from a position on, about `MAX_WRITE_BYTES` at most; None if some of them were dropped."""
        if position < self._n_dropped:
            return None
        frames: list[bytes] = []
        n_bytes = 0
        for nth in range(position - self._n_dropped, len(self._frames)):
            frames.append(self._frames[nth])
            n_bytes += len(frames[-1])
            if n_bytes >= MAX_WRITE_BYTES:
                break
        return frames

    async def wait(self) -> None:
        """Waits for the next event, or for `close`."""
        await self._changed.wait()

    def close(self) -> None:
        """Ends all streams of the feed."""
        self.is_closed = True
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class Feeds:
    """The feeds of all owners: one for each API key."""

    def __init__(self) -> None:
        self._epoch = token_hex(4)
        self._feeds: dict[Owner, Feed] = {}
        self._is_closed = False

    def of(self, owner: Owner) -> Feed:
        """Returns the feed of an owner."""
        if owner not in self._feeds:
            self._feeds[owner] = Feed(self._epoch)
            self._feeds[owner].is_closed = self._is_closed
        return self._feeds[owner]

    def close(self) -> None:
        """Ends all streams."""
        self._is_closed = True
        for feed in self._feeds.values():
            feed.close()


class FeedResponse(ASGIResponse):
    """A stream of events from a cursor on. It ends when the client disconnects or the server stops."""

    def __init__(self, feed: Feed, cursor: str | None, ping_s: float | None, max_s: float | None = None) -> None:
        """Creates a stream.

        Args:
            feed: The events.
            cursor: Position at which it begins; None is the present.
            ping_s: Seconds of silence after which a comment is sent; None sends none.
            max_s: Seconds after which the stream ends; None is never.
        """
        super().__init__()
        self._max_s = max_s
        self._feed = feed
        self._cursor = cursor
        self._ping_s = ping_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Sends events until the end."""
        await run_while_connected(self._send(send), receive)

    async def _send(self, send: Send) -> None:
        feed = self._feed
        position = feed.position(self._cursor)
        headers = [(name.encode(), value.encode()) for name, value in sse.HEADERS.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

        async def write(frames: Sequence[bytes]) -> None:
            await send({"type": "http.response.body", "body": b"".join(frames), "more_body": True})

        begin: ReadyEvent | ResetEvent = ReadyEvent()
        if position is None:
            position, begin = feed.n_events, ResetEvent()
        await write([feed.frame(begin, position)])
        with suppress(TimeoutError):
            async with asyncio.timeout(self._max_s):
                await self._follow(position, write)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _follow(self, position: int, write: Callable[[Sequence[bytes]], Awaitable[None]]) -> None:
        """Writes events from a position on, until the feed is closed."""
        feed = self._feed
        while not feed.is_closed:
            frames = feed.read(position)
            if frames is None:
                position = feed.n_events
                await write([feed.frame(ResetEvent(), position)])
            elif frames:
                position += len(frames)
                await write(frames)
                await yield_fairly()
            else:
                try:
                    async with asyncio.timeout(self._ping_s):
                        await feed.wait()
                except TimeoutError:
                    await write([sse.PING])
