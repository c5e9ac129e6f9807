"""Error messages for bodies that are not valid JSON."""

import codecs
import math
import re

_ESCAPE = re.compile(rb"\\(?:u(?P<unit>[0-9a-fA-F]{4})|(?P<name>.))?", re.DOTALL)

_NAMES = frozenset(b'"\\/bfnrt')

_STRING_OR_NUMBER = re.compile(rb'"(?:\\.|[^"\\])*"|-?[0-9][0-9.eE+-]*', re.DOTALL)

_BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

_MALFORMED = "JSON is malformed: "


def why_not_json(body: bytes, error: Exception) -> str:
    """Returns a message about a body that cannot be decoded.

    msgspec reports some broken escapes at the end of a body as truncation, and a number that is out of range without its place.

    Args:
        body: The bytes that were to be decoded.
        error: What msgspec raised, or an exception with its message.
    """
    message = str(error)
    if not body.strip():
        return "the body is empty; it must be JSON"
    if body.startswith(_BYTE_ORDER_MARKS):
        return "the body begins with a byte order mark; send UTF-8 without one"
    if message.startswith("Number out of range") and (number := _out_of_range(body)) is not None:
        return f"the body has the number {number}, which is out of range"
    is_truncated = message.startswith("Input data was truncated")
    if is_truncated or "surrogate" in message or "escape" in message:
        message = _wrong_escape(body) or message
    if message.startswith("Input data was truncated"):
        message = f"it ends at byte {len(body)}, within a value"
    return f"the body is no JSON in UTF-8: {message.removeprefix(_MALFORMED)}"


def _wrong_escape(body: bytes) -> str | None:
    """Describes the first invalid escape, or returns None."""
    high: re.Match[bytes] | None = None
    for match in _ESCAPE.finditer(body):
        unit = int(match["unit"], 16) if match["unit"] else 0
        is_low = 0xDC00 <= unit < 0xE000
        if high is not None and is_low and match.start() == high.end():
            high = None
        elif high is not None or is_low:
            return _half_of_a_pair(high or match)
        elif 0xD800 <= unit < 0xDC00:
            high = match
        elif match["unit"] is None and match["name"] == b"u":
            return rf"the escape \u at byte {match.start()} must have four hexadecimal digits"
        elif match["unit"] is None and (match["name"] is None or match["name"][0] not in _NAMES):
            return rf"the backslash at byte {match.start()} begins no escape; write \\ for a backslash"
    return None if high is None else _half_of_a_pair(high)


def _half_of_a_pair(match: re.Match[bytes]) -> str:
    return f"the escape {match[0].decode()} at byte {match.start()} is half of a surrogate pair, which stands for no character"


def _out_of_range(body: bytes) -> str | None:
    """Returns the first number that is beyond 64-bit floats, cut where it is long."""
    for match in _STRING_OR_NUMBER.finditer(body):
        text = match[0]
        try:
            if not text.startswith(b'"') and math.isinf(float(text)):
                return text.decode() if len(text) <= 32 else f"{text[:32].decode()}…"
        except ValueError:  # The number is malformed, which is another error.
            continue
    return None
