"""The trees of socketteer's loom (github.com/socketteer/loom): nested nodes, with chapters and tags.

What Weft has no field for is kept as it is, in `settings` of the document and `parameters` of its nodes, and exported again.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

import msgspec

from weft.documents.formats.saved import ParsedFile, SavedDocument, SavedNode
from weft.errors import InvalidRequestError

KEY = "loom"
"""Name of the kept fields."""

BOOKMARK = "bookmark"
"""Tag of bookmarked nodes."""

_OWN = ("text", "children", "parent_id")


def parse(data: bytes) -> ParsedFile:
    """Parses a tree.

    Raises:
        InvalidRequestError: It is no tree of a loom.
    """
    try:
        tree = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError("content", f"the content is not a tree of loom: {error}") from None
    if not _is_map(root := tree.pop("root", None)):
        raise InvalidRequestError("content", "the content is not a tree of loom: it has no root")
    titles = {name: each.get("title") for name, each in _map(tree.get("chapters")).items() if _is_map(each)}
    nodes: list[SavedNode] = []
    waiting: list[tuple[int | None, Mapping[str, Any]]] = [(None, root)]
    while waiting:
        parent, node = waiting.pop()
        text, children, tags = node.get("text", ""), node.get("children", []), node.get("tags", [])
        if not isinstance(text, str) or not isinstance(children, list) or not all(map(_is_map, children)):
            raise InvalidRequestError(
                "content", f"the content is not a tree of loom: node {len(nodes) + 1} has no text or children"
            )
        title = titles.get(str(node.get("chapter_id")))
        made = SavedNode(
            id=len(nodes) + 1,
            parent=parent,
            text=text,
            parameters={KEY: {name: value for name, value in node.items() if name not in _OWN}},
            label=title if isinstance(title, str) else "",
            is_bookmarked=isinstance(tags, list) and BOOKMARK in tags,
        )
        nodes.append(made)
        waiting += [(made.id, child) for child in reversed(children)]
    return ParsedFile(SavedDocument(settings={KEY: tree}, nodes=nodes))


def encode(document: SavedDocument) -> bytes:
    """Returns the tree of a document. Several nodes at the top are put below a root without text."""
    tops = sum(node.parent is None for node in document.nodes)
    nodes = document.nodes
    if tops != 1:
        root = max((node.id for node in nodes), default=0) + 1
        below = [msgspec.structs.replace(node, parent=root) if node.parent is None else node for node in nodes]
        nodes = [SavedNode(id=root, text=""), *below]
    rest = msgspec.json.encode(_map(document.settings.get(KEY)))[1:]
    return b"".join([b'{"root":', *_nested(nodes), b"," if rest != b"}" else b"", rest])


def _nested(nodes: list[SavedNode]) -> Iterator[bytes]:
    """Yields the JSON of nodes, each of which follows its parent, in pieces: trees may be deeper than a recursive encoder."""
    names = {node.id: _fields(node).get("id", str(node.id)) for node in nodes}
    open_nodes: list[int] = []
    is_first = True
    for node in nodes:
        while open_nodes and open_nodes[-1] != node.parent:
            open_nodes.pop()
            yield b"]}"
            is_first = False
        own = {"id": names[node.id], "text": node.text}
        fields = {**_fields(node), **own, **({} if node.parent is None else {"parent_id": names[node.parent]})}
        tags = fields["tags"] if isinstance(fields.get("tags"), list) else []
        if (BOOKMARK in tags) != node.is_bookmarked:
            fields["tags"] = [*(tag for tag in tags if tag != BOOKMARK), *[BOOKMARK] * node.is_bookmarked]
        yield (b"" if is_first else b",") + msgspec.json.encode(fields)[:-1] + b',"children":['
        open_nodes.append(node.id)
        is_first = True
    yield b"]}" * len(open_nodes)


def _fields(node: SavedNode) -> dict[str, Any]:
    return dict(_map((node.parameters or {}).get(KEY)))


def _map(value: object) -> Mapping[str, Any]:
    return value if _is_map(value) else {}


def _is_map(value: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)
