"""Forks that are being registered, for a reader of their stream."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class PendingForks:
    """Lets a reader wait until forks are registered, since events of a fork may arrive before that."""

    def __init__(self) -> None:
        self._n = 0
        self._are_registered = asyncio.Event()

    def __bool__(self) -> bool:
        """Returns whether any fork is being registered."""
        return self._n > 0

    @contextmanager
    def register(self) -> Iterator[None]:
        """Holds up the readers that `wait` while the block runs."""
        self._n += 1
        self._are_registered.clear()
        try:
            yield
        finally:
            self._n -= 1
            if not self._n:
                self._are_registered.set()

    async def wait(self) -> None:
        """Waits until no fork is being registered."""
        await self._are_registered.wait()
