"""Plain text and Markdown: one path of a document."""

from collections.abc import Sequence

from weft.documents.formats.saved import ParsedFile, SavedDocument, SavedNode
from weft.errors import InvalidRequestError


def path_to(document: SavedDocument, node_id: int | None) -> Sequence[SavedNode]:
    """Returns the nodes from the top to a node; None follows the first child of each node, without the trash.

    Raises:
        InvalidRequestError: There is no such node.
    """
    by_id = {node.id: node for node in document.nodes}
    if node_id is None:
        found: list[SavedNode] = []
        for node in document.nodes:
            if node.parent == (found[-1].id if found else None) and not node.is_trashed:
                found.append(node)
        return found
    if node_id not in by_id:
        raise InvalidRequestError("node", f"the document has no node {node_id}")
    path = [by_id[node_id]]
    while (parent := path[-1].parent) is not None:
        path.append(by_id[parent])
    return path[::-1]


def text(document: SavedDocument, node_id: int | None) -> bytes:
    """Returns the text of a path."""
    return "".join(node.text for node in path_to(document, node_id)).encode()


def markdown(document: SavedDocument, node_id: int | None) -> bytes:
    """Returns a path as Markdown: the title as a heading, and the label of each node as a heading of a chapter."""
    parts = [f"# {document.title}\n\n"] if document.title else []
    for nth, node in enumerate(path_to(document, node_id)):
        heading = f"## {node.label}\n\n" if node.label else ""
        parts += [("\n\n" if heading and nth else "") + heading, node.text]
    return "".join(parts).encode()


def parse_text(data: bytes) -> ParsedFile:
    """Parses plain text: a document with one node."""
    return ParsedFile(SavedDocument(nodes=[SavedNode(id=1, text=decoded(data))]))


def parse_markdown(data: bytes) -> ParsedFile:
    """Parses Markdown: a heading at its beginning is the title, and each heading of the second level begins a labelled node."""
    lines = decoded(data).splitlines(keepends=True)
    title = ""
    if lines and lines[0].startswith("# "):
        title, lines = lines[0][2:].strip(), lines[1:]
        lines = lines[1:] if lines and not lines[0].strip() else lines
    chapters: list[tuple[str, list[str]]] = [("", [])]
    for line in lines:
        if line.startswith("## "):
            chapters.append((line[3:].strip(), []))
        elif line.strip() or chapters[-1][1] or not chapters[-1][0]:
            chapters[-1][1].append(line)
    chapters = [chapter for nth, chapter in enumerate(chapters) if nth or chapter[1] or len(chapters) == 1]
    nodes = [
        SavedNode(id=nth, parent=nth - 1 or None, text="".join(content), label=label)
        for nth, (label, content) in enumerate(chapters, 1)
    ]
    return ParsedFile(SavedDocument(title=title, nodes=nodes))


def decoded(data: bytes) -> str:
    """Returns the text of a file in UTF-8, with or without a byte order mark.

    Raises:
        InvalidRequestError: It is not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequestError("content", f"the content is not UTF-8: {error.reason} at byte {error.start}") from None
