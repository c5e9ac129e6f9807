"""Scheduling of garbage collections and of returning freed memory to the system.

Both happen while the server is idle; under constant load, only garbage is collected, at long intervals.
"""

import asyncio
import gc
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

from weft._native import trim_heap
from weft.installed.platform import resident_bytes

CHECK_S = 5.0
"""Interval between idle checks, in seconds."""

INTERVAL_S = 60.0
"""Maximum interval between two collections under load, in seconds, with few live objects."""

LONG_INTERVAL_S = 600.0
"""Maximum interval with many live objects, in seconds: a collection traverses all of them and delays all requests."""

MANY_OBJECTS_RATIO = 2.0
"""Ratio of allocated memory blocks to their minimum since the start, above which there are many live objects."""

NEVER = 1 << 30
"""Threshold that disables automatic collections of the oldest generation."""

TRIM_BYTES = 4 << 20
"""Growth of resident memory since the last trim, in bytes, from which the heap is trimmed."""


@dataclass
class Collector:
    """Replaces the interpreter's automatic collections of the oldest generation, which may occur in the middle of all streams.

    Such a collection takes up to 50 ms with the objects of 200 connections, and half a second if their bodies have the maximum
    size. Younger generations are collected as before. Most objects of a request are freed by reference counting; only some
    libraries create cycles.

    When the server is idle, the heap is trimmed too if it has grown; otherwise it would keep its maximum size after large bodies
    and many streams. Trimming delays threads that allocate, so it waits for an idle time.
    """

    is_idle: Callable[[], bool]
    """Returns True if no request is waiting or running."""
    resident: Callable[[], int] = resident_bytes
    """Returns the resident memory of the process, in bytes."""
    trim: Callable[[], None] = trim_heap
    """Returns free memory to the system; called on a separate thread."""
    _last_s: float = 0.0
    _least: int = 0
    _fewest: int = sys.maxsize
    _trimming: threading.Thread | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts periodic checks, which run as long as the loop."""
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, NEVER)
        self._last_s = loop.time()
        self._least = self.resident()
        loop.call_later(CHECK_S, self._check, loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        is_idle = self.is_idle()
        self._collect(loop.time(), is_idle)
        if is_idle and (self._trimming is None or not self._trimming.is_alive()):
            self._trim_if_grown()
        loop.call_later(CHECK_S, self._check, loop)

    def _collect(self, now: float, is_idle: bool) -> None:
        blocks = sys.getallocatedblocks()
        self._fewest = min(self._fewest, blocks)
        interval_s = INTERVAL_S if blocks <= MANY_OBJECTS_RATIO * self._fewest else LONG_INTERVAL_S
        has_old_objects = gc.get_count()[2] > 0
        if has_old_objects and (is_idle or now - self._last_s >= interval_s):
            gc.collect()
            self._last_s = now

    def _trim_if_grown(self) -> None:
        n_resident = self.resident()
        self._least = min(self._least, n_resident)
        if n_resident - self._least >= TRIM_BYTES:
            self._trimming = threading.Thread(target=self._trim_now, name="weft-trim", daemon=True)
            self._trimming.start()

    def _trim_now(self) -> None:
        self.trim()
        self._least = self.resident()
