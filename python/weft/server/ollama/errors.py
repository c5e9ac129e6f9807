"""Errors in Ollama's format: `{"error": "message"}`."""

from collections.abc import Mapping
from typing import Any

from weft.server.errors import ErrorObject, describe, errors_with, message_with_param
from weft.server.ollama.schemas import OllamaError
from weft.server.streaming import ndjson

ERRORS = errors_with(OllamaError)
"""Errors that any route may return, for the OpenAPI document."""


def shape(described: ErrorObject) -> Mapping[str, Any]:
    """Returns the fields of an error body."""
    return {"error": message_with_param(described)}


def failure(error: Exception) -> bytes:
    """Returns the last line of a failed stream."""
    return ndjson.line(shape(describe(error)))
