"""Middleware that loads the model, if idle unloading is enabled, before a request that needs it."""

import time
from contextvars import ContextVar
from typing import Any

from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from weft.server.model.idle_unloader import IdleUnloader

NEEDS_NO_MODEL: dict[str, Any] = {"needs_no_model": True}
"""`opt` of routes that answer without the model. They neither load it nor postpone its unloading."""


_arrived_ns: ContextVar[int | None] = ContextVar("arrived_ns", default=None)


def arrived_ns() -> int:
    """Arrival time of the request on the clock of `time.monotonic_ns`, before any wait for the model."""
    arrived = _arrived_ns.get()
    return time.monotonic_ns() if arrived is None else arrived


class KeepAwake(ASGIMiddleware):
    """Keeps the model loaded during every request, except on routes marked with `NEEDS_NO_MODEL`."""

    scopes = (ScopeType.HTTP,)
    exclude_opt_key = next(iter(NEEDS_NO_MODEL))

    def __init__(self, sleep: IdleUnloader) -> None:
        self._sleep = sleep

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Runs the route with the model loaded until the response has ended."""
        before = _arrived_ns.set(time.monotonic_ns())
        try:
            async with self._sleep.request():
                await next_app(scope, receive, send)
        finally:
            _arrived_ns.reset(before)
