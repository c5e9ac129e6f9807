"""Thread pools for work that would block the event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from functools import partial
from threading import Lock
from typing import Generic, ParamSpec, TypeVar

from weft._native import Cancellation, lower_priority

T = TypeVar("T")
P = ParamSpec("P")

LONG_TEXT = 8_192
"""Number of characters or tokens above which a text is processed on another thread."""

N_THREADS = 4
"""Maximum threads per pool; they are started when needed."""


class ThreadPool(Enum):
    """A thread pool, by the kind of work that it runs. Pools do not wait for each other."""

    LIFE = "life"
    """Loading the model, and stopping the worker."""
    QUERY = "query"
    """A query that the worker answers after its current step."""
    ERASE = "erase"
    """A request to erase a slot, which is repeated while a sequence runs there."""
    FILE = "file"
    """Writing or reading a prefix file; disks may be slow."""
    TEXT = "text"
    """Tokenizing a long text, or rendering a chat."""
    MEDIA = "media"
    """Decoding an image or audio file."""


class _Job(Generic[T]):
    """A callable and its cancellation.

    Releases the callable when its future is done, since the thread may dequeue the job long after.
    """

    def __init__(self, work: Callable[[], T], cancellation: Cancellation) -> None:
        self._work: Callable[[], T] | None = work
        self._cancellation = cancellation

    def __call__(self) -> T:
        assert self._work is not None, "what was dropped is cancelled, and never called"
        return self._cancellation.run(self._work)

    def drop(self, _: "Future[T]") -> None:
        self._work = None


class WorkerPool:
    """Threads with a FIFO queue, started when needed.

    Args:
        name: Name of the threads.
        n_threads: Maximum number of threads.
        niceness: Niceness of native code on these threads, relative to the threads that compute tokens; None is theirs.
    """

    def __init__(self, name: str, *, n_threads: int = N_THREADS, niceness: int | None = None) -> None:
        prepare = None if niceness is None else partial(lower_priority, niceness)
        self._threads = ThreadPoolExecutor(n_threads, f"weft-{name}", prepare)
        self._lock = Lock()
        self.size = 0
        """Total size of the running and the queued work."""

    def submit(self, work: Callable[[], T], cancellation: Cancellation, size: int = 0) -> "Future[T]":
        """Queues work of a size, with `cancellation` active while it runs."""
        self._add(size)
        job = _Job(work, cancellation)
        future = self._threads.submit(job)
        future.add_done_callback(job.drop)
        future.add_done_callback(lambda _: self._add(-size))
        return future

    async def run(
        self,
        work: Callable[[], T],
        size: int = 0,
        *,
        wait: "Callable[[asyncio.Future[T]], Awaitable[T]]" = lambda future: future,
    ) -> T:
        """Runs work on one of the threads and returns its result, which `wait` awaits.

        If the caller is cancelled, work that has not started is dropped, and the tokenization of a long text is stopped.
        """
        cancellation = Cancellation()
        future = self.submit(work, cancellation, size)
        try:
            return await wait(asyncio.wrap_future(future))
        finally:
            # Immediately, so that the next task can use the queue's space.
            future.cancel()
            cancellation.cancel()
            # The error's traceback refers to this frame: with the future, which holds the error, it would form a reference cycle.
            del future

    def close(self) -> None:
        """Stops the threads once their running work is done; drops queued work."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _add(self, size: int) -> None:
        with self._lock:
            self.size += size


class Threads:
    """Thread pools of one engine. asyncio's default executor is shared, so other code could exhaust it."""

    def __init__(self) -> None:
        self._pools = {pool: WorkerPool(pool.value) for pool in ThreadPool}

    async def run(self, pool: ThreadPool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `work` on a thread of a pool and returns its result, as [`WorkerPool.run`]."""
        return await self._pools[pool].run(partial(work, *args, **kwargs))
