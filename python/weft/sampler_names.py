"""The names of samplers, in all the spellings that llama-server has for them."""

from collections.abc import Iterable

from weft.request import SAMPLERS

__all__ = ["samplers_of_letters", "samplers_of_names"]

_NAMES = (*SAMPLERS, "adaptive_p", "infill")

_OTHER_NAMES = {
    "typical_p": "typ_p",
    "typical": "typ_p",
    "typ": "typ_p",
    "nucleus": "top_p",
    "temp": "temperature",
    "tfs": "tfs_z",
}

_LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "f": "tfs_z",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "a": "adaptive_p",
    "i": "infill",
}
"""llama-server's letters; that of `tfs_z` is from the time when it had that sampler."""

_KNOWN = {spelling: name for name in _NAMES for spelling in (name, name.replace("_", "-"), name.replace("_", ""))} | {
    spelling: name
    for other, name in _OTHER_NAMES.items()
    for spelling in (other, other.replace("_", "-"), other.replace("_", ""))
}


def samplers_of_names(names: Iterable[str]) -> tuple[str, ...]:
    """The samplers that are named, in order; ValueError names the first that is unknown."""
    found = []
    for name in names:
        if (known := _KNOWN.get(name.strip().lower())) is None:
            raise ValueError(f"{name!r} is not one of {', '.join(_NAMES)}")
        found.append(known)
    return tuple(found)


def samplers_of_letters(letters: str) -> tuple[str, ...]:
    """The samplers that these letters stand for, in order; ValueError names the first that is unknown.

    llama-server's letters of today have none for `tfs_z`: where it is not named, it follows `top_k`, as in `SAMPLERS`.
    """
    found = []
    for letter in letters:
        if (known := _LETTERS.get(letter)) is None:
            raise ValueError(f"{letter!r} in {letters!r} is not one of {' '.join(_LETTERS)}")
        found.append(known)
        if known == "top_k" and "f" not in letters:
            found.append("tfs_z")
    return tuple(found)
