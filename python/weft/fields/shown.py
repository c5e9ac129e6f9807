"""What an error repeats of what it was given: enough to know it by, however long it is."""

import json
from reprlib import Repr

__all__ = ["MAX_SHOWN", "cut", "shown"]

MAX_SHOWN = 200
"""Most characters of the input that an error repeats."""


class _Json(Repr):
    """Writes values as JSON, and what JSON cannot hold as Python does. Nested and long values are cut."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 2
        self.maxstring = self.maxother = self.maxlong = MAX_SHOWN

    def repr_NoneType(self, _: None, level: int) -> str:  # noqa: ARG002, N802 (reprlib's names)
        return "null"

    def repr_bool(self, value: bool, level: int) -> str:  # noqa: ARG002 (reprlib's arguments)
        return "true" if value else "false"

    def repr_str(self, value: str, level: int) -> str:  # noqa: ARG002
        return json.dumps(cut(value), ensure_ascii=not value.isprintable())

    def repr_tuple(self, value: tuple[object, ...], level: int) -> str:
        return self.repr_list(list(value), level)


_json = _Json()


def shown(value: object) -> str:
    """Returns a value as JSON, cut; a text by itself in single quotes. Of what is cut off, only the beginning is read."""
    if not isinstance(value, str):
        return cut(_json.repr(value))
    text = value[: MAX_SHOWN + 1]
    return cut(f"'{text}'" if text.isprintable() else f"'{json.dumps(text)[1:-1]}'")


def cut(text: str, n_characters: int = MAX_SHOWN) -> str:
    """The beginning of a text that was given, or made of what was given."""
    return text if len(text) <= n_characters else text[:n_characters] + "…"
