"""Who has much to write, or to read, takes turns on the event loop."""

import asyncio
from collections import deque
from weakref import WeakKeyDictionary

__all__ = ["next_turn"]


class _Turns:
    """Those that wait for their next turn, in the order of their coming."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def next(self) -> None:
        turn = self._loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._give)
        await turn

    def _give(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # One that is cancelled has no use for it.
                turn.set_result(None)
                break
        if self._waiting:
            self._loop.call_soon(self._give)


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()


async def next_turn() -> None:
    """Lets all others go on first, and then one alone of those that wait here, each time that the loop goes round.

    With `asyncio.sleep(0)` all of them would go on at once: who has little to write would wait for a turn of each.
    """
    loop = asyncio.get_running_loop()
    if (turns := _turns.get(loop)) is None:
        turns = _turns[loop] = _Turns(loop)
    await turns.next()
