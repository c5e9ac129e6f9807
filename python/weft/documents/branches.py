"""Nodes that branches write: their text is appended in small pieces, which survive the end of the process at any time."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple

from weft.documents import spans as token_spans
from weft.documents.catalog import NODE_SIZE, Located
from weft.documents.database import Database, now_ms
from weft.documents.records import Span


class End(NamedTuple):
    """End of a branch."""

    state: Literal["done", "interrupted"]
    finish_reason: str | None = None
    error: str | None = None
    n_computed: int | None = None
    n_cached: int | None = None


class Growth(NamedTuple):
    """Text and tokens of a branch that are not stored yet."""

    document_id: str
    node_id: int
    text: str
    spans: Sequence[Span]
    end: End | None = None


class NodeId(NamedTuple):
    """A node of any document."""

    document_id: str
    node_id: int


def write(database: Database, growths: Sequence[Growth]) -> list[NodeId]:
    """Appends text to nodes, and ends branches. Nodes that no longer exist are skipped.

    Returns:
        The nodes of owners whose quota of bytes is used up. Their text is stored; they should not grow further.

    Raises:
        DocumentsFullError: The disk is full; nothing was stored.
        DocumentFileError: The file cannot be written; nothing was stored.
    """
    n_bytes: defaultdict[int, int] = defaultdict(int)
    written: list[tuple[NodeId, int]] = []
    with database.transaction() as connection:
        for growth in growths:
            found = connection.execute(
                "SELECT nodes.key, nodes.document FROM nodes JOIN documents ON documents.key = nodes.document"
                " WHERE documents.id = ? AND nodes.id = ? AND state = 'running'",
                (growth.document_id, growth.node_id),
            ).fetchone()
            if found is None:
                continue
            node, document = found
            data = token_spans.encoded(growth.spans)
            size = len(growth.text.encode()) + len(data)
            n_bytes[document] += size
            if size:
                connection.execute("INSERT INTO growth (node, text, spans) VALUES (?, ?, ?)", (node, growth.text, data))
                connection.execute("UPDATE nodes SET n_bytes = n_bytes + ? WHERE key = ?", (size, node))
            if growth.end is not None:
                settle(database, node)
                connection.execute(
                    "UPDATE nodes SET state = ?, finish_reason = ?, error = ?, n_computed = ?, n_cached = ?,"
                    " version = version + 1, changed_ms = ? WHERE key = ?",
                    (*growth.end, now_ms(), node),
                )
            else:
                written.append((NodeId(growth.document_id, growth.node_id), document))
        connection.executemany(
            "UPDATE documents SET n_bytes = n_bytes + ?, changed_ms = ? WHERE key = ?",
            ((size, now_ms(), document) for document, size in n_bytes.items()),
        )
        full = {document for document in n_bytes if _is_full(database, document)}
    return [node for node, document in written if document in full]


def _is_full(database: Database, document: int) -> bool:
    [(used,)] = database.connection.execute(
        "SELECT SUM(n_bytes) FROM documents WHERE owner = (SELECT owner FROM documents WHERE key = ?)", (document,)
    )
    return int(used) > database.limits.max_bytes


def settle(database: Database, node: int) -> None:
    """Moves the appended pieces of a node, given by its primary key, into its text, within a transaction."""
    connection = database.connection
    pieces = connection.execute("SELECT text, spans FROM growth WHERE node = ? ORDER BY key", (node,)).fetchall()
    if not pieces:
        return
    [(text, data, document, before)] = connection.execute(
        "SELECT text, spans, document, n_bytes FROM nodes WHERE key = ?", (node,)
    )
    spans = token_spans.decoded(data)
    for _, more in pieces:
        spans += token_spans.decoded(more)
    text += "".join(piece for piece, _ in pieces)
    connection.execute("UPDATE nodes SET text = ?, spans = ? WHERE key = ?", (text, token_spans.encoded(spans), node))
    [(after,)] = connection.execute(f"UPDATE nodes SET n_bytes = {NODE_SIZE} WHERE key = ? RETURNING n_bytes", (node,))
    connection.execute("UPDATE documents SET n_bytes = n_bytes + ? WHERE key = ?", (after - before, document))
    connection.execute("DELETE FROM growth WHERE node = ?", (node,))


def settle_all(database: Database, located: Located) -> None:
    """Settles all nodes of a document that are being written, within a transaction."""
    running = database.connection.execute("SELECT key FROM nodes WHERE document = ? AND state = 'running'", (located.key,))
    for (node,) in running.fetchall():
        settle(database, node)


def interrupt(database: Database) -> int:
    """Marks all running nodes as interrupted, as after the process that wrote them has ended. Returns their number."""
    with database.transaction() as connection:
        running = connection.execute("SELECT key FROM nodes WHERE state = 'running'").fetchall()
        for (node,) in running:
            settle(database, node)
        connection.execute("UPDATE nodes SET state = 'interrupted', version = version + 1 WHERE state = 'running'")
        return len(running)
