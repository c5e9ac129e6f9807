"""Fair scheduling on the event loop of tasks that process many events."""

import asyncio
import time
from collections import deque
from weakref import WeakKeyDictionary

SHARE = 0.1
"""Share of the event loop's time for heavy tasks while light ones are active, as CPU seconds per second."""

BURST_S = 0.002
"""Maximum CPU time that heavy tasks may take in one burst after a pause, in seconds."""

LIGHT_ACTIVE_S = 0.25
"""Seconds for which a light task counts as active after it last ran, as long as it may wait for its next token."""

SLICE_S = 0.001
"""Maximum time a response processes events before other tasks run, in seconds, regardless of its output."""

HEAVY_S = 0.004
"""CPU time for one batch of events from which a task is heavy, in seconds: the time to write 64 KiB of plain events. CPU time
excludes waiting for a core or the GIL."""


class TokenBucket:
    """A token bucket of time: each second adds `share` seconds, up to `burst_s`."""

    def __init__(self, share: float, burst_s: float, now: float) -> None:
        self._share = share
        self._burst_s = burst_s
        self._left_s = burst_s
        self._at = now

    def spend(self, took_s: float) -> None:
        """Spends time, possibly more than is available."""
        self._left_s -= took_s

    def wait_s(self, now: float) -> float:
        """Returns the seconds until time is available again."""
        self._left_s = min(self._left_s + self._share * (now - self._at), self._burst_s)
        self._at = now
        return max(0.0, -self._left_s / self._share)


class TimeSlice:
    """Tracks the processing of a response's events: time since other tasks ran, and CPU time for the current batch."""

    def __init__(self) -> None:
        self.until = 0.0
        """Time at which other tasks must run, on the monotonic clock."""
        self._since_yield_s = 0.0
        """Working time since other tasks ran, in seconds."""
        self._took_s = 0.0
        """Measured CPU time for the current batch, in seconds."""
        self._counts = False
        """True if CPU time is measured: from the batch's first yield on, or from its beginning if the previous batch yielded.
        Reading the CPU clock takes as long as processing a token, and few batches take longer than a slice."""
        self._has_yielded = False
        """True if the current batch has yielded."""
        self._at, self._at_s = 0.0, 0.0
        """Monotonic and CPU time at the last resumption."""

    def begin(self) -> None:
        """Begins a batch of events."""
        self._took_s = 0.0
        self._counts, self._has_yielded = self._has_yielded, False
        self._resume()

    def pause(self) -> None:
        """Stops the clocks while no events are processed."""
        self._since_yield_s += time.monotonic() - self._at
        if self._counts:
            self._took_s += time.thread_time() - self._at_s

    async def yield_to_others(self, *, has_written_much: bool = False) -> None:
        """Yields to other tasks; must follow `pause`.

        Heavy tasks wait in a common queue, so that light ones need not wait for each of them.
        """
        await (yield_fairly() if has_written_much or self._took_s >= HEAVY_S else asyncio.sleep(0))
        self._since_yield_s = 0.0
        self._counts = self._has_yielded = True
        self._resume()

    def _resume(self) -> None:
        self._at = time.monotonic()
        if self._counts:
            self._at_s = time.thread_time()
        self.until = self._at + SLICE_S - self._since_yield_s


class FairScheduler:
    """FIFO queue of heavy tasks on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False
        self._bucket = TokenBucket(SHARE, BURST_S, loop.time())
        self._began = 0.0
        self._light_at_s = float("-inf")
        """Last time that a light task ran."""

    def mark_light_task(self) -> None:
        """Records that a light task ran, which limits the share of heavy ones."""
        self._light_at_s = self.loop.time()

    async def next(self) -> None:
        """Waits as [`yield_fairly`] describes."""
        future = self.loop.create_future()
        self._waiting.append(future)
        if not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_soon(self._resume_next)
        await future

    def _resume_next(self) -> None:
        while self._waiting and self._waiting[0].done():  # Cancelled tasks give up their turn.
            self._waiting.popleft()
        if not self._waiting:
            self._is_scheduled = False
            return
        wait_s = self._bucket.wait_s(self.loop.time())
        if wait_s > 0.0 and self._is_shared:
            self.loop.call_later(min(wait_s, LIGHT_ACTIVE_S), self._resume_next)
            return
        # Callbacks run in this order: the resumed task runs between `_begin` and `_end`.
        self.loop.call_soon(self._begin)
        self._waiting.popleft().set_result(None)
        self.loop.call_soon(self._end)

    def _begin(self) -> None:
        self._began = time.thread_time()

    def _end(self) -> None:
        if self._is_shared:
            self._bucket.spend(time.thread_time() - self._began)
        self._resume_next()

    @property
    def _is_shared(self) -> bool:
        return self.loop.time() < self._light_at_s + LIGHT_ACTIVE_S


_schedulers: WeakKeyDictionary[asyncio.AbstractEventLoop, FairScheduler] = WeakKeyDictionary()


def current_scheduler() -> FairScheduler:
    """Returns the scheduler of the running event loop."""
    loop = asyncio.get_running_loop()
    if (scheduler := _schedulers.get(loop)) is None:
        scheduler = _schedulers[loop] = FairScheduler(loop)
    return scheduler


async def yield_fairly() -> None:
    """Yields to all other tasks, then resumes a single waiting task per iteration of the event loop.

    With `asyncio.sleep(0)`, all waiting tasks would resume in the same iteration, and light tasks would wait for all of them.
    While light tasks are active, waiting tasks get [`SHARE`] of the loop's time.
    """
    await current_scheduler().next()
