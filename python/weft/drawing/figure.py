"""Content of a drawing of trees, independent of its format."""

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import msgspec

DEFAULT_DRAWN = 200
"""Default maximum of drawn nodes."""

MAX_DRAWN = 1_000
"""Upper limit of drawn nodes: about 600 kB of SVG, and 2 MB if all characters must be escaped."""

COLUMNS = 30
"""Maximum width of a line in a box, in columns; East Asian wide characters take two."""

MARKS = 8
"""Maximum characters per column, which limits combining characters."""

_SEEN = {"\n": "↵", "\t": "⇥", "\x7f": "␡"}
"""Visible replacements of characters that would move the following text."""

_TURNING = frozenset(map(chr, [0x61C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]))
"""Characters that change the direction of text or break a line."""


COLOURS = {
    "blue": ("#dbeafe", "#1d4ed8", "#1e2f52", "#7fb0ff"),
    "teal": ("#ccf3ee", "#0f766e", "#123c3a", "#4fd1c5"),
    "gold": ("#fdf0c4", "#92620a", "#40320f", "#f2b65a"),
    "green": ("#dcf5df", "#1a7f37", "#143a20", "#56d364"),
    "grey": ("#f1f3f5", "#57606a", "#22262d", "#9aa4b2"),
}
"""Fill and stroke colors of each hue, on a light page and on a dark page."""


Outline = Literal["round", "double", "cornerless", "dashed", "dotted"]
"""Shape of a box, which conveys the same information as its color."""


class BoxStyle(msgspec.Struct, frozen=True):
    """Style of a kind of boxes, with its description in the legend."""

    about: str
    """Description of such boxes."""
    outline: Outline
    hue: str
    """Name of the color: blue, green, gold, teal or grey."""


class Box(msgspec.Struct, frozen=True):
    """A node, with a text and a less prominent note below it."""

    parent: int | None
    """Index of its parent in the list of boxes, less than its own."""
    text: str
    note: str
    style: BoxStyle
    is_marked: bool = False
    """Draws a mark, which `Figure.marked` explains."""
    is_busy: bool = False
    """Draws a thick border, which `Figure.busy` explains."""


class Figure(msgspec.Struct, frozen=True):
    """One or several trees, with a legend."""

    title: str
    boxes: Sequence[Box]
    styles: Sequence[BoxStyle]
    """Styles in the legend, in order."""
    marked: str
    """Explanation of marked boxes in the legend."""
    busy: str
    """Explanation of busy boxes in the legend."""
    n_more: int = 0
    """Number of nodes that are not drawn."""

    @property
    def more(self) -> str:
        """Text for the nodes that are not drawn; empty if all are drawn."""
        return f"… and {self.n_more:,} more" if self.n_more else ""


def readable(text: str) -> str:
    """Returns a text as one line of characters that every format supports, with replacements for invisible characters."""
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
    """Returns the beginning of a text that fits in `columns`, as one readable line; `…` marks a truncation."""
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
    """Returns the width of a text in columns."""
    return len(text) if text.isascii() else sum(map(_width, text))


@lru_cache(maxsize=4_096)
def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1
