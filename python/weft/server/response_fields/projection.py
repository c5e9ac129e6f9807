"""The fields of a finished answer that `response_fields` asks for."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from weft.server.response_fields.result import CompletionResult
from weft.server.run.generation import Generation

__all__ = ["projected"]


def projected(result: CompletionResult, generation: Generation) -> Any:  # noqa: ANN401 (a result, or parts of one)
    """The parts of a result at the paths that were asked for, each under its path; what is not there is left out."""
    paths = generation.asked.response_fields
    if not paths:
        return result
    schema = result.generation_settings.json_schema
    of_schema = {} if isinstance(schema, msgspec.UnsetType) else generation.schema_parts.of(schema)
    parts = {path: of_schema[path] if path in of_schema else _part(result, path.split("/")) for path in paths}
    return {path: part for path, part in parts.items() if part is not msgspec.UNSET}


def _part(value: Any, keys: Sequence[str]) -> Any:  # noqa: ANN401 (any JSON)
    for key in keys:
        if isinstance(value, msgspec.Struct):
            value = getattr(value, _fields(type(value)).get(key, ""), msgspec.UNSET)
        elif isinstance(value, dict):
            value = value.get(key, msgspec.UNSET)
        else:  # What is written already is a list, where nothing is found, or a schema.
            return msgspec.UNSET
    return value


@cache
def _fields(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The fields of a struct by their names in JSON."""
    return {field.encode_name: field.name for field in msgspec.structs.fields(struct)}
