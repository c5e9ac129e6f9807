"""Excerpts of invalid input for error messages: long enough to recognize the input, with an upper bound."""

import json
from reprlib import Repr

MAX_EXCERPT = 200
"""Maximum characters of the input that an error message repeats."""


class _Json(Repr):
    """Formats values as JSON, or with `repr` where JSON has no equivalent. Truncates nested and long values."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 2
        self.maxstring = self.maxother = self.maxlong = MAX_EXCERPT

    def repr_NoneType(self, _: None, level: int) -> str:  # noqa: ARG002, N802 (reprlib's names)
        return "null"

    def repr_bool(self, value: bool, level: int) -> str:  # noqa: ARG002 (reprlib's arguments)
        return "true" if value else "false"

    def repr_str(self, value: str, level: int) -> str:  # noqa: ARG002
        return json.dumps(truncate(value), ensure_ascii=not value.isprintable())

    def repr_tuple(self, value: tuple[object, ...], level: int) -> str:
        return self.repr_list(list(value), level)


_json = _Json()


def excerpt(value: object) -> str:
    """Returns a value as truncated JSON, or a string in single quotes. Reads only the beginning of a long string."""
    if not isinstance(value, str):
        return truncate(_json.repr(value))
    text = value[: MAX_EXCERPT + 1]
    return truncate(f"'{text}'" if text.isprintable() else f"'{json.dumps(text)[1:-1]}'")


def truncate(text: str, n_characters: int = MAX_EXCERPT) -> str:
    """Truncates a text to `n_characters` and appends an ellipsis if anything was cut off."""
    return text if len(text) <= n_characters else text[:n_characters] + "…"
