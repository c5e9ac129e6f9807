"""Selection of response parts by `response_fields`."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from weft.server.inference.generation import Generation
from weft.server.response_fields.result import CompletionResult


def projected(result: CompletionResult, generation: Generation) -> Any:  # noqa: ANN401 (a result, or parts of one)
    """Returns the parts of a result by requested path, or the whole result if there are no paths. Missing parts are omitted."""
    paths = generation.submission.response_fields
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
        else:  # Encoded lists cannot be indexed, and schemas are handled separately.
            return msgspec.UNSET
    return value


@cache
def _fields(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Returns the attributes of a struct by their JSON names."""
    return {field.encode_name: field.name for field in msgspec.structs.fields(struct)}
