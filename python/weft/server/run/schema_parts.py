"""The parts of a schema that `response_fields` asks for."""

from collections.abc import Mapping, Sequence

import msgspec

__all__ = ["SchemaParts"]

SCHEMA = "generation_settings/json_schema/"
"""What paths into a schema begin with."""

_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

Below = Sequence[tuple[str, Sequence[str]]]
"""Paths, each with the steps of it that are still to be taken."""


class SchemaParts:
    """The parts of schemas at some paths.

    Each schema is read once, however many branches are held to it. To read one of 256 KiB, a hundred objects in each other, takes
    a tenth of a second: who begins a generation has its schemas read beside the event loop. Objects are made of no more of a
    schema than must be, so that the loop gets the interpreter after a millisecond.
    """

    def __init__(self, paths: Sequence[str] = ()) -> None:
        below = dict.fromkeys(path for path in paths if path.startswith(SCHEMA))
        self._below: Below = [(path, path.removeprefix(SCHEMA).split("/")) for path in below]
        self._found: dict[bytes, Mapping[str, msgspec.Raw]] = {}

    def of(self, schema: str | msgspec.Raw) -> Mapping[str, msgspec.Raw]:
        """What a schema has at the paths, by these; nothing for those that lead to nothing in it."""
        if not self._below:
            return {}
        text = schema.encode() if isinstance(schema, str) else bytes(schema)
        if (found := self._found.get(text)) is None:
            found = self._found[text] = dict(_found(msgspec.Raw(text), self._below))
        return found


def _found(value: msgspec.Raw, below: Below) -> list[tuple[str, msgspec.Raw]]:
    """What a value has at each path. Whatever several paths lead through is read once for all of them."""
    try:
        fields = _object(value)
    except msgspec.ValidationError:  # No object.
        return []
    by_name: dict[str, list[tuple[str, Sequence[str]]]] = {}
    for path, (name, *rest) in below:
        if name in fields:
            by_name.setdefault(name, []).append((path, rest))
    found = [(path, fields[name]) for name, there in by_name.items() for path, rest in there if not rest]
    for name, there in by_name.items():
        if deeper := [(path, rest) for path, rest in there if rest]:
            found += _found(fields[name], deeper)
    return found
