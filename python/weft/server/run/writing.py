"""Who has much to write, or to read, takes turns on the event loop."""

import asyncio
import time
from collections import deque
from weakref import WeakKeyDictionary

__all__ = ["Allowance", "LoopTurns", "Stint", "next_turn", "turns_here"]

SHARE = 0.1
"""Of the event loop's time, for those that have much, while others are served that have little: seconds of a processor in each
second that passes."""

BURST_S = 0.002
"""What they may take at once after they have rested, in seconds."""

LITTLE_S = 0.25
"""Who has little counts as served for so long after the last time, in seconds: as long as it may wait for its next token."""

TURN_S = 0.001
"""An answer takes up events for so long, in seconds, before others have their turn, whatever comes of them."""

MUCH_S = 0.004
"""Events that have come together and take so long to take up, in seconds of a processor, are much: so long it takes to write as
many plain ones as come to 64 KiB. Who waits for a processor or for the interpreter has no more to write."""


class Allowance:
    """Time that is given bit by bit: of each second a `share`, of which `burst_s` seconds are kept at most."""

    def __init__(self, share: float, burst_s: float, now: float) -> None:
        self._share = share
        self._burst_s = burst_s
        self._left_s = burst_s
        self._at = now

    def spend(self, took_s: float) -> None:
        """Takes so much of it, which may be more than there is."""
        self._left_s -= took_s

    def wait_s(self, now: float) -> float:
        """How long it takes until some of it is there."""
        self._left_s = min(self._left_s + self._share * (now - self._at), self._burst_s)
        self._at = now
        return max(0.0, -self._left_s / self._share)


class Stint:
    """Work on the events of an answer: how long others have waited meanwhile, and how much has come together."""

    def __init__(self) -> None:
        self.until = 0.0
        """When others are to have their turn, on the monotonic clock."""
        self._since_turn_s = 0.0
        """Seconds of work since others had their turn."""
        self._took_s = 0.0
        """Seconds of a processor for what has come together last, as far as they are counted."""
        self._counts = False
        """Whether they are: from the first turn on that others have, and from the beginning where they had one in what came
        before. To ask for them takes as long as a token, and few events need more than a turn."""
        self._has_given_way = False
        """Whether others had a turn in what has come together last."""
        self._at, self._at_s = 0.0, 0.0
        """Where the clock and the processor stood when it was gone on with."""

    def begin(self) -> None:
        """Goes on with events that have come together."""
        self._took_s = 0.0
        self._counts, self._has_given_way = self._has_given_way, False
        self._go_on()

    def pause(self) -> None:
        """What comes now is no work on events."""
        self._since_turn_s += time.monotonic() - self._at
        if self._counts:
            self._took_s += time.thread_time() - self._at_s

    async def give_way(self, *, has_much: bool = False) -> None:
        """Others have their turn, after a pause. Whoever has little at a time does not wait for all that have much."""
        await (next_turn() if has_much or self._took_s >= MUCH_S else asyncio.sleep(0))
        self._since_turn_s = 0.0
        self._counts = self._has_given_way = True
        self._go_on()

    def _go_on(self) -> None:
        self._at = time.monotonic()
        if self._counts:
            self._at_s = time.thread_time()
        self.until = self._at + TURN_S - self._since_turn_s


class LoopTurns:
    """Those that wait for their next turn, in the order of their coming."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_going_round = False
        self._allowance = Allowance(SHARE, BURST_S, loop.time())
        self._began = 0.0
        self._little_at = float("-inf")
        """When somebody was served last who has little."""

    def serve_little(self) -> None:
        """Somebody is served on this loop who has little to write, and is not to wait for those that have much."""
        self._little_at = self.loop.time()

    async def next(self) -> None:
        """See [`next_turn`]."""
        turn = self.loop.create_future()
        self._waiting.append(turn)
        if not self._is_going_round:
            self._is_going_round = True
            self.loop.call_soon(self._give)
        await turn

    def _give(self) -> None:
        while self._waiting and self._waiting[0].done():  # One that is cancelled has no use for it.
            self._waiting.popleft()
        if not self._waiting:
            self._is_going_round = False
            return
        wait_s = self._allowance.wait_s(self.loop.time())
        if wait_s > 0.0 and self._is_shared:
            self.loop.call_later(min(wait_s, LITTLE_S), self._give)
            return
        # These three follow each other when the loop goes round: between the others there is what the turn is used for.
        self.loop.call_soon(self._begin)
        self._waiting.popleft().set_result(None)
        self.loop.call_soon(self._end)

    def _begin(self) -> None:
        self._began = time.thread_time()

    def _end(self) -> None:
        if self._is_shared:
            self._allowance.spend(time.thread_time() - self._began)
        self._give()

    @property
    def _is_shared(self) -> bool:
        return self.loop.time() < self._little_at + LITTLE_S


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopTurns] = WeakKeyDictionary()


def turns_here() -> LoopTurns:
    """The turns on this loop."""
    loop = asyncio.get_running_loop()
    if (turns := _turns.get(loop)) is None:
        turns = _turns[loop] = LoopTurns(loop)
    return turns


async def next_turn() -> None:
    """Lets all others go on first, and then one alone of those that wait here, each time that the loop goes round.

    With `asyncio.sleep(0)` all of them would go on at once: who has little to write would wait for a turn of each. While such are
    served, those that wait here get [`SHARE`] of the loop's time.
    """
    await turns_here().next()
