"""UnsupportedUnless fields: each is refused by name unless its value disables the feature."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import msgspec

from weft import InvalidRequestError

Accepts = Callable[[Any], bool]
"""Returns whether a value disables the feature."""


class UnsupportedUnless(NamedTuple):
    """Marks a schema's field as unsupported, in `Annotated`. A class that supports an inherited one declares it again without."""

    accepts: Accepts


EMPTY = UnsupportedUnless(lambda value: not value)


TEXT_ONLY: Mapping[str, Accepts] = {
    "explain_cache": lambda value: value is False,
    "n_probs": lambda value: value == 0,
    "post_sampling_probs": lambda value: value is False,
    "response_fields": lambda value: not value,
    "return_progress": lambda value: value is False,
    "return_tokens": lambda value: value is False,
    "timings_per_token": lambda value: value is False,
}
"""Fields that have no effect on events which consist of text."""


def only_fields(**neutral: tuple[Any, ...]) -> UnsupportedUnless:
    """Accepts objects whose fields all have one of these values, or none."""
    return UnsupportedUnless(
        lambda given: (
            isinstance(given, dict) and all(value is None or value in neutral.get(name, ()) for name, value in given.items())
        )
    )


@cache
def unsupported_fields(schema: type[msgspec.Struct]) -> list[tuple[str, str, UnsupportedUnless]]:
    """Returns the unsupported fields of a schema with their names in JSON."""
    hints = get_type_hints(schema, include_extras=True)
    return [
        (field.name, field.encode_name, mark)
        for field in msgspec.structs.fields(schema)
        for mark in getattr(hints[field.name], "__metadata__", ())
        if isinstance(mark, UnsupportedUnless)
    ]


def first_unsupported(body: msgspec.Struct) -> str | None:
    """Returns the name in JSON of the first field that enables an unsupported feature, or None."""
    for name, sent_as, mark in unsupported_fields(type(body)):
        value = getattr(body, name)
        if value is not None and not mark.accepts(value):
            return sent_as
    return None


def refuse_unsupported(body: msgspec.Struct) -> None:
    """Raises [`InvalidRequestError`] for the first field that enables an unsupported feature."""
    if (name := first_unsupported(body)) is not None:
        raise _refusal(name)


def refuse(body: msgspec.Struct, table: Mapping[str, Accepts]) -> None:
    """Raises [`InvalidRequestError`] for the first field of a table whose value is not neutral. Missing fields are skipped."""
    for name, is_neutral in table.items():
        value = getattr(body, name, None)
        if value is not None and not is_neutral(value):
            raise _refusal(name)


def _refusal(name: str) -> InvalidRequestError:
    return InvalidRequestError(name, f"{name} is not supported; leave it out")
