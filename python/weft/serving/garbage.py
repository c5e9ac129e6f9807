"""When objects are looked for that only refer to each other: when nobody waits, and seldom where somebody always does."""

import asyncio
import gc
from collections.abc import Callable

__all__ = ["Collector"]

LOOK_S = 5.0
"""How often it is asked whether nobody waits, in seconds."""

SELDOM_S = 60.0
"""The longest time between two collections, in seconds, where there is something to look for."""

NEVER = 1 << 30
"""More collections of the younger objects than there will be before one of all."""


class Collector:
    """Takes the collection of old objects from the interpreter, which does it when so many were made.

    That may be in the middle of all streams, and what lives at 200 connections takes it up to 50 ms. Younger objects are
    collected as before. What a request leaves behind is freed with its last name, and needs no collection, but for what
    libraries leave in circles.
    """

    def __init__(self, is_idle: Callable[[], bool]) -> None:
        """Makes a collector that does nothing yet.

        Args:
            is_idle: Whether nobody waits for anything.
        """
        self._is_idle = is_idle
        self._last_s = 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Looks again and again, as long as the loop runs."""
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, NEVER)
        self._last_s = loop.time()
        loop.call_later(LOOK_S, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        has_become_old = gc.get_count()[2] > 0
        if has_become_old and (self._is_idle() or loop.time() - self._last_s >= SELDOM_S):
            gc.collect()
            self._last_s = loop.time()
        loop.call_later(LOOK_S, self._look, loop)
