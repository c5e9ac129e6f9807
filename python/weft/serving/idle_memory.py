"""When objects are looked for that only refer to each other, and freed memory goes back to the system.

When nobody waits; and where somebody always does, the objects are looked for seldom.
"""

import asyncio
import gc
import sys
import threading
from collections.abc import Callable

from weft._native import trim_heap
from weft.installed.platform import resident_bytes

__all__ = ["Collector"]

LOOK_S = 5.0
"""How often it is asked whether nobody waits, in seconds."""

SELDOM_S = 60.0
"""The longest time between two collections, in seconds, where there is something to look for and little lives."""

VERY_SELDOM_S = 600.0
"""The same while much lives: a collection looks at all of it, which would hold everybody up for as long."""

MUCH = 2.0
"""More of Python's blocks of memory than so many times the fewest since the start are much."""

NEVER = 1 << 30
"""More collections of the younger objects than there will be before one of all."""

GROWN = 4 << 20
"""The growth since the last time, in bytes of resident memory, from which on the heap is trimmed while nobody waits."""


class Collector:
    """Takes the collection of old objects from the interpreter, which does it when so many were made.

    That may be in the middle of all streams, and what lives at 200 connections takes it up to 50 ms, and half a second where they
    send what is as large as it may be. Younger objects are collected as before. What a request leaves behind is freed with its
    last name, and needs no collection, but for what libraries leave in circles.

    The heap is trimmed as well when it has grown: after large bodies and many streams it would stay as large as it has ever been.
    Whoever allocates waits for some of that, so that it is left for when nobody waits.
    """

    def __init__(
        self,
        is_idle: Callable[[], bool],
        resident: Callable[[], int] = resident_bytes,
        trim: Callable[[], None] = trim_heap,
    ) -> None:
        """Makes a collector that does nothing yet.

        Args:
            is_idle: Whether nobody waits for anything.
            resident: The bytes of memory that the process holds.
            trim: Gives back what is free of them, on a thread of its own.
        """
        self._is_idle = is_idle
        self._resident = resident
        self._trim = trim
        self._last_s = 0.0
        self._least = 0
        self._fewest = sys.maxsize
        self._trimming: threading.Thread | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Looks again and again, as long as the loop runs."""
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, NEVER)
        self._last_s = loop.time()
        self._least = self._resident()
        loop.call_later(LOOK_S, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        is_idle = self._is_idle()
        self._collect(loop.time(), is_idle)
        if is_idle and (self._trimming is None or not self._trimming.is_alive()):
            self._trim_if_grown()
        loop.call_later(LOOK_S, self._look, loop)

    def _collect(self, now: float, is_idle: bool) -> None:
        blocks = sys.getallocatedblocks()
        self._fewest = min(self._fewest, blocks)
        patience_s = SELDOM_S if blocks <= MUCH * self._fewest else VERY_SELDOM_S
        has_become_old = gc.get_count()[2] > 0
        if has_become_old and (is_idle or now - self._last_s >= patience_s):
            gc.collect()
            self._last_s = now

    def _trim_if_grown(self) -> None:
        held = self._resident()
        self._least = min(self._least, held)
        if held - self._least >= GROWN:
            self._trimming = threading.Thread(target=self._trim_now, name="weft-trim", daemon=True)
            self._trimming.start()

    def _trim_now(self) -> None:
        self._trim()
        self._least = self._resident()
