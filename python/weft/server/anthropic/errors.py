"""Errors in Anthropic's format: `{"type": "error", "error": {"type", "message"}}`, with its values of `type`."""

from collections.abc import Mapping
from typing import Any

from weft.server.anthropic.schemas import MessagesError, MessagesErrorBody
from weft.server.errors import ErrorObject, errors_with, message_with_param

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    501: "invalid_request_error",
    503: "overloaded_error",
}
"""Error types by status. Others are `invalid_request_error` below 500, else `api_error`."""


ERRORS = errors_with(MessagesErrorBody)
"""Errors that any route may return, for the OpenAPI document."""


def _message(described: ErrorObject) -> str:
    if described.n_prompt_tokens is None:
        return message_with_param(described)
    # Clients match this wording to shorten their conversation.
    return f"prompt is too long: {described.n_prompt_tokens} tokens > {described.n_ctx} maximum: {described.message}"


def shape(described: ErrorObject) -> Mapping[str, Any]:
    """Returns the fields of an error body."""
    other = "api_error" if described.code >= 500 else "invalid_request_error"
    return {"type": "error", "error": MessagesError(_TYPES.get(described.code, other), _message(described))}
