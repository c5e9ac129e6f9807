"""Routes for documents as wholes: listing, search, changes, files, and the stream of events.

Each client sees the documents that were made with its API key.
"""

from typing import Any, cast

import msgspec
from litestar import Request
from litestar.params import FromPath, FromQuery, JSONBody
from litestar.response.base import ASGIResponse

from weft import InvalidRequestError
from weft.documents import catalog
from weft.documents.catalog import DocumentChange
from weft.documents.formats import EXPORTS, IMPORTS, export, parse
from weft.documents.formats.registry import ExportFormat, ImportFormat
from weft.documents.library import imported
from weft.documents.records import Document, ImportedDocument
from weft.documents.search import Hit, Page, search
from weft.fields.excerpt import excerpt
from weft.server.auth import current_owner
from weft.server.context import ServiceDependency
from weft.server.documents_api.access import DOCUMENT, Documents, key_of, new_api
from weft.server.documents_api.feed import FeedResponse
from weft.server.documents_api.reports import DocumentsReport, Quotas, SearchReport
from weft.server.documents_api.schemas import DocumentBody, DocumentChangeBody, DuplicateBody, ImportBody
from weft.server.errors import NOT_FOUND
from weft.server.streaming.responses import Answer, AwaitedResponse

LAST_EVENT_ID = "last-event-id"
"""Header with which browsers resume a stream of events."""

MAX_EVENTS_S = 86_400
"""Maximum of `max_s`, in seconds."""

MAX_HITS = 1_000
"""Maximum matches of one response, and of one search."""

api = new_api()


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
    """Creates an empty document. The first document creates the server's file."""
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
async def import_document(data: JSONBody[ImportBody], documents: Documents) -> ImportedDocument:
    """Creates a document from the content of a file.

    `notes` states what of the file does not apply, and what was assumed.
    """
    if data.format not in IMPORTS:
        raise InvalidRequestError("format", f"format is {excerpt(data.format)}; it must be one of {', '.join(IMPORTS)}")
    parsed = await documents.file.convert(parse, cast("ImportFormat", data.format), data.content.encode())
    document = parsed.document
    document.title = document.title if data.title is None else data.title
    document.folder = document.folder if data.folder is None else data.folder
    return imported(await documents.add(current_owner(), document), parsed)


@api.route("GET", DOCUMENT, summary="Retrieve a document", errors=NOT_FOUND, needs_model=False)
async def retrieve(document_id: FromPath[str], documents: Documents) -> Document:
    """Returns a document without its nodes."""
    return await documents.run(catalog.document, key_of(document_id))


@api.route("PATCH", DOCUMENT, summary="Change a document", errors=NOT_FOUND, needs_model=False)
async def change(document_id: FromPath[str], data: JSONBody[DocumentChangeBody], documents: Documents) -> Document:
    """Changes title, folder or settings, or moves the document to the trash and back. The last change of a field applies."""
    return await documents.change(key_of(document_id), DocumentChange(**msgspec.structs.asdict(data)))


@api.route("DELETE", DOCUMENT, summary="Delete a document", errors=NOT_FOUND, needs_model=False, status_code=204)
async def delete(document_id: FromPath[str], documents: Documents) -> None:
    """Deletes a document with all its nodes permanently, and cancels its branches."""
    await documents.delete(key_of(document_id))


@api.route("POST", f"{DOCUMENT}/duplicate", summary="Duplicate a document", errors=NOT_FOUND, needs_model=False, status_code=201)
async def duplicate(document_id: FromPath[str], data: JSONBody[DuplicateBody], documents: Documents) -> Document:
    """Creates a document with the settings and all nodes of another one, which get new ids."""
    return await documents.duplicate(key_of(document_id), data.title, data.folder)


@api.route("GET", f"{DOCUMENT}/export", summary="Export a document", errors=NOT_FOUND, needs_model=False)
async def export_document(
    document_id: FromPath[str],
    documents: Documents,
    format: FromQuery[str] = "json",  # noqa: A002 (the query's name)
    node: FromQuery[int | None] = None,
) -> Answer[None]:
    """Returns a document as a file, whole or the path to a node, as the format requires."""
    if format not in EXPORTS:
        raise InvalidRequestError("format", f"format is {excerpt(format)}; it must be one of {', '.join(EXPORTS)}")
    name = cast("ExportFormat", format)

    async def file() -> ASGIResponse:
        read = await documents.read(key_of(document_id))
        body = await documents.file.convert(export, name, read, node)
        kind = EXPORTS[name]
        # The content is other people's: no browser may show it as a page of this server.
        headers = {
            "content-disposition": f'attachment; filename="document.{kind.extension}"',
            "x-content-type-options": "nosniff",
        }
        return ASGIResponse(body=body, media_type=kind.media_type, headers=headers)

    return Answer(AwaitedResponse(file))
