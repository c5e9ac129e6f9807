"""Which routes need the model, and middleware that loads it before them if idle unloading is enabled."""

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any

from litestar.enums import ScopeType
from litestar.handlers import BaseRouteHandler
from litestar.middleware import ASGIMiddleware
from litestar.routes import BaseRoute, HTTPRoute
from litestar.types import ASGIApp, Receive, Scope, Send

from weft.server.model.idle_unloader import IdleUnloader

NEEDS_NO_MODEL: dict[str, Any] = {"needs_no_model": True}
"""`opt` of routes that answer without the model. They neither load it nor postpone its unloading."""

SERVED_WHILE_LOADING: dict[str, Any] = {"served_while_loading": True}
"""`opt` of routes that answer while the model is loaded. All others answer 503 meanwhile, as in llama-server."""


def needs_no_model(handler: BaseRouteHandler) -> bool:
    """Returns whether a route answers without the model."""
    return NEEDS_NO_MODEL.items() <= handler.opt.items()


def served_while_loading(routes: Iterable[BaseRoute]) -> Mapping[str, re.Pattern[str]]:
    """Returns the paths of routes with `SERVED_WHILE_LOADING`, by method."""
    paths: defaultdict[str, list[str]] = defaultdict(list)
    for route in routes:
        for handler in route.route_handlers if isinstance(route, HTTPRoute) else ():
            if SERVED_WHILE_LOADING.items() <= handler.opt.items():
                for method in handler.http_methods:
                    paths[method].append(re.sub(r"\{[^}]*\}", "[^/]+", route.path))
    return {method: re.compile("|".join(own)) for method, own in paths.items()}


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
