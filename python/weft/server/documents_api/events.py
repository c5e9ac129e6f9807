"""Events of the stream of documents. The tag of each is the name of the server-sent event, and `type` in its JSON."""

from collections.abc import Sequence

import msgspec

from weft.documents.records import Document, Node, Span


class Event(msgspec.Struct, tag_field="type"):
    """Base of all events."""


class ReadyEvent(Event, tag="ready"):
    """The first event of a stream. Later changes follow."""


class ResetEvent(Event, tag="reset"):
    """Events were lost, as after a restart of the server: read the documents again. Later changes follow."""


class DocumentChanged(Event, tag="document"):
    """A document was created or changed."""

    document: Document


class DocumentDeleted(Event, tag="document_deleted"):
    """A document was deleted permanently."""

    document: str


class NodesChanged(Event, tag="nodes"):
    """Nodes were created or changed. Each has its current fields and its whole text."""

    document: str
    nodes: Sequence[Node]


class NodesDeleted(Event, tag="nodes_deleted"):
    """Nodes were deleted permanently, or merged into others."""

    document: str
    nodes: Sequence[int]


class WrittenToken(msgspec.Struct):
    """A generated token. Its alternatives are in `GET /documents/{id}/nodes/{node}/tokens`."""

    id: int
    n_bytes: int
    """Length of its text in UTF-8; tokens may end inside a character."""
    logprob: float | None

    @classmethod
    def of(cls, span: Span) -> "WrittenToken | None":
        """Returns the token of a span, if it has one."""
        return None if span.token is None else cls(span.token, span.n_bytes, span.logprob)


class WrittenText(msgspec.Struct):
    """Text that a branch has written."""

    node: int
    start: int
    """Length of the node's text before, in characters."""
    text: str
    tokens: Sequence[WrittenToken]
    """Tokens whose text is complete. Text may arrive in an event before that of its token."""


class TokensWritten(Event, tag="tokens"):
    """Running branches have written text, in one step of the engine."""

    document: str
    branches: Sequence[WrittenText]


DocumentEvent = DocumentChanged | DocumentDeleted | NodesChanged | NodesDeleted | TokensWritten
"""An event that reports a change."""
