"""Weft's own JSON format of a document, with everything that is stored."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from weft.documents.nodes import Content, Stored
from weft.documents.records import Document, Span
from weft.errors import InvalidRequestError

FORMAT: Literal["weft document"] = "weft document"

VERSION: Literal[1] = 1

MAX_TOKEN = 2**31 - 1
"""Maximum token id."""


class SavedNode(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A node with the id of its parent, which precedes it in the file. Siblings are in order."""

    id: int
    parent: int | None = None
    text: str
    spans: list[Span] = []
    """Tokens of the text, each as `[n_bytes, token, logprob, [[token, logprob, bytes in base64], …]]`."""
    model: str | None = None
    digest: str | None = None
    """Digest of the model of the tokens. Under another model, the text is tokenized again."""
    parameters: dict[str, Any] | None = None
    finish_reason: str | None = None
    n_computed: int | None = None
    n_cached: int | None = None
    is_interrupted: bool = False
    label: str = ""
    note: str = ""
    is_bookmarked: bool = False
    is_trashed: bool = False

    def content(self) -> Content:
        """Returns the content of a node to be created."""
        return Content(
            text=self.text,
            spans=self.spans,
            model=self.model,
            digest=self.digest,
            parameters=self.parameters,
            state="interrupted" if self.is_interrupted else "done",
            finish_reason=self.finish_reason,
            n_computed=self.n_computed,
            n_cached=self.n_cached,
            label=self.label,
            note=self.note,
            is_bookmarked=self.is_bookmarked,
            is_trashed=self.is_trashed,
        )


class SavedDocument(msgspec.Struct, kw_only=True):
    """A document in a file."""

    format: Literal["weft document"] = FORMAT
    version: Literal[1] = VERSION
    title: str = ""
    folder: str = ""
    settings: dict[str, Any] = {}
    nodes: list[SavedNode] = []


class ParsedFile(NamedTuple):
    """A document that was read from a file."""

    document: SavedDocument
    notes: Sequence[str] = ()
    """Sentences on what of the file does not apply, and on what was assumed."""


def saved(document: Document, nodes: Sequence[Stored]) -> SavedDocument:
    """Returns a document with its nodes, each after its parent, siblings in order.

    A node that is being written is saved as interrupted. A node without its parent, as after a concurrent deletion, is left out.
    """
    below: defaultdict[int | None, list[Stored]] = defaultdict(list)
    for each in nodes:
        below[each.node.parent].append(each)
    found: list[SavedNode] = []
    waiting = [_reversed(below[None])]
    while waiting:
        if not waiting[-1]:
            waiting.pop()
            continue
        each = waiting[-1].pop()
        found.append(_saved(each))
        waiting.append(_reversed(below[each.node.id]))
    return SavedDocument(title=document.title, folder=document.folder, settings=document.settings, nodes=found)


def _reversed(siblings: list[Stored]) -> list[Stored]:
    return sorted(siblings, key=lambda each: (each.node.position, each.node.id), reverse=True)


def _saved(stored: Stored) -> SavedNode:
    node = stored.node
    return SavedNode(
        id=node.id,
        parent=node.parent,
        text=node.text,
        spans=stored.spans,
        model=node.model,
        digest=stored.digest,
        parameters=node.parameters,
        finish_reason=node.finish_reason,
        n_computed=node.n_computed,
        n_cached=node.n_cached,
        is_interrupted=node.state != "done",
        label=node.label,
        note=node.note,
        is_bookmarked=node.is_bookmarked,
        is_trashed=node.is_trashed,
    )


def parse(data: bytes) -> ParsedFile:
    """Parses a file.

    Raises:
        InvalidRequestError: It is not a document, or its nodes are not a tree.
    """
    try:
        document = msgspec.json.decode(data, type=SavedDocument)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError("content", f"the content is not a document of Weft: {error}") from None
    known: set[int] = set()
    for node in document.nodes:
        if node.id in known or (node.parent is not None and node.parent not in known):
            raise InvalidRequestError("content", f"node {node.id} does not follow its parent, or its id occurs twice")
        known.add(node.id)
        tokens = [span.token for span in node.spans] + [each.token for span in node.spans for each in span.top]
        if any(token is not None and not 0 <= token <= MAX_TOKEN for token in tokens):
            raise InvalidRequestError("content", f"node {node.id} has a token that is not from 0 to {MAX_TOKEN}")
        if any(span.n_bytes < 0 for span in node.spans) or sum(span.n_bytes for span in node.spans) > len(node.text.encode()):
            raise InvalidRequestError("content", f"the spans of node {node.id} do not fit its text")
    return ParsedFile(document)


def encode(document: SavedDocument) -> bytes:
    """Returns the file of a document."""
    return msgspec.json.encode(document)
