"""The OpenAPI document, which the page at `/docs` shows."""

import asyncio
from contextvars import Context
from typing import Any

from litestar import Litestar, Request, Response, Router
from litestar.exceptions import NotFoundException
from litestar.openapi.plugins import JsonRenderPlugin

from weft.server.awake import NEEDS_NO_MODEL
from weft.server.executor import Executor, Purpose
from weft.server.field_texts import field_text

__all__ = ["Document", "document_router"]


class Document:
    """The OpenAPI document, generated on the first request and cached.

    Generating takes several hundred milliseconds, so it runs on a worker thread.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._making: asyncio.Task[bytes] | None = None

    async def response(self, request: Request[Any, Any, Any]) -> Response[bytes]:
        """Returns the document.

        Raises:
            NotFoundException: The path continues below the document's own.
        """
        if request.path_params:
            raise NotFoundException
        if self._making is None:
            # Runs in its own task and context: a client that disconnects must not cancel it for others.
            making = self._executor.run_in_thread(Purpose.DOCS, 0, _make, request.app, request)
            self._making = asyncio.create_task(making, context=Context())
        return Response(await asyncio.shield(self._making), media_type=JsonRenderPlugin().media_type)


def _make(app: Litestar, request: Request[Any, Any, Any]) -> bytes:
    document = app.openapi_schema.to_schema()
    schemas = document["components"]["schemas"]
    for body in _body_names(document):
        for field, about in schemas[body]["properties"].items():
            if (text := field_text(body, field)) is not None:
                about["description"] = text.description
    return JsonRenderPlugin.render_json(request, document)


def _body_names(document: dict[str, Any]) -> set[str]:
    """Returns the names of the schemas that are bodies of requests."""
    operations = [operation for operations in document["paths"].values() for operation in operations.values()]
    contents = [content for operation in operations for content in operation.get("requestBody", {}).get("content", {}).values()]
    schemas = [schema for content in contents for schema in content["schema"].get("oneOf", [content["schema"]])]
    return {schema["$ref"].rsplit("/", 1)[-1] for schema in schemas if "$ref" in schema}


def document_router(document: Document) -> Router:
    """Returns a router for the document. It replaces Litestar's handler, which would generate the document on the event loop."""

    # A function instead of the bound method: Litestar copies a method's object.
    async def response(request: Request[Any, Any, Any]) -> Response[bytes]:
        return await document.response(request)

    return Router(
        "/openapi.json",
        route_handlers=[],
        include_in_schema=False,
        dto=None,
        return_dto=None,
        before_request=response,
        opt=NEEDS_NO_MODEL,
    )
