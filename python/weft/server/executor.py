"""Worker threads that keep long work on texts and media off the event loop."""

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import ParamSpec, TypeVar

from weft._native import Cancellation
from weft.server.errors import TextsWaitingError
from weft.server.streaming.client_timeouts import cancel_on_disconnect
from weft.work.threads import LONG_TEXT, WorkerPool

T = TypeVar("T")
P = ParamSpec("P")

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
    CACHE_QUERY = "cache-query"
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


_WAITING = {Purpose.MEDIA: "{0} bytes of images and audio are waiting", Purpose.ADDRESS: "{1} DNS lookups are waiting"}
"""Messages of [`TextsWaitingError`] for work on other things than texts; {0} is the size, {1} the number of small
tasks."""


class Executor:
    """Worker threads for long work: one for each purpose, and one more for very long work. They start on first use."""

    def __init__(self) -> None:
        self._pools = {
            (purpose, is_very_long): WorkerPool(
                f"{purpose.value}{'-long' * is_very_long}",
                n_threads=1,
                niceness=NICENESS_OF_PROMPTS if purpose is Purpose.PROMPT and not is_very_long else NICENESS,
            )
            for purpose in Purpose
            for is_very_long in (False, True)
        }

    def size(self, purpose: Purpose) -> int:
        """Returns the characters, tokens or bytes queued or running for a purpose. Small tasks count as [`LONG_TEXT`]."""
        return sum(pool.size for (of, _), pool in self._pools.items() if of is purpose)

    async def run(self, purpose: Purpose, size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
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

    async def run_in_thread(self, purpose: Purpose, size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs work on a worker thread regardless of its size; otherwise like [`run`]."""
        size = max(size, LONG_TEXT)
        pool = self._pool(purpose, size)
        return await pool.run(partial(work, *args, **kwargs), size, wait=cancel_on_disconnect)

    def start(self, purpose: Purpose, work: Callable[[], object]) -> None:
        """Starts small work on a worker thread without waiting for it.

        Raises:
            TextsWaitingError: The queue is full.
        """
        self._pool(purpose, LONG_TEXT).submit(work, Cancellation(), LONG_TEXT)

    def _pool(self, purpose: Purpose, size: int) -> WorkerPool:
        """Returns the thread for work of a size. Only the event loop queues work, so the size cannot grow meanwhile.

        Raises:
            TextsWaitingError: The queue would exceed its limit.
        """
        pool = self._pools[purpose, size > VERY_LONG_TEXT]
        if pool.size and pool.size + size > MAX_WAITING:
            raise TextsWaitingError(
                _WAITING.get(purpose, "{0} characters and tokens of text are waiting").format(pool.size, pool.size // LONG_TEXT)
            )
        return pool

    def close(self) -> None:
        """Stops the threads once their running work is done; drops queued work."""
        for pool in self._pools.values():
            pool.close()
