"""The parts of a JSON schema that `response_fields` selects."""

from collections.abc import Mapping, Sequence

import msgspec

SCHEMA = "generation_settings/json_schema/"
"""Prefix of paths into a schema."""

_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

Below = Sequence[tuple[str, Sequence[str]]]
"""Paths with their remaining components."""


class SchemaParts:
    """Extracts the parts of schemas at given paths.

    Each schema is parsed once, however many branches use it. Parsing one of 256 KiB with a hundred nested objects takes a tenth
    of a second, so it is done on a worker thread when a generation begins. Only the needed objects are decoded, so that the
    thread releases the GIL after about a millisecond.
    """

    def __init__(self, paths: Sequence[str] = ()) -> None:
        below = dict.fromkeys(path for path in paths if path.startswith(SCHEMA))
        self._below: Below = [(path, path.removeprefix(SCHEMA).split("/")) for path in below]
        self._found: dict[bytes, Mapping[str, msgspec.Raw]] = {}

    def of(self, schema: str | msgspec.Raw) -> Mapping[str, msgspec.Raw]:
        """Returns the parts of a schema by path. Paths that are not in the schema are omitted."""
        if not self._below:
            return {}
        text = schema.encode() if isinstance(schema, str) else bytes(schema)
        if (found := self._found.get(text)) is None:
            found = self._found[text] = dict(_found(msgspec.Raw(text), self._below))
        return found


def _found(value: msgspec.Raw, below: Below) -> list[tuple[str, msgspec.Raw]]:
    """Returns the parts of a value by path. Common prefixes of paths are decoded once."""
    try:
        fields = _object(value)
    except msgspec.ValidationError:  # The value is not an object.
        return []
    by_name: dict[str, list[tuple[str, Sequence[str]]]] = {}
    for path, (name, *rest) in below:
        if name in fields:
            by_name.setdefault(name, []).append((path, rest))
    found = [(path, fields[name]) for name, paths in by_name.items() for path, rest in paths if not rest]
    for name, paths in by_name.items():
        if deeper := [(path, rest) for path, rest in paths if rest]:
            found += _found(fields[name], deeper)
    return found
