"""The fields of a finished answer that `response_fields` asks for."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from weft.server.response_fields.result import CompletionResult

__all__ = ["projected"]


def projected(result: CompletionResult, paths: Sequence[str]) -> Any:  # noqa: ANN401 (a result, or parts of one)
    """The parts of a result at some paths, each under its path; what is not there is left out."""
    if not paths:
        return result
    parts = {path: _part(result, path.split("/")) for path in paths}
    return {path: part for path, part in parts.items() if part is not msgspec.UNSET}


def _part(value: Any, keys: Sequence[str]) -> Any:  # noqa: ANN401 (any JSON)
    for key in keys:
        if isinstance(value, msgspec.Raw):
            # A schema is JSON text; what else is written already is a list, and nothing is found in those.
            value = msgspec.json.decode(value) if memoryview(value)[0] == ord("{") else None
        if isinstance(value, msgspec.Struct):
            value = getattr(value, _fields(type(value)).get(key, ""), msgspec.UNSET)
        elif isinstance(value, dict):
            value = value.get(key, msgspec.UNSET)
        else:
            return msgspec.UNSET
    return value


@cache
def _fields(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The fields of a struct by their names in JSON."""
    return {field.encode_name: field.name for field in msgspec.structs.fields(struct)}
