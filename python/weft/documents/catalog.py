"""The documents of an owner: listing, creating, changing, deleting, and their quotas."""

from collections.abc import Mapping
from secrets import token_hex
from typing import Any, NamedTuple

import msgspec

from weft.documents.database import Database, now_ms
from weft.documents.records import Document, DocumentKey
from weft.errors import DocumentNotFoundError, DocumentsFullError

BASE_BYTES = 256
"""Size of a document or a node in addition to its texts, as counted toward the quota."""

NODE_SIZE = (
    f"{BASE_BYTES} + length(CAST(text AS BLOB)) + length(spans) + length(CAST(label || note || COALESCE(parameters, '') AS BLOB))"
)
"""SQL expression of the size of a node, as counted toward the quota."""

_FIELDS = "id, title, folder, settings, version, n_nodes, n_bytes, is_trashed, created_ms, changed_ms"


class DocumentChange(msgspec.Struct, kw_only=True):
    """A change of a document; the last one wins. None leaves a field as it is."""

    title: str | None = None
    folder: str | None = None
    settings: dict[str, Any] | None = None
    is_trashed: bool | None = None


class Located(NamedTuple):
    """A document in the file."""

    key: int
    """Primary key."""
    owner: str
    n_nodes: int
    n_bytes: int


def documents(database: Database, digest: str | None) -> list[Document]:
    """Returns the documents of a key, the last changed first."""
    return documents_of(database, database.owner(digest)) if database.exists else []


def documents_of(database: Database, owner: str) -> list[Document]:
    """Returns the documents of an owner as the file has it, the last changed first."""
    rows = database.connection.execute(
        f"SELECT {_FIELDS} FROM documents WHERE owner = ? ORDER BY changed_ms DESC, key DESC", (owner,)
    )
    return [_document(row) for row in rows]


def document(database: Database, key: DocumentKey) -> Document:
    """Returns a document.

    Raises:
        DocumentNotFoundError: It does not exist.
    """
    located = locate(database, key)
    [row] = database.connection.execute(f"SELECT {_FIELDS} FROM documents WHERE key = ?", (located.key,))
    return _document(row)


def create(database: Database, digest: str | None, change: DocumentChange) -> Document:
    """Creates an empty document, and the file if there is none.

    Raises:
        DocumentsFullError: A quota of the owner is used up.
    """
    database.create()
    name, now = token_hex(16), now_ms()
    with database.transaction() as connection:
        owner = database.owner(digest)
        n = check_quota(database, owner, BASE_BYTES)
        if n >= database.limits.max_documents:
            raise DocumentsFullError(database.limits.max_documents, "documents")
        connection.execute(
            "INSERT INTO documents (id, owner, title, folder, settings, version, next_node, n_nodes, n_bytes, is_trashed,"
            " created_ms, changed_ms) VALUES (?, ?, '', '', '{}', 0, 1, 0, ?, 0, ?, ?)",
            (name, owner, BASE_BYTES, now, now),
        )
        key = DocumentKey(digest, name)
        _apply(database, locate(database, key), change)
    return document(database, key)


def change(database: Database, key: DocumentKey, given: DocumentChange) -> Document:
    """Changes a document. The last change of a field wins.

    Raises:
        DocumentNotFoundError: It does not exist.
        DocumentsFullError: The quota of bytes is used up.
    """
    if database.exists:
        with database.transaction():
            _apply(database, locate(database, key), given)
    return document(database, key)


def delete(database: Database, key: DocumentKey) -> None:
    """Deletes a document with all its nodes permanently.

    Raises:
        DocumentNotFoundError: It does not exist.
    """
    located = locate(database, key)
    with database.transaction() as connection:
        connection.execute("DELETE FROM growth WHERE node IN (SELECT key FROM nodes WHERE document = ?)", (located.key,))
        connection.execute("DELETE FROM nodes WHERE document = ?", (located.key,))
        connection.execute("DELETE FROM documents WHERE key = ?", (located.key,))


def locate(database: Database, key: DocumentKey) -> Located:
    """Returns where a document is stored.

    Raises:
        DocumentNotFoundError: It does not exist, or belongs to another owner.
    """
    if database.exists:
        found = database.connection.execute(
            "SELECT key, owner, n_nodes, n_bytes FROM documents WHERE id = ? AND owner = ?",
            (key.id, database.owner(key.digest) if key.owner is None else key.owner),
        ).fetchone()
        if found is not None:
            return Located(*found)
    raise DocumentNotFoundError(f"document {key.id[:64]}")


def count(database: Database, located: Located, *, n_nodes: int = 0, n_bytes: int = 0) -> None:
    """Counts a change of a document's nodes, within a transaction.

    Raises:
        DocumentsFullError: A quota is used up.
    """
    if n_nodes > 0 and located.n_nodes + n_nodes > database.limits.max_nodes:
        raise DocumentsFullError(database.limits.max_nodes, "nodes in a document")
    if n_bytes > 0:
        check_quota(database, located.owner, n_bytes)
    database.connection.execute(
        "UPDATE documents SET version = version + 1, changed_ms = ?, n_nodes = n_nodes + ?, n_bytes = n_bytes + ? WHERE key = ?",
        (now_ms(), n_nodes, n_bytes, located.key),
    )


def check_quota(database: Database, owner: str, n_bytes: int) -> int:
    """Returns the number of an owner's documents.

    Raises:
        DocumentsFullError: `n_bytes` more would exceed the quota of bytes.
    """
    [(n, used)] = database.connection.execute(
        "SELECT COUNT(*), COALESCE(SUM(n_bytes), 0) FROM documents WHERE owner = ?", (owner,)
    )
    if used + n_bytes > database.limits.max_bytes:
        raise DocumentsFullError(database.limits.max_bytes, "bytes")
    return int(n)


def owners(database: Database) -> list[tuple[str, int, int]]:
    """Returns each owner with the number and the bytes of their documents."""
    if not database.exists:
        return []
    rows = database.connection.execute("SELECT owner, COUNT(*), SUM(n_bytes) FROM documents GROUP BY owner ORDER BY owner")
    return [tuple(row) for row in rows]


def move(database: Database, owner: str, new_owner: str) -> int:
    """Gives all documents of an owner to another, as after a key was replaced. Returns their number.

    The quotas of the new owner do not apply.
    """
    if not database.exists:
        return 0
    with database.transaction() as connection:
        return connection.execute("UPDATE documents SET owner = ? WHERE owner = ?", (new_owner, owner)).rowcount


def _apply(database: Database, located: Located, given: DocumentChange) -> None:
    columns: Mapping[str, Any] = {
        **{name: value for name in ("title", "folder", "is_trashed") if (value := getattr(given, name)) is not None},
        **({} if given.settings is None else {"settings": msgspec.json.encode(given.settings).decode()}),
    }
    sizes = " + ".join(f"length(CAST({name} AS BLOB))" for name in ("title", "folder", "settings"))
    before = _size(database, located, sizes)
    for name, value in columns.items():
        database.connection.execute(f"UPDATE documents SET {name} = ? WHERE key = ?", (value, located.key))
    count(database, located, n_bytes=_size(database, located, sizes) - before)


def _size(database: Database, located: Located, sizes: str) -> int:
    [(n_bytes,)] = database.connection.execute(f"SELECT {sizes} FROM documents WHERE key = ?", (located.key,))
    return int(n_bytes)


def _document(row: tuple[Any, ...]) -> Document:
    values = dict(zip(_FIELDS.split(", "), row, strict=True))
    return Document(**values | {"settings": msgspec.json.decode(values["settings"]), "is_trashed": bool(values["is_trashed"])})
