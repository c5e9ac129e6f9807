"""The nodes of a document: reading, creating, editing, moving, splitting, merging and deleting."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from weft.documents import spans as token_spans
from weft.documents.branches import settle, settle_all
from weft.documents.catalog import BASE_BYTES, NODE_SIZE, Located, count, locate
from weft.documents.database import MAX_INTEGER, Database, now_ms
from weft.documents.records import DocumentKey, Node, Span
from weft.documents.siblings import positions
from weft.errors import DocumentConflictError, DocumentNotFoundError, InvalidRequestError

_FIELDS = (
    "id, parent, position, version, state, text, model, parameters, finish_reason, error, n_computed, n_cached, label, note,"
    " is_bookmarked, is_trashed, created_ms, changed_ms"
)


class Content(msgspec.Struct, kw_only=True):
    """Content of a new node."""

    text: str
    spans: Sequence[Span] = ()
    model: str | None = None
    digest: str | None = None
    """Digest of the model of the tokens, see `weft.tree.saved.identity`."""
    parameters: Mapping[str, Any] | None = None
    state: str = "done"
    finish_reason: str | None = None
    error: str | None = None
    n_computed: int | None = None
    n_cached: int | None = None
    label: str = ""
    note: str = ""
    is_bookmarked: bool = False
    is_trashed: bool = False


class NodeChange(msgspec.Struct, kw_only=True):
    """A change of a node; None leaves a field as it is."""

    version: int | None = None
    """Version that is changed; None is any."""
    text: str | None = None
    label: str | None = None
    note: str | None = None
    is_bookmarked: bool | None = None
    is_trashed: bool | None = None


class Stored(NamedTuple):
    """A node with its tokens."""

    key: int
    """Primary key."""
    node: Node
    spans: list[Span]
    digest: str | None
    n_bytes: int
    """Size, as it counts toward the quota."""


def nodes(database: Database, key: DocumentKey, *, after: int = 0, limit: int) -> list[Node]:
    """Returns at most `limit` nodes with ids above `after`, in the order of their ids.

    Raises:
        DocumentNotFoundError: The document does not exist.
    """
    located = locate(database, key)
    with database.transaction() as connection:
        settle_all(database, located)
        after = min(max(after, 0), MAX_INTEGER)
        rows = connection.execute(
            f"SELECT {_FIELDS} FROM nodes WHERE document = ? AND id > ? ORDER BY id LIMIT ?", (located.key, after, limit)
        )
        return [_node(row) for row in rows]


def stored(database: Database, located: Located, node_id: int) -> Stored:
    """Returns a node with its tokens, within a transaction.

    Raises:
        DocumentNotFoundError: The document has no such node.
    """
    connection = database.connection
    found = None
    if node_id <= MAX_INTEGER:
        found = connection.execute(
            "SELECT key, state FROM nodes WHERE document = ? AND id = ?", (located.key, max(node_id, 0))
        ).fetchone()
    if found is None:
        raise DocumentNotFoundError(f"node {node_id} in the document")
    if found[1] == "running":
        settle(database, found[0])
    [row] = connection.execute(f"SELECT {_FIELDS}, key, spans, digest, n_bytes FROM nodes WHERE key = ?", (found[0],))
    *fields, node_key, data, digest, n_bytes = row
    return Stored(node_key, _node(fields), token_spans.decoded(data), digest, n_bytes)


def node(database: Database, key: DocumentKey, node_id: int) -> Stored:
    """Returns a node with its tokens.

    Raises:
        DocumentNotFoundError: The document or the node does not exist.
    """
    located = locate(database, key)
    with database.transaction():
        return stored(database, located, node_id)


def stored_page(database: Database, key: DocumentKey, *, after: int = 0, limit: int) -> list[Stored]:
    """Returns nodes as `nodes` does, with their tokens."""
    located = locate(database, key)
    with database.transaction() as connection:
        ids = connection.execute(
            "SELECT id FROM nodes WHERE document = ? AND id > ? ORDER BY id LIMIT ?", (located.key, after, limit)
        ).fetchall()
        return [stored(database, located, node_id) for (node_id,) in ids]


def path(database: Database, key: DocumentKey, node_id: int) -> list[Stored]:
    """Returns the nodes from the top of the document to a node, inclusive.

    Raises:
        DocumentNotFoundError: The document or the node does not exist.
    """
    located = locate(database, key)
    with database.transaction():
        found = [stored(database, located, node_id)]
        while (parent := found[-1].node.parent) is not None:
            found.append(stored(database, located, parent))
        return found[::-1]


def create(
    database: Database, key: DocumentKey, parent: int | None, contents: Sequence[Content], index: int | None = None
) -> list[Node]:
    """Adds children to a node, or nodes at the top of the document.

    Args:
        database: The file.
        key: The document.
        parent: The node; None is the top of the document.
        contents: Contents of the new nodes.
        index: Index of the first one among its siblings; None is after the last.

    Raises:
        DocumentNotFoundError: The document or the node does not exist.
        DocumentsFullError: A quota is used up.
    """
    located = locate(database, key)
    with database.transaction():
        if parent is not None:
            stored(database, located, parent)
        return insert(database, located, parent, contents, index)


def insert(
    database: Database, located: Located, parent: int | None, contents: Sequence[Content], index: int | None = None
) -> list[Node]:
    """Adds nodes as `create` does, within a transaction. The caller has checked that the parent exists."""
    [(first,)] = database.connection.execute("SELECT next_node FROM documents WHERE key = ?", (located.key,))
    places = positions(database, located, parent, index, n=len(contents))
    add(database, located, ((parent, place, content) for place, content in zip(places, contents, strict=True)))
    return [stored(database, located, first + nth).node for nth in range(len(contents))]


def add(database: Database, located: Located, placed: Iterable[tuple[int | None, float, Content]]) -> None:
    """Adds nodes with their parents and positions, within a transaction. Their ids follow that of the last node.

    Raises:
        DocumentsFullError: A quota is used up.
    """
    connection = database.connection
    [(first,)] = connection.execute("SELECT next_node FROM documents WHERE key = ?", (located.key,))
    now, n_bytes, node_id = now_ms(), 0, first - 1
    for node_id, (parent, position, content) in enumerate(placed, first):
        parameters = None if content.parameters is None else msgspec.json.encode(_without_prompt(content.parameters)).decode()
        spans = token_spans.encoded(content.spans)
        texts = (content.text, content.label, content.note, parameters or "")
        size = BASE_BYTES + len(spans) + sum(len(text.encode()) for text in texts)
        n_bytes += size
        connection.execute(
            "INSERT INTO nodes (document, id, parent, position, version, state, text, spans, model, digest, parameters,"
            " finish_reason, error, n_computed, n_cached, label, note, is_bookmarked, is_trashed, created_ms, changed_ms,"
            " n_bytes) VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(located.key, node_id, parent, position, content.state, content.text, spans, content.model, content.digest),
                *(parameters, content.finish_reason, content.error, content.n_computed, content.n_cached),
                *(content.label, content.note, content.is_bookmarked, content.is_trashed, now, now, size),
            ),
        )
    connection.execute("UPDATE documents SET next_node = ? WHERE key = ?", (node_id + 1, located.key))
    count(database, located, n_nodes=node_id + 1 - first, n_bytes=n_bytes)


def change(database: Database, key: DocumentKey, node_id: int, given: NodeChange) -> tuple[Node, bool]:
    """Changes a node.

    An edit of the text names the version that it changes. If that version is not current, or if the node is being written, the
    new text becomes a sibling.

    Returns:
        The changed node or the new sibling, and whether it is a sibling.

    Raises:
        DocumentNotFoundError: The document or the node does not exist.
        DocumentConflictError: Another field than the text names a version that is not current.
        InvalidRequestError: An edit of the text names no version.
        DocumentsFullError: A quota is used up.
    """
    if given.text is not None and given.version is None:
        raise InvalidRequestError("version", "an edit of the text must name the version of the node that it changes")
    located = locate(database, key)
    with database.transaction():
        before = stored(database, located, node_id)
        is_stale = given.version is not None and given.version != before.node.version
        if given.text is not None and (is_stale or before.node.state == "running"):
            [sibling] = insert(database, located, before.node.parent, [_edited(before, given)])
            return sibling, True
        if is_stale:
            raise DocumentConflictError(
                f"version {given.version} of node {node_id} is not current; read version {before.node.version}, and change that"
            )
        names = ("label", "note", "is_bookmarked", "is_trashed")
        columns = {name: value for name in names if (value := getattr(given, name)) is not None}
        if given.text is not None:
            spans = token_spans.prefix(before.spans, token_spans.common_bytes(before.node.text, given.text))
            columns |= {"text": given.text, "spans": token_spans.encoded(spans)}
        update(database, located, before, columns)
        return stored(database, located, node_id).node, False


def interrupted(database: Database, key: DocumentKey) -> list[int]:
    """Returns the ids of all interrupted nodes that are not in the trash, in their order.

    Raises:
        DocumentNotFoundError: The document does not exist.
    """
    located = locate(database, key)
    found = database.connection.execute(
        "SELECT id FROM nodes WHERE document = ? AND state = 'interrupted' ORDER BY id", (located.key,)
    ).fetchall()
    return [node_id for (node_id,) in found if not _is_trashed(database, located, node_id)]


def _is_trashed(database: Database, located: Located, node_id: int) -> bool:
    """Returns whether a node or one of its ancestors is in the trash."""
    [(is_trashed,)] = database.connection.execute(
        "WITH RECURSIVE above(parent, is_trashed) AS ("
        " SELECT parent, is_trashed FROM nodes WHERE document = :document AND id = :id"
        " UNION ALL SELECT nodes.parent, nodes.is_trashed FROM nodes JOIN above ON nodes.id = above.parent"
        " WHERE nodes.document = :document) SELECT MAX(is_trashed) FROM above",
        {"document": located.key, "id": node_id},
    )
    return bool(is_trashed)


def restart(database: Database, key: DocumentKey, node_id: int, model: str, digest: str) -> Node:
    """Marks an interrupted node as running, to be continued with a model. Tokens of another model are dropped.

    Raises:
        DocumentNotFoundError: The document or the node does not exist.
        DocumentConflictError: The node is not interrupted.
    """
    located = locate(database, key)
    with database.transaction():
        before = stored(database, located, node_id)
        if before.node.state != "interrupted":
            raise DocumentConflictError(f"node {node_id} is {before.node.state}; only an interrupted node can be resumed")
        columns: dict[str, Any] = {"state": "running", "model": model, "digest": digest}
        columns |= dict.fromkeys(("error", "n_computed", "n_cached"))
        update(database, located, before, columns if before.digest == digest else columns | {"spans": b""})
        return stored(database, located, node_id).node


def _edited(before: Stored, given: NodeChange) -> Content:
    text = given.text or ""
    spans = token_spans.prefix(before.spans, token_spans.common_bytes(before.node.text, text))
    return Content(
        text=text,
        spans=spans,
        model=before.node.model,
        digest=before.digest,
        label=before.node.label if given.label is None else given.label,
        note=before.node.note if given.note is None else given.note,
        is_bookmarked=given.is_bookmarked or False,
    )


def update(database: Database, located: Located, before: Stored, columns: Mapping[str, Any]) -> None:
    """Sets columns of a node, within a transaction, and counts its version and its size."""
    connection = database.connection
    changes = ", ".join(f"{name} = ?" for name in ("changed_ms", *columns))
    connection.execute(
        f"UPDATE nodes SET version = version + 1, {changes} WHERE key = ?", (now_ms(), *columns.values(), before.key)
    )
    [(n_bytes,)] = connection.execute(f"UPDATE nodes SET n_bytes = {NODE_SIZE} WHERE key = ? RETURNING n_bytes", (before.key,))
    count(database, located, n_bytes=n_bytes - before.n_bytes)


def _node(row: Sequence[Any]) -> Node:
    values = dict(zip(_FIELDS.split(", "), row, strict=True))
    parameters = values["parameters"]
    return Node(
        **values
        | {
            "parameters": None if parameters is None else _without_prompt(msgspec.json.decode(parameters)),
            "is_bookmarked": bool(values["is_bookmarked"]),
            "is_trashed": bool(values["is_trashed"]),
        }
    )


def _without_prompt(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of a branch without its prompt, which earlier versions stored."""
    return {name: value for name, value in parameters.items() if name != "prompt"}
