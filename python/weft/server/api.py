"""The routes of one API: the decorator for its handlers, and the router of them all."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from litestar import Router, route
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.types import Guard

from weft.server.awake import NEEDS_NO_MODEL, SERVED_WHILE_LOADING
from weft.server.errors import ERRORS
from weft.server.json_request import JsonRequest

Responses = Mapping[int, ResponseSpec]
"""Error responses in the OpenAPI document, by status."""


def provided(provider: Callable[..., object]) -> Provide:
    """Returns a dependency whose provider is called on the event loop."""
    return Provide(provider, sync_to_thread=False)


class Api:
    """One API, whose handlers are added by the decorator `route`."""

    def __init__(
        self,
        tag: str,
        errors: Responses = ERRORS,
        dependencies: Mapping[str, Provide] = MappingProxyType({}),
        guards: Sequence[Guard] = (),
        is_served_while_loading: bool = False,
    ) -> None:
        """Creates an API without routes.

        Args:
            tag: Tag of its operations in the OpenAPI document.
            errors: Errors that any of its routes may return.
            dependencies: Dependencies of its handlers.
            guards: Called before each of its handlers; they raise an error to refuse the request.
            is_served_while_loading: Whether routes that need no model also answer while it is loaded.
        """
        self._without_model = NEEDS_NO_MODEL | (SERVED_WHILE_LOADING if is_served_while_loading else {})
        self._guards = guards
        self._tag = tag
        self._errors = errors
        self._dependencies = dependencies
        self._handlers: list[HTTPRouteHandler] = []
        self._paths: list[str] = []

    def route(
        self,
        method: Literal["GET", "POST", "PATCH", "DELETE"],
        *paths: str,
        summary: str,
        errors: Responses = MappingProxyType({}),
        needs_model: bool = True,
        status_code: int = 200,
        **more: Any,  # noqa: ANN401 (other options of Litestar's decorators)
    ) -> Callable[[Callable[..., object]], HTTPRouteHandler]:
        """Returns a decorator for the handler of a method at some paths.

        Args:
            method: The method.
            paths: Paths, sorted in the OpenAPI document.
            summary: Summary of the operation.
            errors: Errors in addition to those of the whole API.
            needs_model: Whether a request loads the model, or postpones its unloading.
            status_code: Status of successful responses.
            more: Options of Litestar's `route`.
        """

        def add(function: Callable[..., object]) -> HTTPRouteHandler:
            handler = route(
                list(paths),
                http_method=method,
                status_code=status_code,
                responses={**self._errors, **errors},
                opt={} if needs_model else self._without_model,
                summary=summary,
                **more,
            )(function)
            self._handlers.append(handler)
            self._paths += sorted(paths)
            return handler

        return add

    def router(self) -> Router:
        """Returns the routes, for one application."""
        router = Router(
            "/",
            route_handlers=self._handlers,
            dependencies=self._dependencies,
            guards=self._guards,
            request_class=JsonRequest,
            tags=[self._tag],
        )
        # Litestar keeps the paths of a handler as a set.
        router.routes.sort(key=lambda route: self._paths.index(route.path))
        return router
