"""Changes of a document's tree: moving, splitting, merging and deleting nodes, and new branches inside of a node."""

from collections.abc import Sequence

from weft.documents import spans as token_spans
from weft.documents.catalog import Located, count, locate
from weft.documents.database import Database
from weft.documents.nodes import Content, Stored, insert, stored, update
from weft.documents.records import DocumentKey, Node
from weft.documents.siblings import children, positions
from weft.errors import DocumentConflictError, InvalidRequestError


def add_branches(
    database: Database, key: DocumentKey, node_id: int, at: int, contents: Sequence[Content]
) -> tuple[list[Node], list[Node]]:
    """Adds children at a byte of a node's text, which is split there, unless it is the end.

    Returns:
        The nodes that a split has changed or created, as `split` returns them, and the new children.

    Raises:
        DocumentNotFoundError: The document or the node does not exist.
        InvalidRequestError: The position is outside the text, or inside a character.
        DocumentsFullError: A quota is used up.
    """
    located = locate(database, key)
    with database.transaction():
        whole = stored(database, located, node_id)
        changed = split_within(database, located, whole, at) if at < len(whole.node.text.encode()) else []
        parent = whole.node.parent if at == 0 and changed else node_id
        # A second count of the quota must see the first.
        return changed if len(changed) > 1 else [], insert(database, locate(database, key), parent, contents)


def move(database: Database, key: DocumentKey, node_id: int, parent: int | None, index: int | None) -> list[Node]:
    """Moves a node with its descendants to another parent, or to another position among its siblings.

    Args:
        database: The file.
        key: The document.
        node_id: The node.
        parent: New parent; None is the top of the document.
        index: Index among the siblings, not counting the node itself; None is after the last.

    Returns:
        The node, and its new siblings if their positions were renumbered.

    Raises:
        DocumentNotFoundError: The document or a node does not exist.
        DocumentConflictError: The parent is the node itself or one of its descendants.
    """
    located = locate(database, key)
    with database.transaction():
        moved = stored(database, located, node_id)
        above = parent
        while above is not None:
            if above == node_id:
                raise DocumentConflictError(f"node {parent} is node {node_id} or one of its descendants; choose another parent")
            above = stored(database, located, above).node.parent
        before = children(database, located, parent, node_id)
        [position] = positions(database, located, parent, index, without=node_id)
        update(database, located, moved, {"parent": parent, "position": position})
        after = children(database, located, parent, node_id)
        changed = [each for (each, old), (_, new) in zip(before, after, strict=True) if old != new]
        return [stored(database, located, each).node for each in (node_id, *changed)]


def delete(database: Database, key: DocumentKey, node_id: int) -> list[int]:
    """Deletes a node with its descendants permanently. Returns their ids.

    Raises:
        DocumentNotFoundError: The document or the node does not exist.
    """
    located = locate(database, key)
    with database.transaction() as connection:
        stored(database, located, node_id)
        gone = connection.execute(
            "WITH RECURSIVE gone(key, id, n_bytes) AS ("
            " SELECT key, id, n_bytes FROM nodes WHERE document = :document AND id = :id"
            " UNION ALL SELECT nodes.key, nodes.id, nodes.n_bytes FROM nodes JOIN gone ON nodes.parent = gone.id"
            " WHERE nodes.document = :document) SELECT key, id, n_bytes FROM gone",
            {"document": located.key, "id": node_id},
        ).fetchall()
        connection.executemany("DELETE FROM growth WHERE node = ?", ((row[0],) for row in gone))
        connection.executemany("DELETE FROM nodes WHERE key = ?", ((row[0],) for row in gone))
        count(database, located, n_nodes=-len(gone), n_bytes=-sum(row[2] for row in gone))
        return [row[1] for row in gone]


def split(database: Database, key: DocumentKey, node_id: int, at: int) -> list[Node]:
    """Splits a node at a byte of its text: its beginning stays, and the rest becomes its only child, with its children.

    Returns:
        The node, its new child, and the moved children. A position at the start or the end splits nothing: the node alone.

    Raises:
        DocumentNotFoundError: The document or the node does not exist.
        InvalidRequestError: The position is outside the text, or inside a character.
        DocumentsFullError: A quota is used up.
    """
    located = locate(database, key)
    with database.transaction():
        return split_within(database, located, stored(database, located, node_id), at)


def split_within(database: Database, located: Located, whole: Stored, at: int) -> list[Node]:
    """Splits a node as `split` does, within a transaction."""
    node, data = whole.node, whole.node.text.encode()
    try:
        head, rest = data[:at].decode(), data[at:].decode()
    except UnicodeDecodeError:
        raise InvalidRequestError("at", f"byte {at} of the text is inside a character") from None
    if not 0 <= at <= len(data):
        raise InvalidRequestError("at", f"at is byte {at}; the text has {len(data)} bytes")
    if at in (0, len(data)):
        return [node]
    connection = database.connection
    head_spans, rest_spans = token_spans.split(whole.spans, at)
    moved = [row[0] for row in children(database, located, node.id)]
    child = Content(
        text=rest,
        spans=rest_spans,
        model=node.model,
        digest=whole.digest,
        parameters=node.parameters,
        state=node.state,
        finish_reason=node.finish_reason,
        error=node.error,
    )
    [made] = insert(database, located, node.id, [child])
    connection.executemany(
        "UPDATE nodes SET parent = ?, version = version + 1 WHERE document = ? AND id = ?",
        ((made.id, located.key, each) for each in moved),
    )
    columns = {"text": head, "spans": token_spans.encoded(head_spans), "state": "done", "finish_reason": None, "error": None}
    update(database, located, whole, columns)
    return [stored(database, located, each).node for each in (node.id, made.id, *moved)]


def merge(database: Database, key: DocumentKey, node_id: int) -> tuple[list[Node], int]:
    """Joins a node with its only child, whose children become the node's.

    Returns:
        The node and the moved children, and the id of the child, which no longer exists.

    Raises:
        DocumentNotFoundError: The document or the node does not exist.
        DocumentConflictError: The node has no child or several, or one of the two is being written or in the trash.
    """
    located = locate(database, key)
    with database.transaction() as connection:
        first = stored(database, located, node_id)
        below = children(database, located, node_id)
        if len(below) != 1:
            raise DocumentConflictError(f"node {node_id} has {len(below)} children; only a node with one child can be merged")
        second = stored(database, located, below[0][0])
        if any(each.node.state == "running" or each.node.is_trashed for each in (first, second)):
            raise DocumentConflictError("a node that is being written or in the trash cannot be merged; stop or restore it")
        moved = [row[0] for row in children(database, located, second.node.id)]
        # Tokens of two models cannot stand in one node.
        is_same = not first.spans or not second.spans or first.digest == second.digest
        spans = token_spans.joined(first.spans, len(first.node.text.encode()), second.spans if is_same else [])
        named = first if first.spans else second
        connection.execute("DELETE FROM nodes WHERE key = ?", (second.key,))
        connection.execute(
            "UPDATE nodes SET parent = ?, version = version + 1 WHERE document = ? AND parent = ?",
            (node_id, located.key, second.node.id),
        )
        count(database, located, n_nodes=-1, n_bytes=-second.n_bytes)
        columns = {
            "text": first.node.text + second.node.text,
            "spans": token_spans.encoded(spans),
            "model": named.node.model,
            "digest": named.digest,
            "state": second.node.state,
            "finish_reason": second.node.finish_reason,
            "error": second.node.error,
            "n_computed": first.node.n_computed if first.node.n_computed is not None else second.node.n_computed,
            "n_cached": first.node.n_cached if first.node.n_cached is not None else second.node.n_cached,
            "label": first.node.label or second.node.label,
            "note": "\n".join(filter(None, (first.node.note, second.node.note))),
            "is_bookmarked": first.node.is_bookmarked or second.node.is_bookmarked,
        }
        update(database, located, first, columns)
        return [stored(database, located, each).node for each in (node_id, *moved)], second.node.id
