"""Lore books and stories of SillyTavern and KoboldAI.

A lore entry becomes `{"name", "keys", "secondary_keys", "text", "is_constant", "is_enabled", "order", "depth"}` in the list
`lore` of the document's `settings`. A key may be a regular expression between slashes, as in SillyTavern.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from weft.documents.formats.saved import SavedDocument, SavedNode
from weft.errors import InvalidRequestError


def parse_sillytavern(data: bytes) -> SavedDocument:
    """Parses a lore book ("world info") of SillyTavern: an empty document with its entries.

    Raises:
        InvalidRequestError: It has no entries.
    """
    book = _object(data)
    entries = book.get("entries")
    listed = list(entries.values()) if isinstance(entries, Mapping) else entries
    if not isinstance(listed, list):
        raise InvalidRequestError("content", "the content is no lore book of SillyTavern: it has no entries")
    lore = [
        {
            "name": _text(entry, "comment"),
            "keys": _keys(entry.get("key", entry.get("keys"))),
            "secondary_keys": _keys(entry.get("keysecondary", entry.get("secondary_keys"))),
            "text": _text(entry, "content"),
            "is_constant": entry.get("constant") is True,
            "is_enabled": entry.get("disable") is not True and entry.get("enabled") is not False,
            "order": _number(entry.get("order", entry.get("insertion_order")), 100),
            "depth": _number(entry.get("depth"), 4),
        }
        for entry in listed
        if isinstance(entry, Mapping)
    ]
    return SavedDocument(title=_text(book, "name"), settings={"lore": lore})


def parse_koboldai(data: bytes) -> SavedDocument:
    """Parses a story of KoboldAI or KoboldAI Lite, or a list of its world info: the text, memory, author's note and lore.

    Raises:
        InvalidRequestError: It is neither.
    """
    try:
        read = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError("content", f"the content is no story of KoboldAI: {error}") from None
    story: Mapping[str, Any] = {"worldinfo": read} if isinstance(read, list) else read if isinstance(read, dict) else {}
    if not {"worldinfo", "actions", "prompt"} & story.keys():
        raise InvalidRequestError("content", "the content is no story of KoboldAI: it has no prompt, actions or worldinfo")
    info = story.get("worldinfo")
    lore = [
        {
            "name": _text(entry, "comment"),
            "keys": _keys(entry.get("key")),
            "secondary_keys": _keys(entry.get("keysecondary")) if entry.get("selective") is True else [],
            "text": _text(entry, "content"),
            "is_constant": entry.get("constant") is True,
            "is_enabled": True,
            "order": 100,
            "depth": 0,
        }
        for entry in (info if isinstance(info, list) else [])
        if isinstance(entry, Mapping)
    ]
    texts = [_text(story, "prompt"), *(each for each in _actions(story.get("actions")) if each)]
    texts = [text for text in texts if text]
    settings: dict[str, Any] = {"lore": lore}
    if memory := _text(story, "memory"):
        settings["memory"] = memory
    if note := _text(story, "authorsnote"):
        settings["author_note"] = {"text": note, "depth": 3}
    nodes = [SavedNode(id=nth, parent=nth - 1 or None, text=text) for nth, text in enumerate(texts, 1)]
    return SavedDocument(settings=settings, nodes=nodes)


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError("content", f"the content is no lore book of SillyTavern: {error}") from None


def _actions(value: object) -> Sequence[str]:
    """Returns the texts of actions: a list of texts, or KoboldAI's object of actions by number."""
    if isinstance(value, Mapping):
        value = [value[key] for key in sorted(value, key=lambda key: (len(key), key))]
    if not isinstance(value, list):
        return []
    texts = [each.get("Selected Text") if isinstance(each, Mapping) else each for each in value]
    return [text for text in texts if isinstance(text, str)]


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    return value if isinstance(value, str) else ""


def _keys(value: object) -> list[str]:
    listed = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    return [key.strip() for key in listed if isinstance(key, str) and key.strip()]


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31 else default
