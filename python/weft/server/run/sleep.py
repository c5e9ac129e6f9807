"""When the model is let go for want of requests, and brought back for the next one."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import Context
from functools import partial
from typing import Any

from weft.errors import EngineStopped

__all__ = ["Sleep"]

logger = logging.getLogger(__name__)


class Sleep:
    """Counts the requests that need the model.

    Args:
        after_s: Seconds without one after which the model is let go; None is never.
        let_go: Lets the model go, and returns True; or returns False where its argument says meanwhile that it is needed.
        bring_back: Brings it back; what it raises, all requests are told that wait for it, and the next one tries again.
    """

    def __init__(
        self,
        after_s: float | None,
        *,
        let_go: Callable[[Callable[[], bool]], Awaitable[bool]],
        bring_back: Callable[[], Awaitable[None]],
    ) -> None:
        self.after_s = after_s
        self.is_awake = True
        """Whether the model is there; while it is being let go or brought back, it is not."""
        self._let_go = let_go
        self._bring_back = bring_back
        self._n_requests = 0
        """All that the model must be there for."""
        self._n_asked = 0
        """Of those, requests of clients."""
        self._since_s = 0.0
        """When the last of these has ended, or the model has come, by the event loop's clock."""
        self._sooner_s: float | None = None
        """Seconds that are enough this time."""
        self._timer: asyncio.TimerHandle | None = None
        self._turned: asyncio.Future[None] | None = None
        """Done when the model is gone, or is back; there is one as long as either goes on."""
        self._turning: asyncio.Task[None] | None = None
        self._is_stopped = False

    @property
    def is_turning(self) -> bool:
        """Whether the model is being let go or brought back."""
        return self._turned is not None

    def start(self) -> None:
        """The model is there for the first time: the seconds count from now on."""
        self._count_anew()

    def stop(self) -> None:
        """Nothing is let go or brought back any more; requests that wait are told that the engine has stopped."""
        self._is_stopped = True
        self._clear_timer()
        if self._turned is not None and not self._turned.done():
            self._turned.set_exception(EngineStopped())
        if self._turning is not None:
            self._turning.cancel()

    def sooner(self, seconds: float) -> None:
        """Lets the model go so long after this request, should no other come, where that is sooner than otherwise.

        Of several requests at a time the last one counts that says so.
        """
        self._sooner_s = seconds

    @property
    def patience_s(self) -> float | None:
        """Seconds without a request after which the model is let go this time."""
        return self.after_s if self.after_s is None or self._sooner_s is None else min(self.after_s, self._sooner_s)

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """One request that needs the model. It waits until that is there, and as long as it lasts, that stays.

        Raises:
            WeftError: The model could not be brought back.
        """
        if self._n_asked == 0:
            self._sooner_s = None
        self._n_asked += 1
        try:
            async with self.work():
                yield
        finally:
            self._n_asked -= 1
            self._count_anew()

    @asynccontextmanager
    async def work(self) -> AsyncIterator[None]:
        """As a request, of which no client knows: the seconds until the model is let go count from the last that one sent.

        Raises:
            WeftError: The model could not be brought back.
        """
        self._n_requests += 1
        self._clear_timer()
        try:
            while not self.is_awake:
                if self._is_stopped:
                    raise EngineStopped
                # One load for all that wait, and none who leaves takes it from the others.
                await asyncio.shield(self._turned or self._turn(self._rise()))
            yield
        finally:
            self._n_requests -= 1
            self._set_timer()

    def _count_anew(self) -> None:
        self._since_s = asyncio.get_running_loop().time()
        self._set_timer()

    def _set_timer(self) -> None:
        self._clear_timer()
        if self.patience_s is not None and self._n_requests == 0 and self.is_awake and not self._is_stopped:
            self._timer = asyncio.get_running_loop().call_at(self._since_s + self.patience_s, self._doze)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _doze(self) -> None:
        self.is_awake = False
        self._turn(self._fall())

    async def _fall(self) -> None:
        is_gone = False
        try:
            is_gone = await self._let_go(lambda: self._n_requests > 0)
        except EngineStopped:  # It has died, or the server ends: who asks is told so.
            pass
        except Exception:
            logger.exception("the model stays loaded")
        finally:
            self.is_awake = not is_gone
            self._count_anew()

    async def _rise(self) -> None:
        await self._bring_back()
        self.is_awake = True
        # All who wanted it may have left by now.
        self._count_anew()

    def _turn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        self._turned = loop.create_future()
        # No part of the request that happens to be the first: its client may leave.
        self._turning = loop.create_task(work, context=Context())
        self._turning.add_done_callback(partial(self._settle, self._turned))
        return self._turned

    def _settle(self, turned: "asyncio.Future[None]", task: "asyncio.Task[None]") -> None:
        self._turned = self._turning = None
        failure = EngineStopped() if task.cancelled() else task.exception()
        if turned.done():
            pass
        elif failure is None:
            turned.set_result(None)
        else:
            turned.set_exception(failure)
        # Nobody may be left who wants to know.
        turned.exception()
