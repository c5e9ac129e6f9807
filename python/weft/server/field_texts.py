"""Meanings, valid values and defaults of request fields, for the OpenAPI document and the reference of the HTTP API."""

import tomllib
from functools import cache
from pathlib import Path

import msgspec

from weft.sampling_fields import parameter_meta

__all__ = ["FieldText", "field_text"]


class FieldText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Description of a field. The texts are Markdown, and empty if there is nothing to state."""

    meaning: str
    values: str = ""
    """Valid values that the type does not imply."""
    default: str = ""
    """Value of a missing field, or `required`."""

    @property
    def description(self) -> str:
        """Meaning and valid values."""
        return f"{self.meaning}; {self.values}" if self.values else self.meaning


def field_text(body: str, field: str) -> FieldText | None:
    """Returns the description of a field.

    Args:
        body: Name of the struct of a request's body.
        field: Name of the field in JSON.
    """
    text = _texts().get(body, {}).get(field) or _texts()["common"].get(field)
    if text is None and (meta := parameter_meta().get(field)) is not None:
        return FieldText(meta.text)
    return text


@cache
def _texts() -> dict[str, dict[str, FieldText]]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, dict[str, FieldText]])
