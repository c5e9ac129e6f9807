"""Configuration file: TOML whose keys are long flags without dashes, with `-` or `_` between words.

A flag that may be given several times takes a list, and a switch `true` or `false`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Union

import msgspec

from weft.fields.excerpt import truncate
from weft.settings.values import json_object, json_text


class Entry(NamedTuple):
    """A key and its value in the file."""

    key: str
    value: Any

    @property
    def spelling(self) -> str:
        """Flag that corresponds to the key."""
        return "--" + self.key.replace("_", "-")


def entries(path: str) -> list[Entry]:
    """Returns the content of a file, in order.

    Raises:
        ValueError: The file cannot be read, is not TOML, or sets a flag twice.
    """
    import tomllib  # noqa: PLC0415 (most starts have no configuration file)

    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read it: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8: {error.reason} at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"it is not TOML: {error}") from None
    found: dict[str, Entry] = {}
    for key, value in content.items():
        entry = Entry(key, value)
        if (first := found.get(entry.spelling)) is not None:
            raise ValueError(f"{key} repeats the key {first.key}")
        found[entry.spelling] = entry
    return list(found.values())


def texts(value: Any, parse: Callable[[str], Any] | None, *, is_list: bool, separator: str | None) -> list[str]:  # noqa: ANN401
    """Converts a value of the file to values of the command line.

    Args:
        value: Any TOML value.
        parse: Parser of the flag's value; None accepts any text.
        is_list: True if the flag may be repeated.
        separator: Separator of list elements in one value; None if the flag takes a single element.

    Raises:
        ValueError: The flag does not accept a value of this type.
    """
    kinds: dict[str, Any] = {"text": str, "a number": int | float}
    if parse is None or _takes_on_and_off(parse):
        kinds["true or false"] = bool
    if is_list or separator is not None:
        kinds["a list of them"] = list[str | int | float]
    if parse in (json_object, json_text):
        kinds["a table"] = dict[str, Any]
    try:
        msgspec.convert(value, Union[*kinds.values()])
    except msgspec.ValidationError:
        *others, last = kinds
        raise ValueError(f"must be {', '.join(others)} or {last} (got {truncate(_text(value))})") from None
    if isinstance(value, dict):
        return [_text(value)]
    parts = list(map(_text, value if isinstance(value, list) else [value]))
    return parts if is_list else [(separator or "").join(parts)]


def _text(value: Any) -> str:  # noqa: ANN401 (any TOML)
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _takes_on_and_off(parse: Callable[[str], Any]) -> bool:
    """Returns True if a flag accepts the words of a switch, as `--flash-attn` does, but not any text."""

    def takes(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return takes("true") and not takes("neither of the two")
