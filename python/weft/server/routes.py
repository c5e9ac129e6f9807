"""The routes of one API, and what Litestar is spared for them when an application is made, at every start."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from litestar import HttpMethod, Router
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler

from weft.server.handlers import Handler
from weft.server.json_request import JsonRequest

__all__ = ["Routes"]


class Routes(Router):
    """The routes of one API, for one application."""

    def __init__(self, tag: str, handlers: Sequence[HTTPRouteHandler], dependencies: Mapping[str, Provide] | None = None) -> None:
        # Litestar gives each path that has no handler of OPTIONS one of its own, and looks at it during the start.
        paths = list(dict.fromkeys(path for handler in handlers for path in sorted(handler.paths)))
        options = Handler(paths, http_method=HttpMethod.OPTIONS, include_in_schema=False)(_answered_by_front)
        super().__init__(
            "/", route_handlers=[options, *handlers], dependencies=dependencies, request_class=JsonRequest, tags=[tag]
        )
        # The document shows them in this order.
        self.routes.sort(key=lambda each: paths.index(each.path))

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        """Itself: Litestar copies a router with all that it is made of, in case another application has it too."""
        return self


async def _answered_by_front() -> None:
    """Not reached: OPTIONS is answered before there is a route."""
