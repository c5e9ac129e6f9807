"""`response_fields`: what of a finished answer is wanted, by paths like `generation_settings/n_predict`."""

from collections.abc import Sequence
from typing import Any

import msgspec

from weft.server.request_fields import CompletionFields
from weft.server.response_fields.result import CompletionResult

__all__ = ["paths", "projected"]


def paths(data: CompletionFields) -> Sequence[str]:
    """The paths of the fields that a finished answer is to hold; none is all of it."""
    fields = data.response_fields or []
    return [fields] if isinstance(fields, str) else fields


def projected(result: CompletionResult, paths: Sequence[str]) -> Any:  # noqa: ANN401 (a result, or parts of one)
    """The parts of a result at some paths, each under its path; what is not there is left out."""
    if not paths:
        return result
    # The settings hold a schema as JSON text: only what was written can be looked into.
    everything = msgspec.json.decode(msgspec.json.encode(result))
    parts = {path: _part(everything, path.split("/")) for path in paths}
    return {path: part for path, part in parts.items() if part is not msgspec.UNSET}


def _part(value: Any, keys: Sequence[str]) -> Any:  # noqa: ANN401 (any JSON)
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return msgspec.UNSET
        value = value[key]
    return value
