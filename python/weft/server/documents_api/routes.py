"""Routes for documents. Each client sees the documents that were made with its API key."""

from typing import Any, cast

import msgspec
from litestar import Request
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.handlers import BaseRouteHandler
from litestar.params import FromPath, FromQuery, JSONBody, SkipValidation
from litestar.response.base import ASGIResponse

from weft import InvalidRequestError, NotSupportedError
from weft.documents import catalog
from weft.documents.catalog import DocumentChange
from weft.documents.formats import EXPORTS, IMPORTS, export, parse
from weft.documents.formats.registry import ExportFormat, ImportFormat
from weft.documents.nodes import Content, NodeChange
from weft.documents.records import Document, DocumentKey, Node
from weft.documents.search import Hit, Page, search
from weft.fields.excerpt import excerpt
from weft.server.api import Api, provided
from weft.server.auth import current_owner
from weft.server.context import ServiceDependency
from weft.server.documents_api import translate
from weft.server.documents_api.availability import is_public_address
from weft.server.documents_api.feed import FeedResponse
from weft.server.documents_api.reports import (
    ChangedNodes,
    Continued,
    DocumentsReport,
    NodeChanged,
    NodesReport,
    Quotas,
    SearchReport,
    TokensReport,
)
from weft.server.documents_api.schemas import (
    ContinueBody,
    DocumentBody,
    DocumentChangeBody,
    EmptyBody,
    ImportBody,
    MoveBody,
    NewNodeBody,
    NodeChangeBody,
    SplitBody,
)
from weft.server.documents_api.service import DocumentService
from weft.server.errors import CONFLICT, ERRORS, FULL, NOT_FOUND, NOT_SUPPORTED, JsonRequiredError
from weft.server.streaming.responses import Answer, AwaitedResponse

LAST_EVENT_ID = "last-event-id"
"""Header with which browsers resume a stream of events."""

MAX_PAGE = 10_000
"""Maximum nodes of one response."""

MAX_EVENTS_S = 86_400
"""Maximum of `max_s`, in seconds."""

MAX_HITS = 1_000
"""Maximum matches of one response, and of one search."""


async def require_json(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Refuses changes by forms of web pages, which cannot send JSON.

    Raises:
        JsonRequiredError: The body is not JSON by its `Content-Type`.
    """
    kind = connection.headers.get("content-type", "")
    if connection.scope.get("method") in ("POST", "PATCH") and kind.partition(";")[0].strip().lower() != "application/json":
        raise JsonRequiredError(kind)


async def require_local_address(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Refuses requests without keys at an address that other machines reach, as in another ASGI server.

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

api = Api(
    "Documents",
    ERRORS | NOT_SUPPORTED | FULL,
    dependencies={"documents": provided(documents)},
    # Litestar runs other guards than coroutines on asyncio's own threads, for which requests would wait.
    guards=[require_json, require_local_address],
)


@api.route("GET", "/documents", summary="List documents", needs_model=False)
async def list_documents(documents: Documents) -> Answer[DocumentsReport]:
    """Returns the caller's documents, including those in the trash, and the position in the stream of events."""
    owner = current_owner()

    async def report() -> DocumentsReport:
        cursor = documents.feed(owner).cursor
        found = await documents.run(catalog.documents, owner)
        limits = documents.limits
        quotas = Quotas(
            max_documents=limits.max_documents,
            max_nodes=limits.max_nodes,
            max_bytes=limits.max_bytes,
            n_bytes=sum(document.n_bytes for document in found),
        )
        return DocumentsReport(documents=found, cursor=cursor, quotas=quotas)

    return Answer(AwaitedResponse(report))


@api.route("POST", "/documents", summary="Create a document", needs_model=False, status_code=201)
async def create(data: JSONBody[DocumentBody], documents: Documents) -> Document:
    """Creates an empty document. The first one creates the server's file."""
    return await documents.create(current_owner(), DocumentChange(**msgspec.structs.asdict(data)))


@api.route("GET", "/documents/events", summary="Follow the changes of all documents", needs_model=False)
async def events(
    request: Request[Any, Any, Any],
    service: ServiceDependency,
    documents: Documents,
    after: FromQuery[str | None] = None,
    max_s: FromQuery[float | None] = None,
) -> Answer[None]:
    """Streams all changes of the caller's documents, including generated text, as server-sent events.

    The stream continues from `after`, a cursor of a response or the id of an event, or from the header `Last-Event-ID`.
    """
    feed = documents.feed(current_owner())
    if max_s is not None and not 0 < max_s <= MAX_EVENTS_S:
        raise InvalidRequestError("max_s", f"max_s is {max_s}; it must be above 0, and at most {MAX_EVENTS_S}")
    cursor = after or request.headers.get(LAST_EVENT_ID)
    return Answer(FeedResponse(feed, cursor, service.settings.ping_s, max_s))


@api.route("GET", "/documents/search", summary="Search documents", needs_model=False)
async def find(
    documents: Documents,
    q: FromQuery[str],
    document: FromQuery[str | None] = None,
    after: FromQuery[int] = 0,
    limit: FromQuery[int] = 100,
) -> Answer[SearchReport]:
    """Returns nodes whose text, note or label contains a text, regardless of case and diacritics."""
    if not 1 <= limit <= MAX_HITS:
        raise InvalidRequestError("limit", f"limit is {limit}; it must be 1 to {MAX_HITS}")
    if not q.strip():
        raise InvalidRequestError("q", "q is empty; it must be the text to find")
    owner = current_owner()

    async def report() -> SearchReport:
        page = Page([], after)
        hits: list[Hit] = []
        while page.next is not None and len(hits) < limit:
            page = await documents.run(search, owner, q, document_id=document, after=page.next, limit=limit - len(hits))
            hits += page.hits
        return SearchReport(hits=hits, next=page.next)

    return Answer(AwaitedResponse(report))


@api.route("POST", "/documents/import", summary="Import a document", needs_model=False, status_code=201)
async def import_document(data: JSONBody[ImportBody], documents: Documents) -> Document:
    """Creates a document from the content of a file."""
    if data.format not in IMPORTS:
        raise InvalidRequestError("format", f"format is {excerpt(data.format)}; it must be one of {', '.join(IMPORTS)}")
    read = await documents.file.convert(parse, cast("ImportFormat", data.format), data.content.encode())
    read.title = read.title if data.title is None else data.title
    read.folder = read.folder if data.folder is None else data.folder
    return await documents.add(current_owner(), read)


@api.route("GET", "/documents/{document_id:str}", summary="Retrieve a document", errors=NOT_FOUND, needs_model=False)
async def retrieve(document_id: FromPath[str], documents: Documents) -> Document:
    """Returns a document without its nodes."""
    return await documents.run(catalog.document, _key(document_id))


@api.route("PATCH", "/documents/{document_id:str}", summary="Change a document", errors=NOT_FOUND, needs_model=False)
async def change(document_id: FromPath[str], data: JSONBody[DocumentChangeBody], documents: Documents) -> Document:
    """Changes title, folder or settings, or moves the document to the trash and back. The last change of a field wins."""
    return await documents.change(_key(document_id), DocumentChange(**msgspec.structs.asdict(data)))


@api.route(
    "DELETE", "/documents/{document_id:str}", summary="Delete a document", errors=NOT_FOUND, needs_model=False, status_code=204
)
async def delete(document_id: FromPath[str], documents: Documents) -> None:
    """Deletes a document with all its nodes for good, and cancels its branches."""
    await documents.delete(_key(document_id))


@api.route("GET", "/documents/{document_id:str}/export", summary="Export a document", errors=NOT_FOUND, needs_model=False)
async def export_document(
    document_id: FromPath[str],
    documents: Documents,
    format: FromQuery[str] = "json",  # noqa: A002 (the query's name)
    node: FromQuery[int | None] = None,
) -> Answer[None]:
    """Returns the file of a document: all of it as JSON, or the path to a node as Markdown or text."""
    if format not in EXPORTS:
        raise InvalidRequestError("format", f"format is {excerpt(format)}; it must be one of {', '.join(EXPORTS)}")
    name = cast("ExportFormat", format)

    async def file() -> ASGIResponse:
        read = await documents.read(_key(document_id))
        body = await documents.file.convert(export, name, read, node)
        kind = EXPORTS[name]
        # The content is other people's: no browser may show it as a page of this server.
        headers = {
            "content-disposition": f'attachment; filename="document.{kind.extension}"',
            "x-content-type-options": "nosniff",
        }
        return ASGIResponse(body=body, media_type=kind.media_type, headers=headers)

    return Answer(AwaitedResponse(file))


@api.route("GET", "/documents/{document_id:str}/nodes", summary="List nodes", errors=NOT_FOUND, needs_model=False)
async def list_nodes(
    document_id: FromPath[str], documents: Documents, after: FromQuery[int] = 0, limit: FromQuery[int] = 1_000
) -> Answer[NodesReport]:
    """Returns nodes in the order of their ids, including those in the trash and those that are being written."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidRequestError("limit", f"limit is {limit}; it must be 1 to {MAX_PAGE}")

    async def report() -> msgspec.Raw:
        found = await documents.nodes(_key(document_id), after=after, limit=limit)
        # JSON of thousands of nodes is made on another thread.
        return msgspec.Raw(await documents.file.convert(msgspec.json.encode, found))

    return Answer(AwaitedResponse(report))


@api.route(
    "POST", "/documents/{document_id:str}/nodes", summary="Create a node", errors=NOT_FOUND, needs_model=False, status_code=201
)
async def create_node(document_id: FromPath[str], data: JSONBody[NewNodeBody], documents: Documents) -> Node:
    """Creates a node with a text."""
    content = Content(text=data.text, label=data.label, note=data.note, is_bookmarked=data.is_bookmarked)
    return await documents.add_node(_key(document_id), data.parent, content, data.index)


@api.route(
    "GET", "/documents/{document_id:str}/nodes/{node_id:int}", summary="Retrieve a node", errors=NOT_FOUND, needs_model=False
)
async def retrieve_node(document_id: FromPath[str], node_id: FromPath[int], documents: Documents) -> Node:
    """Returns a node with the text that was written so far."""
    return (await documents.node(_key(document_id), node_id)).node


@api.route(
    "PATCH",
    "/documents/{document_id:str}/nodes/{node_id:int}",
    summary="Change a node",
    errors=NOT_FOUND | CONFLICT,
    needs_model=False,
)
async def change_node(
    document_id: FromPath[str], node_id: FromPath[int], data: JSONBody[NodeChangeBody], documents: Documents
) -> NodeChanged:
    """Changes text, label, note or bookmark, or moves the node with its descendants to the trash and back.

    An edit of the text names the version that it changes. If another one is current, or a branch is writing the node, the text
    becomes a new sibling.
    """
    node, is_sibling = await documents.change_node(_key(document_id), node_id, NodeChange(**msgspec.structs.asdict(data)))
    return NodeChanged(node=node, is_sibling=is_sibling)


@api.route(
    "DELETE",
    "/documents/{document_id:str}/nodes/{node_id:int}",
    summary="Delete a node",
    errors=NOT_FOUND,
    needs_model=False,
)
async def delete_node(document_id: FromPath[str], node_id: FromPath[int], documents: Documents) -> ChangedNodes:
    """Deletes a node with its descendants for good, and cancels their branches."""
    return ChangedNodes(nodes=[], deleted=await documents.delete_node(_key(document_id), node_id))


@api.route(
    "GET",
    "/documents/{document_id:str}/nodes/{node_id:int}/tokens",
    summary="List the tokens of a node",
    errors=NOT_FOUND,
    needs_model=False,
)
async def list_tokens(document_id: FromPath[str], node_id: FromPath[int], documents: Documents) -> Answer[TokensReport]:
    """Returns the tokens of a node's text, with the probabilities and alternatives that were stored."""

    async def report() -> msgspec.Raw:
        stored = await documents.node(_key(document_id), node_id)
        digest = documents.model_digest
        return msgspec.Raw(await documents.file.convert(lambda: msgspec.json.encode(translate.tokens_report(stored, digest))))

    return Answer(AwaitedResponse(report))


@api.route(
    "POST",
    "/documents/{document_id:str}/nodes/{node_id:int}/continue",
    summary="Write branches",
    errors=NOT_FOUND | CONFLICT,
    status_code=201,
)
async def continue_node(
    document_id: FromPath[str], node_id: FromPath[int], data: JSONBody[ContinueBody], documents: Documents
) -> Continued:
    """Starts branches that continue a node, and returns their new nodes immediately. The server writes them to their ends.

    With `at`, the branches begin inside of the node, which is split there; also while the node itself is being written.
    """
    return await documents.continue_node(_key(document_id), node_id, data)


@api.route(
    "POST",
    "/documents/{document_id:str}/nodes/{node_id:int}/resume",
    summary="Resume an interrupted branch",
    errors=NOT_FOUND | CONFLICT,
)
async def resume(
    document_id: FromPath[str],
    node_id: FromPath[int],
    data: JSONBody[EmptyBody],  # noqa: ARG001 (a body is required)
    documents: Documents,
) -> Continued:
    """Continues an interrupted node where it ended, with the parameters of its branch."""
    return await documents.resume(_key(document_id), node_id)


@api.route(
    "POST",
    "/documents/{document_id:str}/nodes/{node_id:int}/stop",
    summary="Stop a branch",
    errors=NOT_FOUND,
    needs_model=False,
)
async def stop(document_id: FromPath[str], node_id: FromPath[int], data: JSONBody[EmptyBody], documents: Documents) -> Node:  # noqa: ARG001 (as above)
    """Stops the branch that writes a node, which keeps its text. Has no effect on other nodes."""
    return await documents.stop(_key(document_id), node_id)


@api.route(
    "POST",
    "/documents/{document_id:str}/nodes/{node_id:int}/split",
    summary="Split a node",
    errors=NOT_FOUND | CONFLICT,
    needs_model=False,
)
async def split(
    document_id: FromPath[str], node_id: FromPath[int], data: JSONBody[SplitBody], documents: Documents
) -> ChangedNodes:
    """Splits a node: its beginning stays, and the rest becomes its only child, with its children."""
    return ChangedNodes(nodes=await documents.split(_key(document_id), node_id, data.at))


@api.route(
    "POST",
    "/documents/{document_id:str}/nodes/{node_id:int}/merge",
    summary="Merge a node with its child",
    errors=NOT_FOUND | CONFLICT,
    needs_model=False,
)
async def merge(
    document_id: FromPath[str],
    node_id: FromPath[int],
    data: JSONBody[EmptyBody],  # noqa: ARG001 (a body is required)
    documents: Documents,
) -> ChangedNodes:
    """Joins a node with its only child, whose children become the node's."""
    changed, gone = await documents.merge(_key(document_id), node_id)
    return ChangedNodes(nodes=changed, deleted=[gone])


@api.route(
    "POST",
    "/documents/{document_id:str}/nodes/{node_id:int}/move",
    summary="Move a node",
    errors=NOT_FOUND | CONFLICT,
    needs_model=False,
)
async def move(
    document_id: FromPath[str], node_id: FromPath[int], data: JSONBody[MoveBody], documents: Documents
) -> ChangedNodes:
    """Moves a node with its descendants to another parent, or to another index among its siblings."""
    return ChangedNodes(nodes=await documents.move(_key(document_id), node_id, data.parent, data.index))


def _key(document_id: str) -> DocumentKey:
    return DocumentKey(current_owner(), document_id)
