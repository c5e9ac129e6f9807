"""Validation of fields: bounds, and msgspec's errors with paths such as `messages[2].content` and JSON's names of types."""

import math
import re

import msgspec

from weft.errors import InvalidRequestError

_PLACE = re.compile(r"(?P<message>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)

_TYPES = {"int": "integer", "float": "number", "bool": "boolean", "str": "string"}

_TYPE_LIST = re.compile(r"`(?:int|float|bool|str|array|object|null)(?: \| (?:int|float|bool|str|array|object|null))*`")


def check_range(name: str, value: float | None, low: float, high: float = math.inf, *, param: str | None = None) -> None:
    """Refuses a number that is out of range. None passes.

    Args:
        name: Name or path of the field.
        value: Its value.
        low: Inclusive minimum.
        high: Inclusive maximum.
        param: Field that the error names, if it is not `name`.

    Raises:
        InvalidRequestError: The value is out of range.
    """
    if value is not None and not low <= value <= high:
        bounds = f"{low} or more" if high == math.inf else f"{low} to {high}"
        raise InvalidRequestError(param or name, f"{name} is {value}; it must be {bounds}")


def message_with_path(error: msgspec.ValidationError, place: str) -> str:
    """Returns the message of an error, prefixed with the path of the invalid value.

    Args:
        error: The error that `msgspec.convert` raised.
        place: Path of the value that was converted.
    """
    match = _PLACE.fullmatch(str(error))
    assert match is not None, "everything behind the message is optional"
    where = f"{place}{match['path'] or ''}".replace("[...]", ".*")
    return f"{'a key of ' if match['key'] else ''}{where}: {with_json_types(match['message'])}"


def with_json_types(message: str) -> str:
    """Replaces Python's type names with JSON's."""
    return _TYPE_LIST.sub(lambda types: re.sub(r"\w+", lambda name: _TYPES.get(name[0], name[0]), types[0]), message)
