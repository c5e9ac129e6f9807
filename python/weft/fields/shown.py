"""What an error repeats of what it was given: enough to know it by, however long it is."""

from reprlib import Repr

__all__ = ["MAX_SHOWN", "cut", "shown"]

MAX_SHOWN = 200
"""Most characters of the input that an error repeats."""

_repr = Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = MAX_SHOWN
_repr.maxlevel = 2


def shown(value: object) -> str:
    """A value as Python writes it, cut; of what is cut off, no more is looked at than that it is there."""
    return cut(repr(value[: MAX_SHOWN + 1]) if isinstance(value, str) else _repr.repr(value))


def cut(text: str, n_characters: int = MAX_SHOWN) -> str:
    """The beginning of a text that was given, or made of what was given."""
    return text if len(text) <= n_characters else text[:n_characters] + "…"
