"""Worker threads that keep long work on texts and media off the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from functools import partial
from threading import Lock
from typing import Generic, ParamSpec, TypeVar

from weft._native import Cancellation, lower_priority
from weft.server.errors import TextsWaitingError
from weft.server.streaming.client_timeouts import cancel_on_disconnect
from weft.work.threads import LONG_TEXT

__all__ = ["LONG_TEXT", "MAX_WAITING", "VERY_LONG_TEXT", "Executor", "Purpose"]

Made = TypeVar("Made")
Given = ParamSpec("Given")

VERY_LONG_TEXT = 262_144
"""Work on more characters or tokens than this (a tenth of a second) runs on a separate thread for very long work."""

MAX_WAITING = 64 * 1024 * 1024
"""Maximum characters, tokens or bytes that may be queued or running for one purpose and size class. A single task above it is
accepted if the queue is empty."""


NICENESS = 7
"""Niceness of the native code's work on texts, relative to the threads that compute tokens, as for nice(2). The compute threads
synchronize many times in a step: a step takes a hundred times as long if one of them shares its core with a thread of the same
priority. The worker threads themselves keep their priority: they hold the GIL at times, and a low priority would delay all
threads that wait for it."""

NICENESS_OF_PROMPTS = 3
"""Niceness for prompts of ordinary length, whose clients wait for the first token."""


class Purpose(Enum):
    """Purpose of work. Each purpose has its own queues and threads."""

    PROMPT = "prompt"
    """Preparing a request for the engine: prompts, chat template, grammar."""
    TEXT = "text"
    """Tokenizing, detokenizing or rendering a template for its own sake."""
    SIGHT = "sight"
    """Reading the contents of the cache."""
    FILE = "file"
    """Reading a static file."""
    SLOT_FILE = "slot-file"
    """A slot's file."""
    MEDIA = "media"
    """Decoding an image or audio file; sizes are the file's bytes."""
    ADDRESS = "address"
    """DNS lookup."""
    DOCS = "docs"
    """Generating the API documentation."""


_WAITING = {Purpose.MEDIA: "pictures and sounds of {} bytes are waiting", Purpose.ADDRESS: "names of hosts are waiting"}
"""Messages of [`TextsWaitingError`] for work on other things than texts; the braces receive the size."""


class _Job(Generic[Made]):
    """A callable and its cancellation.

    Releases the callable when its future is done, since the thread may dequeue the job long after.
    """

    def __init__(self, work: Callable[[], Made], cancellation: Cancellation) -> None:
        self._work: Callable[[], Made] | None = work
        self._cancellation = cancellation

    def __call__(self) -> Made:
        assert self._work is not None, "what was dropped is cancelled, and never called"
        return self._cancellation.run(self._work)

    def drop(self, _: "Future[Made]") -> None:
        self._work = None


class _WorkerThread:
    """A worker thread and its FIFO queue."""

    def __init__(self, name: str, niceness: int, what: str) -> None:
        self._thread = ThreadPoolExecutor(1, f"weft-{name}", lower_priority, (niceness,))
        self._lock = Lock()
        self._what = what
        self._size = 0

    def submit(self, size: int, work: Callable[[], Made], cancellation: Cancellation) -> "Future[Made]":
        """Queues work on `size` characters or tokens, with `cancellation` active while it runs.

        Raises:
            TextsWaitingError: The queue would exceed its limit.
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
        """Size of the running and the queued work."""
        with self._lock:
            return self._size

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


class Executor:
    """Worker threads for long work. They start on first use."""

    def __init__(self) -> None:
        self._workers = {
            (purpose, is_very_long): _WorkerThread(
                f"{purpose.value}{'-long' * is_very_long}",
                NICENESS_OF_PROMPTS if purpose is Purpose.PROMPT and not is_very_long else NICENESS,
                _WAITING.get(purpose, "texts of {} characters and tokens are waiting"),
            )
            for purpose in Purpose
            for is_very_long in (False, True)
        }

    def size(self, purpose: Purpose) -> int:
        """Returns the characters, tokens or bytes queued or running for a purpose. Small tasks count as [`LONG_TEXT`]."""
        return sum(lane.size for (of, _), lane in self._workers.items() if of is purpose)

    async def run(
        self, purpose: Purpose, size: int, work: Callable[Given, Made], *args: Given.args, **kwargs: Given.kwargs
    ) -> Made:
        """Runs work on `size` characters or tokens: directly if they are few, else on a worker thread.

        If the client disconnects or the caller is cancelled, queued work is dropped and the result of running work discarded.
        Tokenizing stops between chunks: of 64 KiB with SentencePiece vocabularies, and of 256 KiB plus the rest of the line with
        BPE. Texts for other vocabularies, and single lines with BPE, are tokenized to the end.

        Raises:
            ClientDisconnectedError: The client has disconnected.
            TextsWaitingError: The queue is full.
        """
        if size <= LONG_TEXT:
            return work(*args, **kwargs)
        return await self.run_in_thread(purpose, size, work, *args, **kwargs)

    async def run_in_thread(
        self, purpose: Purpose, size: int, work: Callable[Given, Made], *args: Given.args, **kwargs: Given.kwargs
    ) -> Made:
        """Runs work on a worker thread regardless of its size; otherwise like [`run`]."""
        lane = self._workers[purpose, size > VERY_LONG_TEXT]
        cancellation = Cancellation()
        future = lane.submit(max(size, LONG_TEXT), partial(work, *args, **kwargs), cancellation)
        try:
            return await cancel_on_disconnect(asyncio.wrap_future(future))
        finally:
            # Immediately, so that the next task can use the queue's space.
            future.cancel()
            cancellation.cancel()
            # The error's traceback refers to this frame: with the future, which holds the error, it would form a reference cycle.
            del future

    def start(self, purpose: Purpose, work: Callable[[], object]) -> None:
        """Starts small work on a worker thread without waiting for it.

        Raises:
            TextsWaitingError: The queue is full.
        """
        self._workers[purpose, False].submit(LONG_TEXT, work, Cancellation())

    def close(self) -> None:
        """Stops the threads once their running work is done; drops queued work."""
        for lane in self._workers.values():
            lane.close()
