"""The OpenAPI document and the HTML page at `/docs` that is rendered from it.

Litestar's own pages load scripts from other hosts. This page is plain HTML and works without network access.
"""

import asyncio
from contextvars import Context
from importlib.resources import files
from typing import Any

from litestar import Litestar, MediaType, Request, Response, Router, get
from litestar.exceptions import NotFoundException
from litestar.openapi.plugins import JsonRenderPlugin

from weft.server.awake import NEEDS_NO_MODEL
from weft.server.context import ContextDependency
from weft.server.run.executor import Executor, Purpose

__all__ = ["Documentation", "docs", "document_router"]


class Documentation:
    """API documentation, generated on the first request and cached.

    Generating takes several hundred milliseconds, so it runs on a worker thread.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._making: asyncio.Task[tuple[bytes, str]] | None = None

    async def document(self, request: Request[Any, Any, Any]) -> Response[bytes]:
        """Returns the OpenAPI document.

        Raises:
            NotFoundException: The path continues below the document's own.
        """
        if request.path_params:
            raise NotFoundException
        document, _ = await self._made(request)
        return Response(document, media_type=JsonRenderPlugin().media_type)

    async def page(self, request: Request[Any, Any, Any]) -> str:
        """Returns the HTML page."""
        _, page = await self._made(request)
        return page

    async def _made(self, request: Request[Any, Any, Any]) -> tuple[bytes, str]:
        if self._making is None:
            # Runs in its own task and context: a client that disconnects must not cancel it for others.
            making = self._executor.run_in_thread(Purpose.DOCS, 0, _make, request.app, request)
            self._making = asyncio.create_task(making, context=Context())
        return await asyncio.shield(self._making)


def _make(app: Litestar, request: Request[Any, Any, Any]) -> tuple[bytes, str]:
    from jinja2 import Environment  # noqa: PLC0415 (slow to import, and only needed for this page)

    document = app.openapi_schema.to_schema()
    text = (files("weft.server") / "docs.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)
    return JsonRenderPlugin.render_json(request, document), template.render(document=document, type_of=type_of)


@get("/docs", media_type=MediaType.HTML, include_in_schema=False, opt=NEEDS_NO_MODEL)
async def docs(request: Request[Any, Any, Any], request_context: ContextDependency) -> str:
    """HTML documentation of the routes."""
    return await request_context.documentation.page(request)


def document_router(documentation: Documentation) -> Router:
    """Returns a router for the document. It replaces Litestar's handler, which would generate the document on the event loop."""

    # A function instead of the bound method: Litestar copies a method's object.
    async def document(request: Request[Any, Any, Any]) -> Response[bytes]:
        return await documentation.document(request)

    return Router(
        "/openapi.json",
        route_handlers=[],
        include_in_schema=False,
        dto=None,
        return_dto=None,
        before_request=document,
        opt=NEEDS_NO_MODEL,
    )


def type_of(schema: dict[str, Any]) -> str:
    """Returns a short description of a schema: `list of integer`, `string or null`, or the name of a referenced object."""
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if alternatives := schema.get("oneOf") or schema.get("anyOf"):
        return " or ".join(type_of(alternative) for alternative in alternatives)
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return f"list of {type_of(schema.get('items', {}))}"
    return str(kind)
