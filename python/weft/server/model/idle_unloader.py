"""Unloads the model when it is idle, and reloads it for the next request."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import Context
from functools import partial
from typing import Any

from weft.errors import EngineStoppedError

logger = logging.getLogger(__name__)


class IdleUnloader:
    """Tracks requests that need the model.

    Args:
        after_s: Idle seconds after which the model is unloaded; None disables unloading.
        unload: Unloads the model and returns True. Returns False if its argument reports meanwhile that the model is needed.
        reload: Reloads the model. Its exception is raised in all waiting requests; the next request retries.
    """

    def __init__(
        self,
        after_s: float | None,
        *,
        unload: Callable[[Callable[[], bool]], Awaitable[bool]],
        reload: Callable[[], Awaitable[None]],
    ) -> None:
        self.after_s = after_s
        self.is_awake = True
        """True if the model is loaded. False while it is being unloaded or reloaded."""
        self._unload = unload
        self._reload = reload
        self._n_requests = 0
        """Requests and internal work that need the model."""
        self._n_client_requests = 0
        """Requests of clients among them."""
        self._since_s = 0.0
        """End of the last client request, or time of the last load, on the event loop's clock."""
        self._shorter_s: float | None = None
        """Shorter idle timeout requested by a client."""
        self._timer: asyncio.TimerHandle | None = None
        self._transition: asyncio.Future[None] | None = None
        """Resolved when the model has been unloaded or reloaded; None while neither is in progress."""
        self._transition_task: asyncio.Task[None] | None = None
        self._is_stopped = False

    @property
    def is_changing(self) -> bool:
        """True if the model is being unloaded or reloaded."""
        return self._transition is not None

    def start(self) -> None:
        """Starts the idle timer. Called when the model has been loaded for the first time."""
        self._restart_timer()

    def stop(self) -> None:
        """Stops unloading and reloading. Waiting requests raise EngineStoppedError."""
        self._is_stopped = True
        self._clear_timer()
        if self._transition is not None and not self._transition.done():
            self._transition.set_exception(EngineStoppedError())
        if self._transition_task is not None:
            self._transition_task.cancel()

    def shorten_timeout(self, seconds: float) -> None:
        """Sets a shorter idle timeout until the next request. Of concurrent requests, the last call applies."""
        self._shorter_s = seconds

    @property
    def timeout_s(self) -> float | None:
        """Idle seconds after which the model is unloaded, with a client's timeout applied."""
        return self.after_s if self.after_s is None or self._shorter_s is None else min(self.after_s, self._shorter_s)

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Loads the model for a client's request and keeps it loaded during the block.

        Raises:
            WeftError: The model could not be reloaded.
        """
        if self._n_client_requests == 0:
            self._shorter_s = None
        self._n_client_requests += 1
        try:
            async with self.work():
                yield
        finally:
            self._n_client_requests -= 1
            self._restart_timer()

    @asynccontextmanager
    async def work(self) -> AsyncIterator[None]:
        """Works like `request` for internal work, which does not restart the idle timer.

        Raises:
            WeftError: The model could not be reloaded.
        """
        self._n_requests += 1
        self._clear_timer()
        try:
            while not self.is_awake:
                if self._is_stopped:
                    raise EngineStoppedError
                # All waiting tasks share one load, which none of them can cancel.
                await asyncio.shield(self._transition or self._run_transition(self._do_reload()))
            yield
        finally:
            self._n_requests -= 1
            self._set_timer()

    def _restart_timer(self) -> None:
        self._since_s = asyncio.get_running_loop().time()
        self._set_timer()

    def _set_timer(self) -> None:
        self._clear_timer()
        if self.timeout_s is not None and self._n_requests == 0 and self.is_awake and not self._is_stopped:
            self._timer = asyncio.get_running_loop().call_at(self._since_s + self.timeout_s, self._start_unloading)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_unloading(self) -> None:
        self.is_awake = False
        self._run_transition(self._do_unload())

    async def _do_unload(self) -> None:
        is_gone = False
        try:
            is_gone = await self._unload(lambda: self._n_requests > 0)
        except EngineStoppedError:  # The engine has died or is stopping; requests report that.
            pass
        except Exception:
            logger.exception("the model stays loaded")
        finally:
            self.is_awake = not is_gone
            self._restart_timer()

    async def _do_reload(self) -> None:
        await self._reload()
        self.is_awake = True
        # All waiting requests may have been cancelled.
        self._restart_timer()

    def _run_transition(self, work: Coroutine[Any, Any, None]) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        self._transition = loop.create_future()
        # Runs in its own context, independent of the first request, whose client may disconnect.
        self._transition_task = loop.create_task(work, context=Context())
        self._transition_task.add_done_callback(partial(self._settle, self._transition))
        return self._transition

    def _settle(self, transition: "asyncio.Future[None]", task: "asyncio.Task[None]") -> None:
        self._transition = self._transition_task = None
        failure = EngineStoppedError() if task.cancelled() else task.exception()
        if transition.done():
            pass
        elif failure is None:
            transition.set_result(None)
        else:
            transition.set_exception(failure)
        # Marks the exception as retrieved, since no task may be waiting.
        transition.exception()
