"""Routes for branches, which the server writes into nodes."""

from litestar.params import FromPath, JSONBody

from weft.documents.records import Node
from weft.server.documents_api.access import DOCUMENT, NODE, Documents, key_of, new_api
from weft.server.documents_api.reports import Continued, Resumed
from weft.server.documents_api.schemas import ContinueBody, EmptyBody, ResumeAllBody, ResumeBody
from weft.server.errors import CONFLICT, NOT_FOUND

api = new_api()


@api.route("POST", f"{NODE}/continue", summary="Write branches", errors=NOT_FOUND | CONFLICT, status_code=201)
async def continue_node(
    document_id: FromPath[str], node_id: FromPath[int], data: JSONBody[ContinueBody], documents: Documents
) -> Continued:
    """Starts branches that continue a node, and returns their new nodes immediately.

    The branches run to their ends even if the client disconnects. With `at`, they begin inside the node, which is split there,
    even while a branch is writing it.
    """
    return await documents.continue_node(key_of(document_id), node_id, data)


@api.route("POST", f"{NODE}/resume", summary="Resume an interrupted branch", errors=NOT_FOUND | CONFLICT)
async def resume(
    document_id: FromPath[str], node_id: FromPath[int], data: JSONBody[ResumeBody], documents: Documents
) -> Continued:
    """Continues an interrupted node where it ended, with the parameters of its branch.

    The server does not store the `prompt` of a branch. A client that sent one sends it again; otherwise the branch continues the
    text of its path.
    """
    return await documents.resume(key_of(document_id), node_id, data.prompt)


@api.route("POST", f"{DOCUMENT}/resume", summary="Resume all interrupted branches", errors=NOT_FOUND)
async def resume_all(document_id: FromPath[str], data: JSONBody[ResumeAllBody], documents: Documents) -> Resumed:
    """Continues each interrupted node of a document where it ended. Nodes in the trash stay as they are."""
    return await documents.resume_all(key_of(document_id), data.prompts or {})


@api.route("POST", f"{NODE}/stop", summary="Stop a branch", errors=NOT_FOUND, needs_model=False)
async def stop(document_id: FromPath[str], node_id: FromPath[int], data: JSONBody[EmptyBody], documents: Documents) -> Node:  # noqa: ARG001 (a body is required)
    """Stops the branch that writes a node, which keeps its text. Has no effect on other nodes."""
    return await documents.stop(key_of(document_id), node_id)
