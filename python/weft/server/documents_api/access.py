"""Guards, dependencies and paths that all routes for documents share."""

from typing import Any

from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.handlers import BaseRouteHandler
from litestar.params import SkipValidation

from weft import NotSupportedError
from weft.documents.records import DocumentKey
from weft.server.api import Api, provided
from weft.server.auth import current_owner
from weft.server.documents_api.availability import is_public_address
from weft.server.documents_api.service import DocumentService
from weft.server.errors import ERRORS, FULL, NOT_SUPPORTED, JsonRequiredError

DOCUMENT = "/documents/{document_id:str}"

NODE = f"{DOCUMENT}/nodes/{{node_id:int}}"


async def require_json(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Refuses changes by forms of web pages, which cannot send JSON.

    Raises:
        JsonRequiredError: The body is not JSON by its `Content-Type`.
    """
    kind = connection.headers.get("content-type", "")
    if connection.scope.get("method") in ("POST", "PATCH") and kind.partition(";")[0].strip().lower() != "application/json":
        raise JsonRequiredError(kind)


async def require_local_address(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Refuses requests without keys at an address that other machines reach, which is possible under another ASGI server.

    Raises:
        NotSupportedError: The server offers no documents there.
    """
    host, _port = connection.scope.get("server") or ("", None)
    if current_owner() is None and is_public_address(host):
        raise NotSupportedError("documents are off: other machines reach this address, and the server has no API keys")


def documents(document_service: NamedDependency[SkipValidation[DocumentService]]) -> DocumentService:
    """Returns the operations.

    Raises:
        NotSupportedError: The server offers no documents.
    """
    if document_service.off_reason is not None:
        raise NotSupportedError(document_service.off_reason)
    return document_service


Documents = NamedDependency[SkipValidation[DocumentService]]


def new_api() -> Api:
    """Returns an API without routes. Its guards and dependencies apply to each route that is added."""
    return Api(
        "Documents",
        ERRORS | NOT_SUPPORTED | FULL,
        dependencies={"documents": provided(documents)},
        # Litestar runs guards that are not coroutines on asyncio's default threads, where they would wait for other work.
        guards=[require_json, require_local_address],
        is_served_while_loading=True,
    )


def key_of(document_id: str) -> DocumentKey:
    """Returns the document of the current request's owner."""
    return DocumentKey(current_owner(), document_id)
