"""A file of settings: TOML whose keys are the long flags without their dashes, `-` or `_` between words.

A flag that may be given several times takes a list, a switch `true` or `false`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from weft.settings.values import json_object, json_text

__all__ = ["Entry", "entries", "texts"]


class Entry(NamedTuple):
    """One key and its value, as they stand in the file."""

    key: str
    value: Any

    @property
    def spelling(self) -> str:
        """The flag that the key names."""
        return "--" + self.key.replace("_", "-")


def entries(path: str) -> list[Entry]:
    """What a file holds, in its order.

    Raises:
        ValueError: It cannot be read, is no TOML, or names a flag twice.
    """
    import tomllib  # noqa: PLC0415 (most starts have no file)

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
    """What would be written after the flag on a command line: one text, or one for each time that it is given.

    Args:
        value: Any TOML.
        parse: What will read each text; None takes anything.
        is_list: Whether the flag may be given several times.
        separator: What stands between the parts of one text, where the flag takes several.

    Raises:
        ValueError: The value is of a kind that the flag does not take.
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
    """Whether a flag's words are those of a switch, as `on` and `off` of `--flash-attn`; not where it takes any text."""

    def takes(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return takes("true") and not takes("neither of the two")
