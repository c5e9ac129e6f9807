"""Metadata of struct fields: description and bounds. Validation, tables and help texts are derived from it."""

import math
from collections.abc import Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from weft.fields.excerpt import truncate

Struct = TypeVar("Struct", bound=type[msgspec.Struct])


class Range(msgspec.Struct, frozen=True):
    """Bounds of a field."""

    low: float = -math.inf
    """Inclusive minimum."""
    high: float = math.inf
    """Inclusive maximum."""
    above: float = -math.inf
    """Exclusive minimum."""


class Clamp(msgspec.Struct, frozen=True):
    """Bounds to which values of request bodies are clamped, where llama-server clamps rather than rejects them."""

    clamp: tuple[float, float]
    """Minimum and maximum."""


class Unset(msgspec.Struct, frozen=True):
    """Meaning of None, if it is the default of a field."""

    unset: str


class FieldMeta(Range, frozen=True, kw_only=True):
    """Description and bounds of one field: the text in its annotation, followed by a `Range`, a `Clamp` or an `Unset`."""

    text: str
    """Purpose of the field, with its unit."""
    clamp: tuple[float, float] | None = None
    """See `Clamp`."""
    unset: str = ""
    """See `Unset`."""

    def takes(self, value: object) -> bool:
        """Returns True if a value of the field's type, or each element of a tuple, is within the bounds."""
        if isinstance(value, tuple):
            return all(map(self.takes, value))
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        return self.low <= value <= self.high and value > self.above and math.isfinite(value)


def field_meta(struct: type[msgspec.Struct]) -> dict[str, FieldMeta]:
    """Returns the metadata of each annotated field, in field order."""
    return {name: joined(*get_args(hint)[1:]) for name, hint in _hints(struct).items()}


def joined(text: str, *others: Range | Clamp | Unset) -> FieldMeta:
    """Returns the metadata of a field with these annotations."""
    fields: dict[str, Any] = {name: value for other in others for name, value in msgspec.structs.asdict(other).items()}
    return FieldMeta(text=text, **fields)


def described(struct: Struct) -> Struct:
    """Decorator that adds an `Attributes:` section to the struct's docstring, so that `help()` shows every field."""
    lines = [
        f"    {name}: {meta.text}" + (f"; None is {meta.unset}" if meta.unset else "")
        for name, meta in field_meta(struct).items()
    ]
    struct.__doc__ = "\n".join([(struct.__doc__ or "").rstrip(), "", "    Attributes:", *(f"    {line}" for line in lines)])
    return struct


def invalid_fields(struct: msgspec.Struct) -> Iterator[tuple[str, str]]:
    """Yields each field whose value has the wrong type or is out of bounds, with a message that describes valid values."""
    for name, meta in field_meta(type(struct)).items():
        value = getattr(struct, name)
        plain = get_args(_hints(type(struct))[name])[0]
        try:
            msgspec.convert(value, plain)
        except msgspec.ValidationError:
            is_valid = False
        else:
            is_valid = meta.takes(value)
        if not is_valid:
            yield name, f"{name} is {truncate(repr(value))}; it must be {_expected(plain, meta)}"


@cache
def _hints(struct: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Returns the annotations of the fields. Cached, since each command-line setting reads one of them."""
    hints = get_type_hints(struct, include_extras=True)
    return {name: hints[name] for name in struct.__struct_fields__ if get_origin(hints[name]) is Annotated}


def _expected(hint: Any, meta: FieldMeta) -> str:  # noqa: ANN401 (an annotation)
    """Returns a description of the valid values."""
    if get_origin(hint) in (Union, UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        expected = " or ".join([_expected(kind, meta) for kind in kinds])
        return f"{expected}, or None" if type(None) in get_args(hint) else expected
    if get_origin(hint) is Literal:
        *words, last = get_args(hint)
        return f"{', '.join(words)} or {last}"
    if get_origin(hint) is tuple and get_args(hint)[-1] is not ...:
        return "a pair of " + " and ".join(_expected(part, meta) for part in get_args(hint))
    if get_origin(hint) is tuple:
        return f"a list, each element of which is {_expected(get_args(hint)[0], meta)}"
    names: dict[Any, str] = {int: "an integer", float: "a finite number", bool: "True or False", str: "a text"}
    return names.get(hint, str(hint)) + _bounds(meta)


def _bounds(meta: FieldMeta) -> str:
    if meta.above > -math.inf:
        return f" above {_number(meta.above)}"
    if meta.low == -math.inf:
        return "" if meta.high == math.inf else f", {_number(meta.high)} or less"
    low = _number(meta.low)
    return f", {low} or more" if meta.high == math.inf else f" from {low} to {_number(meta.high)}"


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else str(value)
