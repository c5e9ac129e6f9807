"""Requests that need the model wait until it is there, where it may be unloaded."""

import time
from contextvars import ContextVar
from typing import Any

from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from weft.server.run.sleep import Sleep

__all__ = ["NEEDS_NO_MODEL", "Awake", "arrived_ns"]

NEEDS_NO_MODEL: dict[str, Any] = {"needs_no_model": True}
"""The `opt` of a route that answers without the model: it neither loads that nor keeps it loaded."""


_arrived_ns: ContextVar[int | None] = ContextVar("arrived_ns", default=None)


def arrived_ns() -> int:
    """When the request came, on the clock of `time.monotonic_ns`: before it had to wait for the model."""
    arrived = _arrived_ns.get()
    return time.monotonic_ns() if arrived is None else arrived


class Awake(ASGIMiddleware):
    """Around every route that there is but those."""

    scopes = (ScopeType.HTTP,)
    exclude_opt_key = next(iter(NEEDS_NO_MODEL))

    def __init__(self, sleep: Sleep) -> None:
        self._sleep = sleep

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Answers, with the model there until the answer has ended."""
        before = _arrived_ns.set(time.monotonic_ns())
        try:
            async with self._sleep.request():
                await next_app(scope, receive, send)
        finally:
            _arrived_ns.reset(before)
