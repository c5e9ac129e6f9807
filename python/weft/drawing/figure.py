"""What is drawn of a tree."""

import unicodedata
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache

import msgspec

__all__ = ["COLUMNS", "DEFAULT_DRAWN", "MAX_DRAWN", "Box", "Figure", "Look", "Outline", "cut", "readable", "width"]

DEFAULT_DRAWN = 200
"""Nodes that are drawn where nobody says how many."""

MAX_DRAWN = 1_000
"""Most nodes that are drawn: some 600 kB of SVG, and 2 MB where every character of every text must be escaped."""

COLUMNS = 30
"""How wide a line of a box may be, in characters; those of East Asian scripts count twice."""

MARKS = 8
"""So many characters for each column, where most stand on others, are as many as are shown."""

_SEEN = {"\n": "↵", "\t": "⇥", "\x7f": "␡"}
"""How characters are shown that move what follows them."""

_TURNING = frozenset(map(chr, [0x61C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]))
"""Characters that turn or break a line."""


class Outline(Enum):
    """The shape of a box, which says the same as its colour."""

    ROUND = "round"
    DOUBLE = "double"
    CORNERLESS = "cornerless"
    DASHED = "dashed"
    DOTTED = "dotted"


class Look(msgspec.Struct, frozen=True):
    """A kind of boxes, with a line of the legend."""

    about: str
    """What such boxes are."""
    outline: Outline
    hue: str
    """A word for its colour: blue, green, gold, teal or grey."""


class Box(msgspec.Struct, frozen=True):
    """A node: a text, and a note of less weight below it."""

    parent: int | None
    """Its parent's place among the boxes, before its own."""
    text: str
    note: str
    look: Look
    is_marked: bool = False
    """Whether it is marked, as `Figure.marked` says."""
    is_busy: bool = False
    """Whether it is drawn as busy, as `Figure.busy` says."""


class Figure(msgspec.Struct, frozen=True):
    """A tree, or several, with a legend."""

    title: str
    boxes: Sequence[Box]
    looks: Sequence[Look]
    """Those that the legend has, in its order."""
    marked: str
    """What the legend says of marked boxes."""
    busy: str
    """What it says of busy ones."""
    n_more: int = 0
    """Nodes that are not drawn."""

    @property
    def more(self) -> str:
        """What is said of these; empty where there are none."""
        return f"… and {self.n_more:,} more" if self.n_more else ""


def readable(text: str) -> str:
    """A text in one line of characters that every format may hold: those that cannot be seen are told by others."""
    return text if text.isprintable() else "".join(map(_seen, text))


def _seen(character: str) -> str:
    if character in _SEEN:
        return _SEEN[character]
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    is_none = unicodedata.category(character) in {"Cc", "Cs"} or code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    return "\ufffd" if is_none or character in _TURNING else character


def cut(text: str, columns: int = COLUMNS) -> str:
    """The beginning of a text, as it is shown in one line so wide; `…` stands for the rest."""
    n_columns = n_kept = 0
    for n, character in enumerate(text):
        n_columns += width(character)
        if n_columns > columns:
            return readable(text[:n_kept]) + "…"
        if n_columns < columns:
            n_kept = n + 1
        if n > MARKS * columns:
            return readable(text[:n]) + "…"
    return readable(text)


def width(text: str) -> int:
    """Columns of a character, or of the characters of a text."""
    return len(text) if text.isascii() else sum(map(_width, text))


@lru_cache(maxsize=4_096)
def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1
