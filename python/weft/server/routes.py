"""A router for the routes of one API that reduces Litestar's work at startup."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from litestar import HttpMethod, Router
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler

from weft.server.handlers import Handler
from weft.server.json_request import JsonRequest

__all__ = ["Routes"]


class Routes(Router):
    """The routes of one API, for a single application."""

    def __init__(self, tag: str, handlers: Sequence[HTTPRouteHandler], dependencies: Mapping[str, Provide] | None = None) -> None:
        # Litestar would generate an OPTIONS handler for each path and resolve it at startup.
        paths = list(dict.fromkeys(path for handler in handlers for path in sorted(handler.paths)))
        options = Handler(paths, http_method=HttpMethod.OPTIONS, include_in_schema=False)(_answered_by_gateway)
        super().__init__(
            "/", route_handlers=[options, *handlers], dependencies=dependencies, request_class=JsonRequest, tags=[tag]
        )
        # Order in the OpenAPI document.
        self.routes.sort(key=lambda each: paths.index(each.path))

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        """Returns itself. Litestar copies routers deeply in case several applications share them."""
        return self


async def _answered_by_gateway() -> None:
    """Never called: the gateway answers OPTIONS before routing."""
