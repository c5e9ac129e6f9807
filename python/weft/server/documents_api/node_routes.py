"""Routes for the nodes of a document."""

import msgspec
from litestar.params import FromPath, FromQuery, JSONBody

from weft import InvalidRequestError
from weft.documents.nodes import Content, NodeChange
from weft.documents.records import Node
from weft.server.documents_api import translate
from weft.server.documents_api.access import DOCUMENT, NODE, Documents, key_of, new_api
from weft.server.documents_api.reports import ChangedNodes, NodeChanged, NodesReport, TokensReport
from weft.server.documents_api.schemas import EmptyBody, MoveBody, NewNodeBody, NodeChangeBody, SplitBody
from weft.server.errors import CONFLICT, NOT_FOUND
from weft.server.streaming.responses import Answer, AwaitedResponse

MAX_PAGE = 10_000
"""Maximum nodes of one response."""

api = new_api()


@api.route("GET", f"{DOCUMENT}/nodes", summary="List nodes", errors=NOT_FOUND, needs_model=False)
async def list_nodes(
    document_id: FromPath[str], documents: Documents, after: FromQuery[int] = 0, limit: FromQuery[int] = 1_000
) -> Answer[NodesReport]:
    """Returns nodes in the order of their ids, including trashed nodes and nodes that a branch is writing."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidRequestError("limit", f"limit is {limit}; it must be 1 to {MAX_PAGE}")

    async def report() -> msgspec.Raw:
        found = await documents.nodes(key_of(document_id), after=after, limit=limit)
        # JSON of thousands of nodes is made on another thread.
        return msgspec.Raw(await documents.file.convert(msgspec.json.encode, found))

    return Answer(AwaitedResponse(report))


@api.route("POST", f"{DOCUMENT}/nodes", summary="Create a node", errors=NOT_FOUND, needs_model=False, status_code=201)
async def create_node(document_id: FromPath[str], data: JSONBody[NewNodeBody], documents: Documents) -> Node:
    """Creates a node with a text."""
    content = Content(text=data.text, label=data.label, note=data.note, is_bookmarked=data.is_bookmarked)
    return await documents.add_node(key_of(document_id), data.parent, content, data.index)


@api.route("GET", NODE, summary="Retrieve a node", errors=NOT_FOUND, needs_model=False)
async def retrieve_node(document_id: FromPath[str], node_id: FromPath[int], documents: Documents) -> Node:
    """Returns a node with its text so far."""
    return (await documents.node(key_of(document_id), node_id)).node


@api.route("PATCH", NODE, summary="Change a node", errors=NOT_FOUND | CONFLICT, needs_model=False)
async def change_node(
    document_id: FromPath[str], node_id: FromPath[int], data: JSONBody[NodeChangeBody], documents: Documents
) -> NodeChanged:
    """Changes text, label, note or bookmark, or moves the node with its descendants to the trash and back.

    An edit of the text names the version that it changes. If another one is current, or a branch is writing the node, the text
    becomes a new sibling.
    """
    node, is_sibling = await documents.change_node(key_of(document_id), node_id, NodeChange(**msgspec.structs.asdict(data)))
    return NodeChanged(node=node, is_sibling=is_sibling)


@api.route("DELETE", NODE, summary="Delete a node", errors=NOT_FOUND, needs_model=False)
async def delete_node(document_id: FromPath[str], node_id: FromPath[int], documents: Documents) -> ChangedNodes:
    """Deletes a node with its descendants permanently, and cancels their branches."""
    return ChangedNodes(nodes=[], deleted=await documents.delete_node(key_of(document_id), node_id))


@api.route("GET", f"{NODE}/tokens", summary="List the tokens of a node", errors=NOT_FOUND, needs_model=False)
async def list_tokens(document_id: FromPath[str], node_id: FromPath[int], documents: Documents) -> Answer[TokensReport]:
    """Returns the tokens of a node's text, with the probabilities and alternatives that were stored."""

    async def report() -> msgspec.Raw:
        stored = await documents.node(key_of(document_id), node_id)
        digest = await documents.model_digest()
        return msgspec.Raw(await documents.file.convert(lambda: msgspec.json.encode(translate.tokens_report(stored, digest))))

    return Answer(AwaitedResponse(report))


@api.route("POST", f"{NODE}/split", summary="Split a node", errors=NOT_FOUND | CONFLICT, needs_model=False)
async def split(
    document_id: FromPath[str], node_id: FromPath[int], data: JSONBody[SplitBody], documents: Documents
) -> ChangedNodes:
    """Splits a node: its beginning stays, and the rest becomes its only child, with its children."""
    return ChangedNodes(nodes=await documents.split(key_of(document_id), node_id, data.at))


@api.route("POST", f"{NODE}/merge", summary="Merge a node with its child", errors=NOT_FOUND | CONFLICT, needs_model=False)
async def merge(
    document_id: FromPath[str],
    node_id: FromPath[int],
    data: JSONBody[EmptyBody],  # noqa: ARG001 (a body is required)
    documents: Documents,
) -> ChangedNodes:
    """Joins a node with its only child, whose children become the node's."""
    changed, gone = await documents.merge(key_of(document_id), node_id)
    return ChangedNodes(nodes=changed, deleted=[gone])


@api.route("POST", f"{NODE}/move", summary="Move a node", errors=NOT_FOUND | CONFLICT, needs_model=False)
async def move(
    document_id: FromPath[str], node_id: FromPath[int], data: JSONBody[MoveBody], documents: Documents
) -> ChangedNodes:
    """Moves a node with its descendants to another parent, or to another index among its siblings."""
    return ChangedNodes(nodes=await documents.move(key_of(document_id), node_id, data.parent, data.index))
