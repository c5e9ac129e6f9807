"""Sessions of mikupad (github.com/lmg-anon/mikupad): an object whose values are JSON texts, with one text in chunks."""

import re
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import msgspec

from weft.documents.formats.numbers import counted, number
from weft.documents.formats.plain import path_to
from weft.documents.formats.saved import ParsedFile, SavedDocument, SavedNode
from weft.errors import InvalidRequestError

DEFAULT_DEPTH = 3
"""Depth of an author's note in mikupad, in lines."""

KEY = "mikupad"
"""Name of the session in the `settings` of the document, from which everything that Weft does not read is exported again."""


def parse(data: bytes) -> ParsedFile:
    """Parses a session: text that was typed and generated becomes a chain of nodes.

    Raises:
        InvalidRequestError: It is no session.
    """
    try:
        texts = msgspec.json.decode(data, type=dict[str, Any])
        session = {name: msgspec.json.decode(value) if isinstance(value, str) else value for name, value in texts.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError("content", f"the content is not a session of mikupad: {error}") from None
    chunks = session.get("prompt")
    if not isinstance(chunks, list) or _text_of_chunks(chunks) is None:
        raise InvalidRequestError("content", "the content is not a session of mikupad: it has no prompt in chunks")
    runs = [list(run) for _, run in groupby(chunks, lambda chunk: chunk.get("type") == "user")]
    parts = [text for run in runs if (text := "".join(chunk["content"] for chunk in run))]
    nodes = [SavedNode(id=nth, parent=nth - 1 or None, text=text) for nth, text in enumerate(parts, 1)]
    name = session.get("name")
    title = name if isinstance(name, str) else ""
    return ParsedFile(SavedDocument(title=title, settings={KEY: session, **_settings(session)}, nodes=nodes), _notes(session))


def encode(document: SavedDocument, node_id: int | None) -> bytes:
    """Returns the session of a path. Probabilities are kept as long as the text is that of the imported session."""
    kept = document.settings.get(KEY)
    session: dict[str, Any] = dict(kept) if isinstance(kept, Mapping) else {}
    text = "".join(node.text for node in path_to(document, node_id))
    chunks = session.get("prompt")
    if _text_of_chunks(chunks) != text:
        session["prompt"] = [{"type": "user", "content": text}]
    session["name"] = document.title
    return msgspec.json.encode({name: msgspec.json.encode(value).decode() for name, value in session.items()})


def _settings(session: Mapping[str, Any]) -> dict[str, Any]:
    """Returns memory, author's note and lore in the fields that other formats use too."""
    found: dict[str, Any] = {}
    if text := _text_of(session.get("memoryTokens")):
        found["memory"] = text
    if text := _text_of(session.get("authorNoteTokens")):
        # mikupad inserts the note this many line breaks before the end.
        depth = number(session.get("authorNoteDepth"), DEFAULT_DEPTH)
        found["author_note"] = {"text": text, "depth": depth, "unit": "lines"}
    if entries := _entries(session):
        found["lore"] = [
            {
                "name": str(entry.get("displayName", "")),
                "keys": [_key(key) for key in entry["keys"] if isinstance(key, str) and key],
                "secondary_keys": [],
                "text": str(entry.get("text", "")),
                "is_constant": False,
                "is_enabled": True,
                "order": 100,
                "depth": 0,
                "is_partial": True,
            }
            for entry in entries
        ]
    return found


def _entries(session: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    info = session.get("worldInfo")
    entries = info.get("entries") if isinstance(info, Mapping) else None
    listed = entries if isinstance(entries, list) else []
    return [entry for entry in listed if isinstance(entry, Mapping) and isinstance(entry.get("keys"), list)]


def _notes(session: Mapping[str, Any]) -> list[str]:
    n_ranges = sum(entry.get("search") not in (None, "") for entry in _entries(session))
    what = f"{counted(n_ranges, 'lore entry has', 'lore entries have')} a search range, which does not apply"
    return [f"{what}; all keys are searched in `scan_depth` characters."] if n_ranges else []


def _key(key: str) -> str:
    """Returns a key, which mikupad reads as a regular expression regardless of case, as a text or between slashes."""
    return key if re.fullmatch(r"[\w\s,;:'\"!-]+", key) else f"/{key}/i"


def _text_of_chunks(chunks: object) -> str | None:
    """Returns the text of chunks, or None if the value is not a list of chunks."""
    if not isinstance(chunks, list):
        return None
    found = [chunk.get("content") if isinstance(chunk, Mapping) else None for chunk in chunks]
    texts = [text for text in found if isinstance(text, str)]
    return "".join(texts) if len(texts) == len(found) else None


def _text_of(value: object) -> str:
    text = value.get("text") if isinstance(value, Mapping) else None
    return text if isinstance(text, str) else ""
