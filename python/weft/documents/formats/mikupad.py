"""Sessions of mikupad (github.com/lmg-anon/mikupad): an object whose values are JSON texts, with one text in chunks."""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import msgspec

from weft.documents.formats.plain import path_to
from weft.documents.formats.saved import SavedDocument, SavedNode
from weft.errors import InvalidRequestError

KEY = "mikupad"
"""Name of the session in the `settings` of the document, from which everything that Weft does not read is exported again."""


def parse(data: bytes) -> SavedDocument:
    """Parses a session: text that was typed and generated becomes a chain of nodes.

    Raises:
        InvalidRequestError: It is no session.
    """
    try:
        texts = msgspec.json.decode(data, type=dict[str, Any])
        session = {name: msgspec.json.decode(value) if isinstance(value, str) else value for name, value in texts.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError("content", f"the content is no session of mikupad: {error}") from None
    chunks = session.get("prompt")
    if not isinstance(chunks, list) or _text_of_chunks(chunks) is None:
        raise InvalidRequestError("content", "the content is no session of mikupad: it has no prompt in chunks")
    runs = [list(run) for _, run in groupby(chunks, lambda chunk: chunk.get("type") == "user")]
    parts = [text for run in runs if (text := "".join(chunk["content"] for chunk in run))]
    nodes = [SavedNode(id=nth, parent=nth - 1 or None, text=text) for nth, text in enumerate(parts, 1)]
    name = session.get("name")
    return SavedDocument(title=name if isinstance(name, str) else "", settings={KEY: session, **_settings(session)}, nodes=nodes)


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
        depth = session.get("authorNoteDepth")
        found["author_note"] = {"text": text, "depth": depth if isinstance(depth, int) else 3}
    info = session.get("worldInfo")
    entries = info.get("entries") if isinstance(info, Mapping) else None
    if isinstance(entries, list) and entries:
        found["lore"] = [
            {
                "name": str(entry.get("displayName", "")),
                "keys": [key for key in entry.get("keys", []) if isinstance(key, str) and key],
                "secondary_keys": [],
                "text": str(entry.get("text", "")),
                "is_constant": False,
                "is_enabled": True,
                "order": 100,
                "depth": 0,
            }
            for entry in entries
            if isinstance(entry, Mapping) and isinstance(entry.get("keys", []), list)
        ]
    return found


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
