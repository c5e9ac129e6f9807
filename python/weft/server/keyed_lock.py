"""A keyed lock, which serializes requests that read the cache or access a slot's file."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from weft.server.errors import TextsWaitingError

MAX_LOCK_REQUESTS = 1_024
"""Maximum requests that hold or wait for a lock of one kind."""


class KeyedLock:
    """Locks by key, each granted in FIFO order.

    Serializing bounds the memory that such requests take and leaves the engine's threads free for others.
    """

    def __init__(self) -> None:
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._n = 0

    @asynccontextmanager
    async def acquire(self, key: int = 0) -> AsyncIterator[None]:
        """Acquires the lock of a key; it is released when the block is left.

        Raises:
            TextsWaitingError: Too many requests are waiting.
        """
        if self._n >= MAX_LOCK_REQUESTS:
            raise TextsWaitingError(f"{self._n} requests like this one are waiting")
        self._n += 1
        try:
            async with self._locks[key]:
                yield
        finally:
            self._n -= 1
