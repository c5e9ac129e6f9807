"""Conversion between documents and `weft.Tree`."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from weft._native import Model
from weft.documents import spans as token_spans
from weft.documents.formats.saved import SavedDocument, SavedNode
from weft.documents.records import Alternative, Span
from weft.engine import Engine
from weft.errors import InvalidRequestError
from weft.events import Logprob, Logprobs
from weft.tree import Node, Tree
from weft.tree.piece import Piece
from weft.tree.saved import identity


class DocumentTree(NamedTuple):
    """A tree with the text of a document."""

    tree: Tree
    nodes: Mapping[int, Node]
    """Nodes of the tree by their ids in the document."""
    n_retokenized: int
    """Nodes whose tokens were of another model, so that their texts were tokenized."""


def to_tree(document: SavedDocument, engine: Engine, *, max_nodes: int, max_bytes: int) -> DocumentTree:
    """Returns a tree with the nodes of a document, without the trash. Blocks while texts are tokenized.

    Raises:
        InvalidRequestError: The document has no text, or several nodes at the top, one of which must be moved.
        TreeFullError: The tree exceeds a limit.
    """
    kept = _without_trash(document.nodes)
    if sum(node.parent is None for node in kept) != 1 or not kept[0].text:
        raise InvalidRequestError("document", "a tree has one node at the top, with text; move or delete the others")
    digest = identity(engine.model).digest
    ids = {node.id: nth for nth, node in enumerate(kept)}
    contents = [
        (nth, None if node.parent is None else ids[node.parent], _piece(engine, node, digest, is_root=not nth))
        for nth, node in enumerate(kept)
    ]
    tree = Tree.from_pieces(engine, contents, max_nodes=max_nodes, max_bytes=max_bytes)
    n_retokenized = sum(bool(node.spans) and node.digest != digest for node in kept)
    return DocumentTree(tree, {node: tree[nth] for node, nth in ids.items()}, n_retokenized)


def of_tree(tree: Tree, title: str) -> SavedDocument:
    """Returns a document with the nodes of a tree. Their ids are the tree's plus 1."""
    model = tree.engine.model
    of = identity(model)
    nodes = [
        SavedNode(
            id=node.id + 1,
            parent=None if node.parent is None else node.parent.id + 1,
            text=node.text,
            spans=_spans(model, node),
            model=of.name,
            digest=of.digest,
            finish_reason={"stop": "end"}.get(node.finish_reason, node.finish_reason) if node.finish_reason else None,
        )
        for node in tree.nodes
    ]
    return SavedDocument(title=title, nodes=nodes)


def _without_trash(nodes: Sequence[SavedNode]) -> list[SavedNode]:
    kept: dict[int | None, SavedNode | None] = {None: None}
    for node in nodes:
        if node.parent in kept and not node.is_trashed:
            kept[node.id] = node
    return [node for node in kept.values() if node is not None]


def _piece(engine: Engine, node: SavedNode, digest: str, *, is_root: bool) -> Piece:
    model = engine.model
    spans = node.spans if node.digest == digest else []
    tokens: list[int] = []
    logprobs: list[Logprobs | None] = []
    is_first = is_root
    data, start = node.text.encode(), 0
    for span in [*spans, Span(len(data) - token_spans.covered(spans))]:
        end = start + span.n_bytes
        if span.token is not None:
            tokens.append(span.token)
            logprobs.append(_logprobs(span, data[start:end]))
        elif end > start:
            found = model.tokenize(data[start:end]) if is_first else model.tokenize_on(data[start:end], parse_special=False)
            tokens += found
            logprobs += [None] * len(found)
        is_first, start = is_first and not tokens, end
    return Piece(tuple(tokens), node.text, tuple(logprobs))


def _logprobs(span: Span, data: bytes) -> Logprobs | None:
    if span.token is None or span.logprob is None:
        return None
    return Logprobs(
        Logprob(span.token, data, span.logprob), tuple(Logprob(each.token, each.bytes, each.logprob) for each in span.top)
    )


def _spans(model: Model, node: Node) -> list[Span]:
    builder = token_spans.SpanBuilder()
    hidden = frozenset(model.control_tokens())
    builder.add_text(node.text)
    for token, logprobs in zip(node.tokens, node.logprobs, strict=True):
        top = () if logprobs is None else tuple(Alternative(each.token, each.logprob, each.bytes) for each in logprobs.top)
        piece = b"" if token in hidden else model.token_bytes(token)
        builder.add(piece, token, None if logprobs is None else logprobs.chosen.logprob, top, "")
    return builder.finish(None)
