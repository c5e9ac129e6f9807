"""Work on texts, and on pictures and sounds, beside the event loop that serves everybody."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from functools import partial
from threading import Lock
from typing import Generic, ParamSpec, TypeVar

from weft._native import Cancellation, lower_priority
from weft.server.errors import TextsWaitingError
from weft.server.run.patience import unless_left
from weft.work.threads import LONG_TEXT

__all__ = ["LONG_TEXT", "MAX_WAITING", "VERY_LONG_TEXT", "Aside", "Purpose"]

Made = TypeVar("Made")
Given = ParamSpec("Given")

VERY_LONG_TEXT = 262_144
"""More characters or tokens than this, a tenth of a second of work, wait for a thread that does no other work."""

MAX_WAITING = 64 * 1024 * 1024
"""Characters and tokens, or bytes, of one purpose and length, that may wait or be worked on; more are refused, but never one work
alone."""


NICENESS = 7
"""How far the engine's work on a text steps back from the threads that compute tokens, as nice(2) counts it. These wait for each
other many times in a step, so that it takes a hundred times as long where one has to share its core with a thread that is worth
as much. The threads here do not step back themselves: they hold the interpreter now and then, and all others would wait for it
with them."""

NICENESS_OF_PROMPTS = 3
"""The same of prompts of a usual length: somebody waits for their first token."""


class Purpose(Enum):
    """What work is for. Work for one purpose never waits for work for another."""

    PROMPT = "prompt"
    """A request for the engine: its prompts, its chat, its grammar."""
    TEXT = "text"
    """A text that is to be tokenized, made of tokens, or written by the template, and no more."""
    SIGHT = "sight"
    """A look at the cache."""
    FILE = "file"
    """A file of the folder that is served."""
    SLOT_FILE = "slot-file"
    """A file of what a slot holds."""
    MEDIA = "media"
    """A picture or a sound that is decoded, by the bytes of its file."""
    ADDRESS = "address"
    """The name of a host that is looked up."""
    DOCS = "docs"
    """The page of the routes."""


_WAITING = {Purpose.MEDIA: "pictures and sounds of {} bytes are waiting", Purpose.ADDRESS: "names of hosts are waiting"}
"""What is told of work that waits, where it is about no texts; its size takes the place of the braces."""


class _Job(Generic[Made]):
    """Some work, and what it is about. Dropped, it is nothing: a thread may come to it long after its client has left."""

    def __init__(self, work: Callable[[], Made], cancellation: Cancellation) -> None:
        self._work: Callable[[], Made] | None = work
        self._cancellation = cancellation

    def __call__(self) -> Made:
        assert self._work is not None, "what was dropped is cancelled, and never called"
        return self._cancellation.run(self._work)

    def drop(self, _: "Future[Made]") -> None:
        self._work = None


class _Lane:
    """One thread, and the work that waits for it in the order of its coming."""

    def __init__(self, name: str, niceness: int, what: str) -> None:
        self._thread = ThreadPoolExecutor(1, f"weft-{name}", lower_priority, (niceness,))
        self._lock = Lock()
        self._what = what
        self._size = 0

    def begin(self, size: int, work: Callable[[], Made], cancellation: Cancellation) -> "Future[Made]":
        """Queues work on `size` characters or tokens, in which `cancellation` is active.

        Raises:
            TextsWaitingError: it would be more than may wait.
        """
        with self._lock:
            if self._size and self._size + size > MAX_WAITING:
                raise TextsWaitingError(self._what.format(self._size))
            self._size += size
        job = _Job(work, cancellation)
        future = self._thread.submit(job)
        future.add_done_callback(job.drop)
        future.add_done_callback(lambda _: self._leave(size))
        return future

    def _leave(self, size: int) -> None:
        with self._lock:
            self._size -= size

    @property
    def size(self) -> int:
        """What it works on, and what waits for it."""
        with self._lock:
            return self._size

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


class Aside:
    """Threads for work on texts; they start when they are first needed."""

    def __init__(self) -> None:
        self._lanes = {
            (purpose, is_very_long): _Lane(
                f"{purpose.value}{'-long' * is_very_long}",
                NICENESS_OF_PROMPTS if purpose is Purpose.PROMPT and not is_very_long else NICENESS,
                _WAITING.get(purpose, "texts of {} characters and tokens are waiting"),
            )
            for purpose in Purpose
            for is_very_long in (False, True)
        }

    def size(self, purpose: Purpose) -> int:
        """Characters and tokens, or bytes, that wait or are worked on for a purpose; work on few counts as if on `LONG_TEXT`."""
        return sum(lane.size for (of, _), lane in self._lanes.items() if of is purpose)

    async def work(
        self, purpose: Purpose, size: int, work: Callable[Given, Made], *args: Given.args, **kwargs: Given.kwargs
    ) -> Made:
        """Does work on `size` characters or tokens: at once if they are few, else on another thread.

        Where the client leaves, or the caller is cancelled, work that waits is not begun. What has begun ends unheard. Long texts
        are tokenized in chunks, between which this stops: 64 KiB with SentencePiece vocabularies, 256 KiB and the rest of the
        line with BPE; with other vocabularies, and within one endless line of BPE, a text is tokenized to its end.

        Raises:
            ClientLeftError: the client has left.
            TextsWaitingError: too much waits already.
        """
        if size <= LONG_TEXT:
            return work(*args, **kwargs)
        return await self.elsewhere(purpose, size, work, *args, **kwargs)

    async def elsewhere(
        self, purpose: Purpose, size: int, work: Callable[Given, Made], *args: Given.args, **kwargs: Given.kwargs
    ) -> Made:
        """Does work on another thread however little it is about; all else is as with `work`."""
        lane = self._lanes[purpose, size > VERY_LONG_TEXT]
        cancellation = Cancellation()
        future = lane.begin(max(size, LONG_TEXT), partial(work, *args, **kwargs), cancellation)
        try:
            return await unless_left(asyncio.wrap_future(future))
        finally:
            # At once, so that the next to come finds its room.
            future.cancel()
            cancellation.cancel()
            # An error knows this frame: with the future, which holds the error, it would be found by the collector alone.
            del future

    def begin(self, purpose: Purpose, work: Callable[[], object]) -> None:
        """Begins work on little, on another thread, for which nobody waits.

        Raises:
            TextsWaitingError: too much waits already.
        """
        self._lanes[purpose, False].begin(LONG_TEXT, work, Cancellation())

    def close(self) -> None:
        """Lets the threads end; work that waits is not begun."""
        for lane in self._lanes.values():
            lane.close()
