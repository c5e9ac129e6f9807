"""Lore books and stories of SillyTavern and KoboldAI.

A lore entry becomes `{"name", "keys", "secondary_keys", "text", "is_constant", "is_enabled", "order", "depth"}` in the list
`lore` of the document's `settings`. A key may be a regular expression between slashes, as in SillyTavern. An entry that is
inserted `depth` lines or tokens before the end of the text also has a `unit`; others follow the memory.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from weft.documents.formats.numbers import counted, number
from weft.documents.formats.saved import ParsedFile, SavedDocument, SavedNode
from weft.errors import InvalidRequestError

MESSAGE_DEPTH = 4
"""Depth of an entry of SillyTavern that has none, in messages."""

AT_DEPTH = 4
"""Position of an entry of SillyTavern that is inserted at a depth."""

FRONT = (None, 0, 1, "before_char", "after_char")
"""Positions of entries of SillyTavern at the front."""

ACTION_DEPTH = 3
"""Depth of the author's note of KoboldAI, in actions, which the file does not have."""

CHARACTERS_PER_TOKEN = 4
"""KoboldAI Lite's ratio of characters to tokens, which it counts depths in."""

RECURSION = ("excludeRecursion", "preventRecursion", "delayUntilRecursion")
"""Fields of entries of SillyTavern that restrict which entries activate others."""


def parse_sillytavern(data: bytes) -> ParsedFile:
    """Parses a lore book ("world info") of SillyTavern: an empty document with its entries.

    Raises:
        InvalidRequestError: It has no entries.
    """
    book = _object(data)
    given = book.get("entries")
    listed = list(given.values()) if isinstance(given, Mapping) else given
    if not isinstance(listed, list):
        raise InvalidRequestError("content", "the content is not a lore book of SillyTavern: it has no entries")
    entries = [_flat(entry) for entry in listed if isinstance(entry, Mapping)]
    document = SavedDocument(title=_text(book, "name"), settings={"lore": list(map(_sillytavern_entry, entries))})
    return ParsedFile(document, _sillytavern_notes(book, entries))


def _flat(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns an entry with the field names of a lore book's file, which differ from those of a character's book."""
    more = entry.get("extensions")
    extensions: Mapping[str, Any] = more if isinstance(more, Mapping) else {}
    names = {
        "position": "position",
        "depth": "depth",
        "selectiveLogic": "selectiveLogic",
        "probability": "probability",
        "caseSensitive": "case_sensitive",
        "matchWholeWords": "match_whole_words",
        "excludeRecursion": "exclude_recursion",
        "preventRecursion": "prevent_recursion",
        "delayUntilRecursion": "delay_until_recursion",
    }
    return {**entry, **{name: extensions[other] for name, other in names.items() if other in extensions}}


def _sillytavern_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    secondary = _keys(entry.get("keysecondary", entry.get("secondary_keys")))
    case, whole = entry.get("caseSensitive"), entry.get("matchWholeWords")
    return {
        "name": _text(entry, "comment"),
        "keys": _keys(entry.get("key", entry.get("keys"))),
        "secondary_keys": [] if entry.get("selective") is False else secondary,
        "text": _text(entry, "content"),
        "is_constant": entry.get("constant") is True,
        "is_enabled": entry.get("disable") is not True and entry.get("enabled") is not False,
        "order": number(entry.get("order", entry.get("insertion_order")), 100),
        "depth": number(entry.get("depth"), MESSAGE_DEPTH),
        **({"unit": "lines"} if entry.get("position") == AT_DEPTH else {}),
        **({"is_case_sensitive": case} if isinstance(case, bool) else {}),
        **({"is_partial": not whole} if isinstance(whole, bool) else {}),
    }


def _sillytavern_notes(book: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> list[str]:
    notes: list[str] = []

    def add(chosen: Iterable[bool], one: str, several: str, what: str) -> None:
        if n := sum(chosen):
            notes.append(f"{counted(n, one, several)} {what}")

    has = ("lore entry has", "lore entries have")
    positions = [entry.get("position") for entry in entries]
    add(
        (position == AT_DEPTH for position in positions),
        *has,
        "a depth in messages, of which a text has none; the number was kept, in lines.",
    )
    add(
        (position not in FRONT and position != AT_DEPTH for position in positions),
        *has,
        "a position around an author's note or example messages; they follow the memory instead.",
    )
    add(
        (bool(entry.get("keysecondary")) and entry.get("selectiveLogic") in (1, 2, 3) for entry in entries),
        *has,
        "secondary keys with another rule than that one of them must match, which does not apply.",
    )
    add((_is_uncertain(entry) for entry in entries), *has, "a probability below 100 %, which does not apply.")
    add((any(map(entry.get, RECURSION)) for entry in entries), *has, "rules for recursion, which do not apply.")
    if entries:
        also = ", although the book requests it" if book.get("recursive_scanning") is True else ""
        notes.append(f"The text of a lore entry does not activate other entries{also}.")
    return notes


def parse_koboldai(data: bytes) -> ParsedFile:
    """Parses a story of KoboldAI or KoboldAI Lite, or a list of its world info: the text, memory, author's note and lore.

    Raises:
        InvalidRequestError: It is neither.
    """
    try:
        read = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError("content", f"the content is not a story of KoboldAI: {error}") from None
    story: Mapping[str, Any] = {"worldinfo": read} if isinstance(read, list) else read if isinstance(read, dict) else {}
    if not {"worldinfo", "actions", "prompt"} & story.keys():
        raise InvalidRequestError("content", "the content is not a story of KoboldAI: it has no prompt, actions or worldinfo")
    info = story.get("worldinfo")
    entries = [entry for entry in (info if isinstance(info, list) else []) if isinstance(entry, Mapping)]
    lore = [
        {
            "name": _text(entry, "comment"),
            "keys": _keys(entry.get("key")),
            "secondary_keys": _keys(entry.get("keysecondary")) if entry.get("selective") is True else [],
            "text": _text(entry, "content"),
            "is_constant": entry.get("constant") is True,
            "is_enabled": entry.get("widisabled") is not True,
            "order": 100,
            "depth": 0,
        }
        for entry in entries
    ]
    texts = [_text(story, "prompt"), *(each for each in _actions(story.get("actions")) if each)]
    texts = [text for text in texts if text]
    settings: dict[str, Any] = {"lore": lore}
    notes: list[str] = []
    if memory := _text(story, "memory"):
        settings["memory"] = memory
    if note := _text(story, "authorsnote"):
        depth, assumption = _koboldai_depth(story)
        settings["author_note"] = {"text": note, **depth}
        notes.append(assumption)
    has = ("lore entry has", "lore entries have")
    if n := sum(bool(entry.get("keyanti")) for entry in entries):
        notes.append(f"{counted(n, *has)} keys that prevent it, which do not apply.")
    if n := sum(map(_is_uncertain, entries)):
        notes.append(f"{counted(n, *has)} a probability below 100 %, which does not apply.")
    nodes = [SavedNode(id=nth, parent=nth - 1 or None, text=text) for nth, text in enumerate(texts, 1)]
    return ParsedFile(SavedDocument(settings=settings, nodes=nodes), notes)


def _koboldai_depth(story: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Returns the depth of the author's note, and a sentence on what was assumed."""
    if "anotestr" not in story:
        depth = {"depth": ACTION_DEPTH, "unit": "lines"}
        return depth, f"The file has no depth of the author's note; {ACTION_DEPTH} lines were assumed."
    n_characters = number(story["anotestr"], 320)
    n_tokens = n_characters // CHARACTERS_PER_TOKEN
    note = f"The author's note has a depth of {n_characters} characters; {n_tokens} tokens were assumed, as in KoboldAI Lite."
    return {"depth": n_tokens, "unit": "tokens"}, note


def _is_uncertain(entry: Mapping[str, Any]) -> bool:
    return entry.get("useProbability") is not False and number(entry.get("probability"), 100) < 100


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError("content", f"the content is not a lore book of SillyTavern: {error}") from None


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
