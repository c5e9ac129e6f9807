"""Who asks the engine about its cache, or for a file of a slot, does so when it is his turn."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from weft.server.errors import TextsWaitingError

__all__ = ["MAX_TURNS", "Turns"]

MAX_TURNS = 1_024
"""Requests that may wait for their turns; more are refused."""


class Turns:
    """Requests of one kind: one at a time, in the order of their coming, for each thing that they are about.

    So what they hold in memory meanwhile is held once, and whoever else needs the engine's threads finds them free.
    """

    def __init__(self) -> None:
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._n = 0

    @asynccontextmanager
    async def one(self, about: int = 0) -> AsyncIterator[None]:
        """Waits for a turn, which ends with the block.

        Raises:
            TextsWaitingError: too many wait already.
        """
        if self._n >= MAX_TURNS:
            raise TextsWaitingError(f"{self._n} requests like this one are waiting")
        self._n += 1
        try:
            async with self._locks[about]:
                yield
        finally:
            self._n -= 1
