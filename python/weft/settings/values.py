"""Parsers from the text of a setting to its value; each raises ValueError that describes valid values."""

import csv
import json
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_TRUE = ("on", "enabled", "true", "1")
_FALSE = ("off", "disabled", "false", "0")


def whole(low: int, high: int = 2**31 - 1) -> Callable[[str], int]:
    """Returns a parser of integers in [low, high]."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        if not low <= value <= high:
            raise ValueError(f"{value} is not between {low} and {high}")
        return value

    return parse


def number(low: float = -math.inf, high: float = math.inf, *, above: float = -math.inf) -> Callable[[str], float]:
    """Returns a parser of finite numbers in [low, high] that are greater than `above`."""

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
    return f"above {high:g}" if low == -math.inf else f"not between {low:g} and {high:g}"


def optional(parse: Callable[[str], T], is_unset: Callable[[str], bool], meaning: str) -> Callable[[str], T | None]:
    """Returns a parser that converts texts with which llama-server leaves a setting unset to None.

    Args:
        parse: Parser of all other texts.
        is_unset: Returns True for such texts.
        meaning: These texts and their effect, for error messages: "-1 sets no limit".
    """

    def parse_or_unset(text: str) -> T | None:
        if is_unset(text):
            return None
        try:
            return parse(text)
        except ValueError as error:
            raise ValueError(f"{error}; {meaning}") from None

    return parse_or_unset


def unset_at(unset: int, parse: Callable[[str], T], meaning: str) -> Callable[[str], T | None]:
    """Returns a parser that converts one number, with the effect `meaning`, to None."""
    return optional(parse, lambda text: text.strip() == str(unset), f"{unset} {meaning}")


def unset_below(low: int, parse: Callable[[str], T], meaning: str) -> Callable[[str], T | None]:
    """Returns a parser that converts numbers below `low`, with the effect `meaning`, to None."""
    return optional(parse, lambda text: whole(-(2**63), 2**63)(text) < low, f"{low - 1} {meaning}")


layers = optional(whole(0), lambda text: text in ("auto", "all", "-1"), "auto, all and -1 select all layers")
"""Parses a number of layers; `auto` and `all` become None, which means all layers."""


def one_of(*choices: str) -> Callable[[str], str]:
    """Returns a parser of one of several words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return parse


def boolean(text: str) -> bool:
    """Parses llama-server's words for true and false."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"{text!r} is not one of {', '.join(_TRUE + _FALSE)}")


def on_off_auto(text: str) -> str:
    """Parses llama-server's words for on, off and auto."""
    if text in ("auto", "-1"):
        return "auto"
    try:
        return "on" if boolean(text) else "off"
    except ValueError:
        raise ValueError(f"{text!r} is not one of on, off, auto") from None


def folder(text: str) -> str:
    """Parses the path of an existing folder."""
    if not Path(text).is_dir():
        raise ValueError(f"{text!r} is not a folder")
    return text


def items(given: str) -> tuple[str, ...]:
    """Parses a comma-separated list; skips empty items, and strips spaces.

    As in llama-server, an item that contains a comma must be in double quotes.
    """
    row = next(csv.reader([given], skipinitialspace=True), [])
    return tuple(stripped for item in row if (stripped := item.strip()))


def some(missing: str, parse: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Returns a parser of a comma-separated list; `missing` is the message for an empty list."""

    def parse_items(given: str) -> tuple[T, ...]:
        if not (found := items(given)):
            raise ValueError(missing)
        return tuple(map(parse, found))

    return parse_items


def sorted_union(first: Iterable[T], second: Iterable[T] = ()) -> tuple[T, ...]:
    """Combines the values of a setting that is given twice, sorted and without duplicates."""
    return tuple(sorted({*first, *second}))  # type: ignore[type-var]  # The elements of settings can be compared.


def file(given: str) -> str:
    """Parses the path of an existing file."""
    if not Path(given).is_file():
        raise ValueError(f"{given!r} is not a file")
    return given


def file_text(parse: Callable[[str], Any] = str) -> Callable[[str], Any]:
    """Returns a parser of a file's path that applies `parse` to its content."""

    def parse_file(name: str) -> Any:  # noqa: ANN401 (the result of `parse`)
        try:
            content = Path(name).read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"cannot read {name!r}: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{name!r} is not UTF-8: {error.reason} at byte {error.start}") from None
        return parse(content)

    return parse_file


def json_text(given: str) -> str:
    """Validates JSON and returns its text."""
    _json(given)
    return given


def json_object(given: str) -> dict[str, Any]:
    """Parses a JSON object."""
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
    """Parses a path prefix: empty, or such as `/a/b`; strips slashes at the end."""
    bare = given.rstrip("/")
    if bare and not bare.startswith("/"):
        raise ValueError(f"{given!r} does not begin with '/'")
    return bare


def biases(given: str) -> tuple[tuple[int, float], ...]:
    """Parses `TOKEN+BIAS` or `TOKEN-BIAS`."""
    match = re.fullmatch(r"\s*(-?[0-9]{1,18})\s*([+-])\s*(\S+)\s*", given)
    if match is None:
        raise ValueError(f"{given!r} is not TOKEN+BIAS or TOKEN-BIAS, for example 15043+1 or 15043-1.5")
    token, sign, bias = match.groups()
    try:
        amount = float(bias)
    except ValueError:
        amount = math.nan
    if math.isnan(amount):
        raise ValueError(f"{bias!r} in {given!r} is not a number")
    return ((int(token), -amount if sign == "-" else amount),)


_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"'": b"'", b'"': b'"', b"\\": b"\\"}


def unescaped(given: str) -> str:
    r"""Replaces llama-server's escapes: `\n \r \t \' \" \\`, and `\xHH`, a byte of UTF-8.

    Keeps all other backslashes.
    """

    def read(match: re.Match[bytes]) -> bytes:
        code = match.group(1)
        return bytes([int(code[1:], 16)]) if code.startswith(b"x") else _ESCAPES[code]

    return re.sub(rb"\\(x[0-9a-fA-F]{2}|[nrt'\"\\])", read, given.encode()).decode(errors="replace")
