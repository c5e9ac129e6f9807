"""Data of documents: what is stored, and what the HTTP API returns."""

from typing import Any, Literal

import msgspec

State = Literal["done", "running", "interrupted"]
"""State of a node: `running` while a branch writes it, `interrupted` if the process ended or failed meanwhile."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Quotas of one owner."""

    max_documents: int = 10_000
    """Documents, including the trash."""
    max_nodes: int = 100_000
    """Nodes of one document."""
    max_bytes: int = 1024 * 1024 * 1024
    """Bytes of all documents: texts, tokens, alternatives, notes and parameters, plus 256 bytes a node or document."""


class DocumentKey(msgspec.Struct, frozen=True):
    """Identity of a document. Owners cannot access each other's documents."""

    digest: str | None
    """SHA-256 digest of the owner's API key; None for documents made without keys."""
    id: str
    owner: str | None = None
    """Owner as the file has it, in place of the digest; for tools that have no key."""


class Document(msgspec.Struct, kw_only=True):
    """A document without its nodes. Times are Unix timestamps in milliseconds."""

    id: str
    title: str
    folder: str
    settings: dict[str, Any]
    """JSON object of the client's own, such as its memory, author's note and presets."""
    version: int
    """Number of changes, not counting generated tokens."""
    n_nodes: int
    n_bytes: int
    """Size, as it counts toward the quota."""
    is_trashed: bool
    created_ms: int
    changed_ms: int


class ImportedDocument(Document, kw_only=True):
    """A document that was created from a file."""

    notes: list[str]
    """Sentences on what of the file does not apply, and on what was assumed."""


class Node(msgspec.Struct, kw_only=True):
    """A node without its tokens. Times are Unix timestamps in milliseconds."""

    id: int
    """Number from 1 on, in order of creation; not reused after a deletion."""
    parent: int | None
    """Node that this one continues; null at the top of the document."""
    position: float
    """Order among siblings: by `position`, then by `id`."""
    version: int
    """Number of changes, which an edit of the text names; not counting generated tokens."""
    state: State
    text: str
    model: str | None
    """Name of the model of its tokens, or null without tokens."""
    parameters: dict[str, Any] | None
    """Fields of the request that generated it."""
    finish_reason: str | None
    """Why generation ended: `end`, `stop`, `length`, `context_full` or `cancelled`."""
    error: str | None
    """Why generation was interrupted, if the server knows."""
    n_computed: int | None
    """Prompt tokens that its branch computed; null until the branch has ended, and for text that was written by hand."""
    n_cached: int | None
    """Prompt tokens that its branch took from the cache or shared with a sibling."""
    label: str
    note: str
    is_bookmarked: bool
    is_trashed: bool
    """True if the node itself is in the trash; its descendants are then hidden with it."""
    created_ms: int
    changed_ms: int


class Alternative(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A likely token at the position of a generated one."""

    token: int
    logprob: float
    bytes: bytes


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bytes of a node's text that one token has, or that have no known tokens."""

    n_bytes: int
    """Length in UTF-8; 0 for a control token."""
    token: int | None = None
    """Token id; None if the text must be tokenized."""
    logprob: float | None = None
    top: tuple[Alternative, ...] = ()
    """Most likely tokens at this position, most likely first, as far as they were requested."""
