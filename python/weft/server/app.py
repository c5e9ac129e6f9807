"""The application: the only place where routes, errors and the engine meet."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from litestar import Litestar, Request
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin

from weft import Engine
from weft.server.docs import docs
from weft.server.errors import error_response
from weft.server.llamacpp.routes import router as llamacpp_router
from weft.server.openai.routes import router as openai_router
from weft.server.service import Service
from weft.settings import Settings

__all__ = ["create_app"]

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Bodies above this are answered 413: a prompt of any context known today is far smaller."""

Told = Callable[[BaseException | None], object]


def create_app(engine: Engine, settings: Settings | None = None, *, on_started: Told | None = None) -> Litestar:
    """Makes an ASGI application of an engine that is not started yet.

    The application listens at once, starts the engine meanwhile and closes it at the end. Until the model is loaded every
    route is 503.

    Args:
        engine: The engine; the application owns it from now on.
        settings: What requests leave unsaid, and the model's name; the engine has its own settings already.
        on_started: Called once, with None when the model is loaded, or with what went wrong.
    """
    service = Service(engine, settings or Settings())

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        starting = asyncio.create_task(service.start())
        if on_started is not None:
            starting.add_done_callback(lambda task: None if task.cancelled() else on_started(task.exception()))
        try:
            yield
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await service.stop()

    def provide_service() -> Service:
        return service

    async def require_ready(_: Request[Any, Any, Any]) -> None:
        service.require_ready()

    return Litestar(
        route_handlers=[llamacpp_router, openai_router, docs],
        dependencies={"service": Provide(provide_service, sync_to_thread=False)},
        before_request=require_ready,
        lifespan=[lifespan],
        exception_handlers={Exception: error_response},
        request_max_body_size=MAX_BODY_BYTES,
        openapi_config=OpenAPIConfig(
            title="Weft",
            version=service.build,
            use_handler_docstrings=True,
            path="/openapi.json",
            render_plugins=[JsonRenderPlugin(path="/")],
        ),
        # Granian's lines and ours go to one place; Litestar would replace the logging that is set up.
        logging_config=None,
    )
