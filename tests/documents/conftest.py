"""A file of documents, and one document in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from weft.documents import catalog
from weft.documents.catalog import DocumentChange
from weft.documents.database import Database
from weft.documents.records import DocumentKey, Limits

LIMITS = Limits(max_documents=3, max_nodes=40, max_bytes=100_000)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "documents.sqlite", LIMITS)
    yield database
    database.close()


@pytest.fixture
def key(database: Database) -> DocumentKey:
    return DocumentKey(None, catalog.create(database, None, DocumentChange(title="The fox")).id)
