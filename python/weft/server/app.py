"""The Litestar application: connects routes, error responses and the engine."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from litestar import Litestar
from litestar.datastructures import State
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Server

from weft import Engine, WeftError
from weft._native import VERSION
from weft.server.anthropic import errors as anthropic
from weft.server.anthropic.routes import api as anthropic_api
from weft.server.api import provided
from weft.server.awake import KeepAwake
from weft.server.cache_api.routes import api as cache_api
from weft.server.compat import parallel
from weft.server.compat import single_request_batching as srb
from weft.server.compat.stream import api as compat_api
from weft.server.context import caller
from weft.server.docs import Document, document_router
from weft.server.documents_api.branch_routes import api as branches_api
from weft.server.documents_api.document_routes import api as documents_api
from weft.server.documents_api.node_routes import api as nodes_api
from weft.server.documents_api.service import DocumentService
from weft.server.errors import ErrorResponses
from weft.server.gateway import Gateway, prefix_of
from weft.server.json_request import bodies_budget
from weft.server.llamacpp import metrics, properties, slots
from weft.server.llamacpp.routes import api as llamacpp_api
from weft.server.llamacpp.streams import api as streams_api
from weft.server.ollama import answer as ollama
from weft.server.ollama import models as ollama_models
from weft.server.ollama.routes import api as ollama_api
from weft.server.openai import models
from weft.server.openai.routes import api as openai_api
from weft.server.requests_api.routes import api as requests_api
from weft.server.responses.routes import api as responses_api
from weft.server.responses.service import ResponseService
from weft.server.score_api.routes import api as score_api
from weft.server.service import Service
from weft.server.streaming.event_formats import EventFormat, EventFormats
from weft.settings import Settings

logger = logging.getLogger(__name__)

APIS = (
    *(llamacpp_api, streams_api, openai_api, responses_api, anthropic_api, ollama_api),
    *(compat_api, cache_api, score_api, requests_api, documents_api, nodes_api, branches_api),
)
"""All APIs, in the order of the OpenAPI document."""

StartCallback = Callable[[Exception | None], object]


def create_app(
    engine: Engine,
    settings: Settings | None = None,
    *,
    loading: Awaitable[None] | None = None,
    on_started: StartCallback | None = None,
    on_died: Callable[[], object] | None = None,
    background: Callable[[Gateway], AbstractAsyncContextManager[None]] | None = None,
) -> Gateway:
    """Creates an ASGI application for an engine that is not running yet.

    The application starts the engine in the background and closes it on shutdown. Every route answers 503 until the model is
    loaded, except those of documents that do not need it, and after the engine has stopped.

    Args:
        engine: The engine. The application takes ownership of it.
        settings: The model's name and defaults of request fields. The engine's own configuration is separate.
        loading: The awaitable that `engine.start()` returned, if it was called already. With None the application calls it.
        on_started: Called once: with None when the model is loaded, or with the exception that prevented it.
        on_died: Called after the engine died unexpectedly, once that is logged and open streams have ended with an error.
        background: Context manager that is entered with the application and left before the engine is closed.

    Raises:
        InvalidConfigError: The file of API keys cannot be read.
    """
    snapshots = (
        *(properties.properties, slots.slots, slots.of_engine, metrics.of_engine),
        *(models.models, models.model),
        *(ollama_models.listed, ollama_models.shown),
    )
    service = Service(engine, settings or Settings(), snapshots)
    errors = ErrorResponses({"/v1/messages": anthropic.shape, "/api": ollama.shape})

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        running = asyncio.create_task(_run(service, loading, on_started, on_died))
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await service.stop()
            await document_service.close()

    has_keys = bool(service.settings.api_keys or service.settings.api_key_file)
    document_service = DocumentService(service, has_keys=has_keys)
    responses = ResponseService(service)
    event_formats = EventFormats("openai", {"srb": EventFormat(srb.prepared, srb.ChunkEncoder)})
    completion_formats = EventFormats("llama.cpp", {"parallel": EventFormat(parallel.prepared, parallel.ChunkEncoder)})
    litestar = Litestar(
        route_handlers=[api.router() for api in APIS],
        # Litestar answers 500 where a field of a body has the name of a dependency and is invalid.
        dependencies={
            "service": provided(lambda: service),
            "responses": provided(lambda: responses),
            "document_service": provided(lambda: document_service),
            "event_formats": provided(lambda: event_formats),
            "completion_formats": provided(lambda: completion_formats),
            "caller": provided(caller),
        },
        lifespan=[lifespan] if background is None else [lifespan, lambda _: background(gateway)],
        middleware=[] if service.sleep.after_s is None else [KeepAwake(service.sleep)],
        exception_handlers={Exception: errors.response},
        # Routes that read a body use `JsonRequest`, whose limit depends on the model.
        request_max_body_size=None,
        openapi_config=OpenAPIConfig(
            title="Weft",
            version=VERSION,  # Reading the installed metadata is slow.
            servers=[Server(url=prefix_of(service.settings) or "/")],
            use_handler_docstrings=True,
            openapi_router=document_router(Document(service.executor)),
            render_plugins=[JsonRenderPlugin(path="/")],
        ),
        # Granian's log lines and ours share one handler; Litestar would replace the logging configuration.
        logging_config=None,
        state=State({"service": service, "bodies": bodies_budget()}),
    )
    gateway = Gateway(service, errors, litestar)
    return gateway


async def _run(
    service: Service, loading: Awaitable[None] | None, on_started: StartCallback | None, on_died: Callable[[], object] | None
) -> None:
    """Starts the engine and monitors it. Returns when the engine failed to start or has died."""
    failure: Exception | None = None
    try:
        await service.lifecycle.start(loading)
    except WeftError as error:
        failure = error
        if on_started is None:  # The error would otherwise go unreported.
            logger.error("%s", error)
    except Exception as error:  # noqa: BLE001 (the service has logged it)
        failure = error
    if on_started is not None:
        on_started(failure)
    if failure is not None:
        return
    await service.lifecycle.wait_until_dead()
    logger.critical("the engine has died: its worker thread ended unexpectedly")
    await service.stop()
    if on_died is not None:
        on_died()
