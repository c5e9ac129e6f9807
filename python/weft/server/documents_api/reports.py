"""Responses of the routes for documents."""

from collections.abc import Sequence

import msgspec

from weft.documents.records import Document, Node
from weft.documents.search import Hit


class Quotas(msgspec.Struct, kw_only=True):
    """Quotas of the caller."""

    max_documents: int
    max_nodes: int
    """Nodes of one document."""
    max_bytes: int
    n_bytes: int
    """Bytes of all documents of the caller."""


class DocumentsReport(msgspec.Struct, kw_only=True):
    """The caller's documents, the last changed first."""

    documents: Sequence[Document]
    cursor: str
    """Position in the stream of events: `GET /documents/events?after=CURSOR` continues from this response."""
    quotas: Quotas


class NodesReport(msgspec.Struct, kw_only=True):
    """Nodes of a document, in the order of their ids."""

    nodes: Sequence[Node]
    next: int | None
    """Value of `after` for the next nodes; null at the end."""
    cursor: str
    """Position in the stream of events, which continues from these texts."""


class NodeChanged(msgspec.Struct, kw_only=True):
    """The changed node, or the sibling that an edit of another version has become."""

    node: Node
    is_sibling: bool


class ChangedNodes(msgspec.Struct, kw_only=True):
    """Nodes that were changed or created."""

    nodes: Sequence[Node]
    deleted: Sequence[int] = ()
    """Ids of nodes that no longer exist."""


class Continued(msgspec.Struct, kw_only=True):
    """Branches that the server writes."""

    nodes: Sequence[Node]
    """The new nodes, which are running."""
    changed: Sequence[Node]
    """If the node was split: the node, its new child with the rest of the text, and the children that moved below that."""
    request: str
    """Id in `/requests`."""
    n_prompt: int
    """Tokens of the prompt."""
    n_retokenized: int
    """Nodes of the prompt whose tokens are of another model, so that their text was tokenized again."""


class NotResumed(msgspec.Struct, kw_only=True):
    """An interrupted node whose branch could not be resumed."""

    node: int
    message: str
    """Error message, equal to that of resuming the node alone."""


class Resumed(msgspec.Struct, kw_only=True):
    """Result of resuming all interrupted branches of a document."""

    resumed: Sequence[Continued]
    """Branches that the server writes again, one in each entry."""
    failed: Sequence[NotResumed]


class TokenAlternative(msgspec.Struct, kw_only=True):
    """A likely token."""

    id: int
    text: str
    """Text, with U+FFFD for bytes that are no complete character."""
    bytes: list[int]
    logprob: float | None


class TokenReport(msgspec.Struct, kw_only=True):
    """A part of a node's text: one token, or text without known tokens."""

    id: int | None
    text: str
    """Text, with U+FFFD for bytes that are no complete character."""
    bytes: list[int]
    end: int
    """Characters of the node's text that are complete at its end."""
    logprob: float | None
    """Natural logarithm of its probability; null if it is unknown or the token was not generated."""
    alternatives: Sequence[TokenAlternative]
    """Most likely tokens at this position, as far as the request of the branch had `n_probs`."""


class TokensReport(msgspec.Struct, kw_only=True):
    """Tokens of a node's text."""

    model: str | None
    is_current: bool
    """True if they are tokens of the loaded model, so that branches reuse them."""
    tokens: Sequence[TokenReport]


class SearchReport(msgspec.Struct, kw_only=True):
    """Matches of a search."""

    hits: Sequence[Hit]
    next: int | None
    """Value of `after` for further matches; null at the end."""
