"""Router for the routes of one API."""

import sys
from collections.abc import Mapping, Sequence

from litestar import Router
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler

from weft.server.json_request import JsonRequest


def handlers_of(*modules: str) -> list[HTTPRouteHandler]:
    """Returns the handlers in the namespaces of modules, in the order of their definition."""
    values = (value for name in modules for value in vars(sys.modules[name]).values())
    return [value for value in values if isinstance(value, HTTPRouteHandler)]


def routes_of(tag: str, handlers: Sequence[HTTPRouteHandler], dependencies: Mapping[str, Provide] | None = None) -> Router:
    """Returns a router for the handlers of one API, whose operations have this tag in the OpenAPI document."""
    router = Router("/", route_handlers=handlers, dependencies=dependencies, request_class=JsonRequest, tags=[tag])
    # Order of the OpenAPI document: a handler's paths are a set.
    paths = list(dict.fromkeys(path for handler in handlers for path in sorted(handler.paths)))
    router.routes.sort(key=lambda route: paths.index(route.path))
    return router
