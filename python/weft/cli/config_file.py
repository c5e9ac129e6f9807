"""Configuration file: TOML whose keys are long flags without dashes, with `-` or `_` between words.

A flag that may be given several times takes a list, and a switch `true` or `false`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from weft.settings.values import json_object, json_text

__all__ = ["Entry", "entries", "texts"]


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
            raise ValueError(f"{key} is {first.key} again")
        found[entry.spelling] = entry
    return list(found.values())


def texts(value: Any, parse: Callable[[str], Any] | None, *, is_list: bool, separator: str | None) -> list[str]:  # noqa: ANN401
    """Converts a TOML value to command-line values: one, or one per repetition of the flag.

    Args:
        value: Any TOML value.
        parse: Parser of the flag's value; None accepts any text.
        is_list: True if the flag may be repeated.
        separator: Separator of list elements in one value; None if the flag takes a single element.

    Raises:
        ValueError: The flag does not accept a value of this type.
    """
    if isinstance(value, list):
        if any(isinstance(item, bool | list | dict) for item in value):
            raise ValueError("a list holds texts and numbers")
        parts = [_scalar(item) for item in value]
        if is_list:
            return parts
        if separator is None:
            raise ValueError("it takes one value, and not a list")
        return [separator.join(parts)]
    if isinstance(value, dict):
        if parse not in (json_object, json_text):
            raise ValueError("it takes no table")
        return [json.dumps(value)]
    if isinstance(value, bool) and parse is not None and not _takes_on_and_off(parse):
        raise ValueError(f"{_scalar(value)} is for switches; it takes a text or a number")
    return [_scalar(value)]


def _scalar(value: Any) -> str:  # noqa: ANN401 (any TOML)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError(f"{value} is neither text nor a number")


def _takes_on_and_off(parse: Callable[[str], Any]) -> bool:
    """Returns True if a flag accepts the words of a switch, as `--flash-attn` does, but not any text."""

    def takes(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return takes("true") and not takes("neither of the two")
