"""How the text of a setting becomes its value: parsers, each of which raises ValueError with what would be right."""

import csv
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from weft.fields.about import abouts

__all__ = [
    "at_most",
    "biases",
    "boolean",
    "file",
    "file_text",
    "folder",
    "items",
    "json_object",
    "json_text",
    "layers",
    "merged",
    "number",
    "on_off_auto",
    "one_of",
    "prefix",
    "text",
    "together",
    "unescaped",
    "unset_at",
    "unset_below",
    "whole",
    "within",
]

_TRUE = ("on", "enabled", "true", "1")
_FALSE = ("off", "disabled", "false", "0")


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


def within(struct: type[Struct], name: str) -> Callable[[str], int]:
    """A parser of whole numbers within the bounds of a struct's field."""
    about = abouts(struct)[name]
    return whole(int(about.low), int(about.high))


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
            raise ValueError(f"{value} is {_outside(low, high)}")
        if value <= above:
            raise ValueError(f"{value} is not above {above}")
        return value

    return parse


def _outside(low: float, high: float) -> str:
    if high == math.inf:
        return f"below {low:g}"
    return f"above {high:g}" if low == -math.inf else f"not in {low:g} to {high:g}"


def unset_at(unset: int, parse: Callable[[str], int], meaning: str) -> Callable[[str], int | None]:
    """A parser for llama-server's way to leave a number unset: one number stands for that.

    Args:
        unset: The number.
        parse: The parser of all others.
        meaning: The effect of `unset`, as "sets no limit", for messages.
    """

    def parse_or_unset(text: str) -> int | None:
        return None if text.strip() == str(unset) else _or_unset(parse, text, f"{unset} {meaning}")

    return parse_or_unset


def unset_below(low: int, parse: Callable[[str], int], meaning: str) -> Callable[[str], int | None]:
    """A parser for numbers that llama-server reads as unset where they are less than `low`, which `meaning` explains."""

    def parse_or_unset(text: str) -> int | None:
        value = whole(-(2**63), 2**63)(text)
        return None if value < low else _or_unset(parse, text, f"{low - 1} {meaning}")

    return parse_or_unset


def _or_unset(parse: Callable[[str], int], text: str, alternative: str) -> int:
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{error}; {alternative}") from None


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
    return None if text in ("auto", "all", "-1") else _or_unset(whole(0), text, "auto, all and -1 are as many as there are")


def folder(text: str) -> str:
    """A parser of a folder that is there."""
    if not Path(text).is_dir():
        raise ValueError(f"{text!r} is not a folder")
    return text


def text(given: str) -> str:
    """A parser that takes anything."""
    return given


def items(given: str) -> tuple[str, ...]:
    """A parser of a comma-separated list; empty items are left out, and so are spaces around them.

    As llama-server's, an item that holds a comma stands in double quotes.
    """
    row = next(csv.reader([given], skipinitialspace=True), [])
    return tuple(stripped for item in row if (stripped := item.strip()))


def file(given: str) -> str:
    """A parser of a file that is there."""
    if not Path(given).is_file():
        raise ValueError(f"{given!r} is not a file")
    return given


def file_text(parse: Callable[[str], Any] = text) -> Callable[[str], Any]:
    """A parser of the name of a file, whose text is parsed."""

    def parse_file(name: str) -> Any:  # noqa: ANN401 (what `parse` makes)
        try:
            content = Path(name).read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"cannot read {name!r}: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{name!r} is not UTF-8: {error.reason} at byte {error.start}") from None
        return parse(content)

    return parse_file


def json_text(given: str) -> str:
    """A parser of JSON that keeps its text."""
    _json(given)
    return given


def json_object(given: str) -> dict[str, Any]:
    """A parser of a JSON object."""
    value = _json(given)
    if not isinstance(value, dict):
        raise ValueError(f"{_short(given)} is not a JSON object")
    return value


def _json(given: str) -> Any:  # noqa: ANN401 (any JSON)
    try:
        return json.loads(given)
    except ValueError as error:
        raise ValueError(f"{_short(given)} is not JSON: {error}") from None


def _short(given: str) -> str:
    return repr(given if len(given) <= 60 else given[:57] + "...")


def prefix(given: str) -> str:
    """A parser of the first part of a path: nothing, or `/a/b` without a slash at its end."""
    bare = given.rstrip("/")
    if bare and not bare.startswith("/"):
        raise ValueError(f"{given!r} does not begin with '/'")
    return bare


def biases(given: str) -> tuple[tuple[int, float], ...]:
    """A parser of `TOKEN+BIAS` or `TOKEN-BIAS`."""
    match = re.fullmatch(r"\s*(-?[0-9]{1,18})\s*([+-])\s*(\S+)\s*", given)
    if match is None:
        raise ValueError(f"{given!r} is not a token's number, a sign and a bias, as 15043+1 or 15043-1.5")
    token, sign, bias = match.groups()
    try:
        amount = float(bias)
    except ValueError:
        raise ValueError(f"{bias!r} in {given!r} is not a number") from None
    if math.isnan(amount):
        raise ValueError(f"{bias!r} in {given!r} is not a number")
    return ((int(token), -amount if sign == "-" else amount),)


def together(first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...]:
    """A setting that is given twice: both lists."""
    return first + second


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """A setting that is given twice: both objects, the second's values where both have a key."""
    return {**first, **second}


_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"'": b"'", b'"': b'"', b"\\": b"\\"}


def unescaped(given: str) -> str:
    r"""The text with llama-server's escapes read: `\n \r \t \' \" \\`, and `\xHH`, a byte of UTF-8.

    Any other backslash stands for itself.
    """

    def read(match: re.Match[bytes]) -> bytes:
        code = match.group(1)
        return bytes([int(code[1:], 16)]) if code.startswith(b"x") else _ESCAPES[code]

    return re.sub(rb"\\(x[0-9a-fA-F]{2}|[nrt'\"\\])", read, given.encode()).decode(errors="replace")
