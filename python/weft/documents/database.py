"""The SQLite file of documents: its schema, its transactions, and its lock. Used by one thread."""

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from weft.documents.owners import owner_of
from weft.documents.records import Limits
from weft.errors import DocumentFileError, DocumentsBusyError, DocumentsFullError
from weft.installed.platform import lock_file

if TYPE_CHECKING:
    import sqlite3

VERSION = 2
"""Version of the schema, stored as `user_version`."""

_MIGRATIONS = {1: ("ALTER TABLE nodes ADD COLUMN n_computed INTEGER", "ALTER TABLE nodes ADD COLUMN n_cached INTEGER")}
"""Statements by the version of the schema that they change to the next one."""

MAX_INTEGER = 2**63 - 1
"""Maximum integer of SQLite."""

BUSY_S = 10.0
"""Time to wait for a transaction of another process, in seconds."""

_SCHEMA = """
CREATE TABLE secret (value BLOB NOT NULL);
CREATE TABLE documents (
    key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, title TEXT NOT NULL, folder TEXT NOT NULL,
    settings TEXT NOT NULL, version INTEGER NOT NULL, next_node INTEGER NOT NULL, n_nodes INTEGER NOT NULL,
    n_bytes INTEGER NOT NULL, is_trashed INTEGER NOT NULL, created_ms INTEGER NOT NULL, changed_ms INTEGER NOT NULL
);
CREATE INDEX documents_of_owner ON documents (owner, n_bytes);
CREATE TABLE nodes (
    key INTEGER PRIMARY KEY, document INTEGER NOT NULL, id INTEGER NOT NULL, parent INTEGER, position REAL NOT NULL,
    version INTEGER NOT NULL, state TEXT NOT NULL, text TEXT NOT NULL, spans BLOB NOT NULL, model TEXT, digest TEXT,
    parameters TEXT, finish_reason TEXT, error TEXT, n_computed INTEGER, n_cached INTEGER, label TEXT NOT NULL,
    note TEXT NOT NULL, is_bookmarked INTEGER NOT NULL, is_trashed INTEGER NOT NULL, created_ms INTEGER NOT NULL,
    changed_ms INTEGER NOT NULL, n_bytes INTEGER NOT NULL,
    UNIQUE (document, id)
);
CREATE INDEX nodes_of_parent ON nodes (document, parent, position, id);
CREATE INDEX unfinished_nodes ON nodes (document, id) WHERE state = 'running';
CREATE TABLE growth (key INTEGER PRIMARY KEY, node INTEGER NOT NULL, text TEXT NOT NULL, spans BLOB NOT NULL);
CREATE INDEX growth_of_node ON growth (node, key);
"""


class Database:
    """One file. It is created by the first `create`, and opened by the first use.

    Args:
        path: Path of the file.
        limits: Quotas of each owner.
    """

    def __init__(self, path: str | os.PathLike[str], limits: Limits | None = None) -> None:
        self.path = Path(path)
        self.limits = limits or Limits()
        self._connection: sqlite3.Connection | None = None
        self._lock: int | None = None
        """File descriptor of the lock of the process that writes branches."""
        self._secret = b""

    @property
    def exists(self) -> bool:
        """True if there is a file, and therefore perhaps a document."""
        return self._connection is not None or self.path.exists()

    @property
    def connection(self) -> "sqlite3.Connection":
        """The open file.

        Raises:
            DocumentFileError: It cannot be opened.
        """
        if self._connection is None:
            with self._errors():
                self._connection = self._open()
        return self._connection

    def create(self) -> None:
        """Creates a missing file, which only its user can read.

        Raises:
            DocumentFileError: It cannot be created.
        """
        if self.exists:
            return
        with self._errors():
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))

    def claim(self) -> None:
        """Takes the lock of the process that writes branches, and holds it until `close`. Idempotent.

        Raises:
            DocumentsBusyError: Another process holds it.
            DocumentFileError: It cannot be created.
        """
        if self._lock is not None:
            return
        path = self.path.with_name(f"{self.path.name}-lock")
        with self._errors():
            lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
            try:
                lock_file(lock)
            except BlockingIOError:
                os.close(lock)
                raise DocumentsBusyError(str(self.path)) from None
        self._lock = lock

    @property
    def is_claimed(self) -> bool:
        """True if this process holds the lock."""
        return self._lock is not None

    def owner(self, digest: str | None) -> str:
        """Returns the owner of the documents of a key's digest; see `owner_of`."""
        if not self._secret and self.exists:
            [(self._secret,)] = self.connection.execute("SELECT value FROM secret")
        return owner_of(self._secret, digest)

    @contextmanager
    def transaction(self) -> "Iterator[sqlite3.Connection]":
        """Commits the changes of its block, or discards them after an exception.

        Raises:
            DocumentsFullError: The disk is full.
            DocumentFileError: The file cannot be written.
        """
        with self._errors():
            connection = self.connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    def close(self) -> None:
        """Closes the file and releases the lock. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _open(self) -> "sqlite3.Connection":
        import sqlite3  # noqa: PLC0415 (a server without documents does not need it)

        if not self.path.exists():
            raise FileNotFoundError(2, "there is no such file", str(self.path))
        connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            [(version,)] = connection.execute("PRAGMA user_version")
            if version == 0 or version in _MIGRATIONS:
                _update_schema(connection)
            elif version != VERSION:
                raise DocumentFileError(self.path, f"the file has version {version}; this version of Weft reads {VERSION}")
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Translates errors of SQLite and the file system."""
        import sqlite3  # noqa: PLC0415 (as above)

        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                raise DocumentsFullError(0, "bytes") from None
            raise DocumentFileError(self.path, str(error)) from None
        except OSError as error:
            raise DocumentFileError(self.path, error.strerror or str(error)) from None


def _update_schema(connection: "sqlite3.Connection") -> None:
    """Creates the tables, or changes those of an earlier version, unless another process has just done so."""
    connection.execute("BEGIN IMMEDIATE")
    [(version,)] = connection.execute("PRAGMA user_version")
    if version == 0:
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        connection.execute("INSERT INTO secret VALUES (?)", (secrets.token_bytes(32),))
        version = VERSION
    while version in _MIGRATIONS:
        for statement in _MIGRATIONS[version]:
            connection.execute(statement)
        version += 1
    connection.execute(f"PRAGMA user_version = {version}")
    connection.commit()


def now_ms() -> int:
    """Returns the current time as a Unix timestamp in milliseconds."""
    return time.time_ns() // 1_000_000
