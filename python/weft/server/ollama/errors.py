"""Errors in Ollama's format: `{"error": "message"}`."""

from collections.abc import Mapping
from typing import Any

import msgspec
from litestar.openapi.datastructures import ResponseSpec

from weft.server.errors import ErrorObject, describe, message_with_param
from weft.server.ollama.schemas import OllamaError

__all__ = ["ERRORS", "failure", "shape"]


def _documented(status: int, description: str) -> dict[int, ResponseSpec]:
    return {status: ResponseSpec(OllamaError, generate_examples=False, description=description)}


ERRORS = {
    **_documented(400, "The request is wrong; the message names the field."),
    **_documented(403, "The route does not answer web pages of other origins."),
    **_documented(408, "The body did not arrive in its time."),
    **_documented(413, "The body is larger than it may be."),
    **_documented(415, "A web page of another origin sent a body that is not `application/json`."),
    **_documented(421, "The server does not answer to this `Host`."),
    **_documented(429, "Too many requests wait; try again after the seconds in `Retry-After`."),
    **_documented(501, "The server, or its model, cannot do that."),
    **_documented(503, "The model is being loaded, or the server is stopping."),
}
"""Errors that any route may return, for the OpenAPI document."""


def shape(described: ErrorObject) -> Mapping[str, Any]:
    """Returns the fields of an error body."""
    return {"error": message_with_param(described)}


def failure(error: Exception) -> bytes:
    """Returns the last line of a failed stream."""
    return msgspec.json.encode(shape(describe(error))) + b"\n"
