"""Route decorators that resolve Litestar handlers lazily, on first use.

Litestar resolves the signatures of all handlers at startup, although a client uses few of them. Deferring this shortens the
start.
"""

import time
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any

from litestar import HttpMethod, Litestar
from litestar._kwargs import KwargsModel
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute

__all__ = ["Handler", "delete", "get", "post", "resolve_all"]

PAUSE_S = 0.0002
"""Pause between handlers when all are resolved, in seconds."""

_RESOLVING = Lock()


class Handler(HTTPRouteHandler):
    """An HTTP route handler whose signature is resolved on first use."""

    def on_registration(self, app: Litestar) -> None:  # noqa: ARG002 (it is the handler's own by now)
        """Resolves only what Litestar reads before the signature."""
        self.resolve_opts()
        self.resolve_guards()

    def create_kwargs_model(self, path_parameters: dict[str, Any]) -> KwargsModel:
        """Returns a lazy model of the handler's parameters on a path. Reading it resolves the rest of the handler."""
        return _LazyKwargs(partial(self._resolve, path_parameters))

    def _resolve(self, path_parameters: dict[str, Any]) -> KwargsModel:
        super().on_registration(self.app)
        return super().create_kwargs_model(path_parameters)


class _LazyKwargs(KwargsModel):
    """Parameters of a handler, resolved on first access; all of Litestar's slots are empty until then."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], KwargsModel]) -> None:
        # `super().__init__` would fill the slots.
        self._make: Callable[[], KwargsModel] | None = make

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (slots have various types)
        if name not in KwargsModel.__slots__:
            raise AttributeError(name)
        # The OpenAPI document is generated on another thread than requests are handled on.
        with _RESOLVING:
            if self._make is not None:
                made = self._make()
                for slot in KwargsModel.__slots__:
                    setattr(self, slot, getattr(made, slot))
                self._make = None
        return getattr(self, name)


def resolve_all(app: Litestar) -> None:
    """Resolves the remaining handlers of an application. May run on any thread.

    Raises:
        ImproperlyConfiguredException: Litestar rejects a handler.
    """
    for route in app.routes:
        for _, model in route.route_handler_map.values() if isinstance(route, HTTPRoute) else ():
            _ = model.has_kwargs
            # Releases the lock between handlers, so that a request waits for one handler at most. A lock that is reacquired
            # immediately starves other threads.
            time.sleep(PAUSE_S)


get = partial(Handler, http_method=HttpMethod.GET)
post = partial(Handler, http_method=HttpMethod.POST)
delete = partial(Handler, http_method=HttpMethod.DELETE)
