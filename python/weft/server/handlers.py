"""Litestar's decorators of routes, made for an application of which one client uses a few.

What a handler takes, Litestar works out for all of them before the application is there. Here each is looked at when it is first
asked for: a start waits for none of them.
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

__all__ = ["Handler", "delete", "get", "look_at_all", "post"]

PAUSE_S = 0.0002
"""Between one handler and the next, in seconds, where all are looked at."""

_LOOKING = Lock()


class Handler(HTTPRouteHandler):
    """A handler of HTTP requests, as Litestar's own but for when it is looked at."""

    def on_registration(self, app: Litestar) -> None:  # noqa: ARG002 (it is the handler's own by now)
        """Works out only what is read of the handler before what it takes."""
        self.resolve_opts()
        self.resolve_guards()

    def create_kwargs_model(self, path_parameters: dict[str, Any]) -> KwargsModel:
        """What the handler takes on a path with these parameters. All else of the handler is worked out with it."""
        return _Later(partial(self._looked_at, path_parameters))

    def _looked_at(self, path_parameters: dict[str, Any]) -> KwargsModel:
        super().on_registration(self.app)
        return super().create_kwargs_model(path_parameters)


class _Later(KwargsModel):
    """What a handler takes, worked out when it is first read: until then none of Litestar's slots is filled."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], KwargsModel]) -> None:
        # Litestar's own would fill its slots.
        self._make: Callable[[], KwargsModel] | None = make

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (whatever the slot holds)
        if name not in KwargsModel.__slots__:
            raise AttributeError(name)
        # The document of all routes is made on another thread than requests are answered on.
        with _LOOKING:
            if self._make is not None:
                made = self._make()
                for slot in KwargsModel.__slots__:
                    setattr(self, slot, getattr(made, slot))
                self._make = None
        return getattr(self, name)


def look_at_all(app: Litestar) -> None:
    """Works out all that is left of an application's handlers, in any thread.

    Raises:
        ImproperlyConfiguredException: Litestar refuses one of them.
    """
    for route in app.routes:
        for _, model in route.route_handler_map.values() if isinstance(route, HTTPRoute) else ():
            _ = model.has_kwargs
            # Whoever is asked for a handler meanwhile waits for one at most: a lock that is taken again at once lets nobody in.
            time.sleep(PAUSE_S)


get = partial(Handler, http_method=HttpMethod.GET)
post = partial(Handler, http_method=HttpMethod.POST)
delete = partial(Handler, http_method=HttpMethod.DELETE)
