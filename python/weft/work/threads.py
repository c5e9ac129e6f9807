"""Thread pools for work that would block the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial
from typing import ParamSpec, TypeVar

from weft._native import Cancellation

__all__ = ["LONG_TEXT", "ThreadPool", "Threads"]

Made = TypeVar("Made")
Given = ParamSpec("Given")

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


class Threads:
    """Thread pools of one engine. asyncio's default executor is shared, so other code could exhaust it."""

    def __init__(self) -> None:
        self._pools = {pool: ThreadPoolExecutor(N_THREADS, thread_name_prefix=f"weft-{pool.value}") for pool in ThreadPool}

    async def run(self, pool: ThreadPool, work: Callable[Given, Made], *args: Given.args, **kwargs: Given.kwargs) -> Made:
        """Runs `work` on a thread of a pool and returns its result.

        If the caller is cancelled, work that has not started is dropped, and the tokenization of a long text is stopped.
        """
        cancellation = Cancellation()
        job = partial(cancellation.run, partial(work, *args, **kwargs))
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pools[pool], job)
        finally:
            cancellation.cancel()
