"""Search in all documents of an owner. Case and diacritics do not matter."""

import unicodedata
from typing import Literal, NamedTuple

import msgspec

from weft.documents.database import MAX_INTEGER, Database

SCANNED = 2_000
"""Nodes that one call scans, some ten milliseconds, so that others are not delayed."""

EXCERPT = 60
"""Characters of an excerpt before and after the match."""


Field = Literal["text", "note", "label"]

_FIELDS: tuple[Field, ...] = ("text", "note", "label")


class Hit(msgspec.Struct, kw_only=True):
    """A match of a search."""

    document: str
    title: str
    node: int
    field: Field
    start: int
    """Character of the field at which the match begins."""
    length: int
    """Length of the match in characters."""
    excerpt: str
    """The match with the characters around it."""


class Page(NamedTuple):
    """Hits of a part of the documents."""

    hits: list[Hit]
    next: int | None
    """Position at which the search continues; None at the end."""


def search(
    database: Database, digest: str | None, query: str, *, document_id: str | None = None, after: int = 0, limit: int
) -> Page:
    """Searches up to `SCANNED` nodes, not those of documents in the trash, for the first match in each field.

    Args:
        database: The file.
        digest: Digest of the owner's API key.
        query: Text to find.
        document_id: Document to search; None is all.
        after: Position, from an earlier page.
        limit: Maximum number of hits.
    """
    wanted = fold(query)
    if not database.exists or not wanted:
        return Page([], None)
    rows = database.connection.execute(
        "SELECT nodes.key, nodes.document, parent, documents.id, title, nodes.id, text, note, label FROM nodes"
        " JOIN documents ON documents.key = nodes.document"
        " WHERE nodes.key > ? AND owner = ? AND NOT documents.is_trashed AND NOT nodes.is_trashed"
        " AND (? IS NULL OR documents.id = ?) ORDER BY nodes.key LIMIT ?",
        (min(max(after, 0), MAX_INTEGER), database.owner(digest), document_id, document_id, SCANNED),
    ).fetchall()
    hits: list[Hit] = []
    for node_key, document, parent, name, title, node, *values in rows:
        found = [_Match(field, value) for field, value in zip(_FIELDS, values, strict=True) if wanted in fold(value)]
        if found and not _is_below_trash(database, document, parent):
            hits += [each.hit(wanted, document=name, title=title, node=node) for each in found]
        if len(hits) >= limit:
            return Page(hits, node_key)
    return Page(hits, rows[-1][0] if len(rows) == SCANNED else None)


def _is_below_trash(database: Database, document: int, node: int | None) -> bool:
    while node is not None:
        [(node, is_trashed)] = database.connection.execute(
            "SELECT parent, is_trashed FROM nodes WHERE document = ? AND id = ?", (document, node)
        )
        if is_trashed:
            return True
    return False


def fold(text: str) -> str:
    """Returns a text without case and diacritics."""
    if text.isascii():
        return text.lower()
    return "".join(each for each in unicodedata.normalize("NFKD", text).casefold() if not unicodedata.combining(each))


class _Match(NamedTuple):
    field: Field
    value: str

    def hit(self, wanted: str, *, document: str, title: str, node: int) -> Hit:
        """Returns the first match of a folded text."""
        # One character may fold to several, or to none.
        characters = [nth for nth, each in enumerate(self.value) for _ in fold(each)]
        start = min(fold(self.value).find(wanted), len(characters) - 1)
        first, last = characters[start], characters[min(start + len(wanted), len(characters)) - 1] + 1
        excerpt = self.value[max(first - EXCERPT, 0) : last + EXCERPT]
        return Hit(document=document, title=title, node=node, field=self.field, start=first, length=last - first, excerpt=excerpt)
