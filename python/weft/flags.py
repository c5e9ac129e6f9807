"""How a setting is spelt, and how its text becomes a value."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

__all__ = [
    "Flag",
    "at_most",
    "boolean",
    "flag",
    "folder",
    "json_object",
    "layers",
    "number",
    "on_off_auto",
    "one_of",
    "unset_at",
    "unset_below",
    "whole",
]

_TRUE = ("on", "enabled", "true", "1")
_FALSE = ("off", "disabled", "false", "0")


@dataclass(frozen=True)
class Flag:
    """How one setting is spelt on the command line and in the environment."""

    group: str
    help: str
    names: tuple[str, ...] = ()
    """Spellings that take a value."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Spellings that take none, and what each stands for."""
    metavar: str = "N"
    parse: Callable[[str], Any] = str
    """Text to value; raises ValueError with what would be right."""
    env: str | None = None


def whole(low: int, high: int = 2**31 - 1) -> Callable[[str], int]:
    """A parser of whole numbers in [low, high]."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        if not low <= value <= high:
            raise ValueError(f"{value} is not in {low} to {high}")
        return value

    return parse


def number(low: float = -math.inf, high: float = math.inf, *, above: float = -math.inf) -> Callable[[str], float]:
    """A parser of finite numbers in [low, high] that are greater than `above`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number") from None
        if not math.isfinite(value):
            raise ValueError(f"{text!r} is not a finite number")
        if not low <= value <= high:
            raise ValueError(f"{value} is not in {low} to {high}")
        if value <= above:
            raise ValueError(f"{value} is not above {above}")
        return value

    return parse


def unset_at(unset: int, parse: Callable[[str], int]) -> Callable[[str], int | None]:
    """A parser for llama-server's way to leave a number unset: one number stands for that."""

    def parse_or_unset(text: str) -> int | None:
        return None if text.strip() == str(unset) else parse(text)

    return parse_or_unset


def unset_below(low: int, parse: Callable[[str], int]) -> Callable[[str], int | None]:
    """A parser for numbers that llama-server reads as unset where they are less than `low`."""

    def parse_or_unset(text: str) -> int | None:
        value = whole(-(2**31))(text)
        return None if value < low else parse(text)

    return parse_or_unset


def at_most(high: int, parse: Callable[[str], int]) -> Callable[[str], int]:
    """A parser that takes greater numbers for `high`."""
    return lambda text: min(parse(text), high)


def one_of(*choices: str) -> Callable[[str], str]:
    """A parser of one of a few words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return parse


def boolean(text: str) -> bool:
    """A parser of llama-server's words for yes and no."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"{text!r} is not one of {', '.join(_TRUE + _FALSE)}")


def on_off_auto(text: str) -> str:
    """A parser of llama-server's words for yes, no and its own choice."""
    if text in ("auto", "-1"):
        return "auto"
    try:
        return "on" if boolean(text) else "off"
    except ValueError:
        raise ValueError(f"{text!r} is not one of on, off, auto") from None


def layers(text: str) -> int | None:
    """A parser of a number of layers; `auto` and `all` are as many as there are."""
    return None if text in ("auto", "all", "-1") else whole(0)(text)


def folder(text: str) -> str:
    """A parser of a folder that is there."""
    if not Path(text).is_dir():
        raise ValueError(f"{text!r} is not a folder")
    return text


def json_object(text: str) -> dict[str, Any]:
    """A parser of a JSON object."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        raise ValueError(f"{text!r} is not a JSON object") from None


def flag(default: object, group: str, *names: str, **about: Any) -> Any:  # noqa: ANN401 (a field of any type)
    """A field of [`Settings`] with its row of the table."""
    return field(default=default, metadata={"flag": Flag(group=group, names=names, **about)})
