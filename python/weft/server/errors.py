"""What went wrong, as HTTP says it: one table from exception to status, and one shape of body.

The shape is OpenAI's, `{"error": {"code", "message", "type", "param"}}`, with llama-server's words for `type`.
"""

import logging
from collections.abc import Callable
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi.datastructures import ResponseSpec

from weft.errors import (
    ContextOverflow,
    DecodeError,
    EngineStopped,
    InvalidConfig,
    InvalidRequest,
    ModelLoadError,
    PinsFull,
    PrefixFileError,
    PrefixSaveError,
    QueueFull,
    SlowReader,
)

__all__ = [
    "CONFLICT",
    "ERRORS",
    "NOT_FOUND",
    "NOT_SUPPORTED",
    "BodyTimeoutError",
    "ClientLeftError",
    "ErrorBody",
    "ErrorObject",
    "InvalidKeyError",
    "NoSuchPrefixError",
    "NotSupportedError",
    "SlotFileError",
    "SlotsBusyError",
    "StillLoadingError",
    "TextsWaitingError",
    "describe",
    "error_response",
]

logger = logging.getLogger(__name__)


class ErrorObject(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One error. `param` names the field that is wrong; the two counts come with `exceed_context_size_error`."""

    code: int
    message: str
    type: str
    param: str | None = None
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class ErrorBody(msgspec.Struct):
    """The body of every answer that is an error."""

    error: ErrorObject


RETRY_AFTER_S = 1
"""When a client may try again that found the queue full. How long the queue will be is not known; the least that the header can
say besides "at once" keeps a client from asking in a loop, and costs one that could be served earlier little."""


def _documented(status: int, description: str) -> dict[int, ResponseSpec]:
    return {status: ResponseSpec(ErrorBody, generate_examples=False, description=description)}


ERRORS = {
    **_documented(400, "The request is wrong; `param` names the field."),
    **_documented(429, "Too many requests wait; try again after the seconds in `Retry-After`."),
    **_documented(503, "The model is being loaded, or the server is stopping."),
}
"""What every route may answer besides, for the OpenAPI document."""

NOT_FOUND = _documented(404, "There is no such thing.")
CONFLICT = _documented(409, "There is no room for it, until something else is given up.")
NOT_SUPPORTED = _documented(501, "The server was started without the flag for this.")


class StillLoadingError(Exception):
    """The model is still being loaded."""

    def __init__(self) -> None:
        super().__init__("Loading model")


class SlotsBusyError(Exception):
    """Every slot is busy, and the client asked to be told. The fields of `health` stand beside the error."""

    def __init__(self, health: msgspec.Struct | None = None) -> None:
        fields = {} if health is None else msgspec.structs.asdict(health)
        self.beside = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
        super().__init__("no slot available")


class InvalidKeyError(Exception):
    """The request shows no key, or none that opens the server."""

    def __init__(self) -> None:
        super().__init__("Invalid API Key")


class BodyTimeoutError(Exception):
    """The client has stopped sending before the body's end."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"nothing more of the body has arrived for {timeout_s:g} s")


class ClientLeftError(Exception):
    """The client has left before its answer was begun; nobody reads what this says."""

    def __init__(self) -> None:
        super().__init__("the client has left")


class TextsWaitingError(Exception):
    """As many texts wait to be read as may wait. Try again later."""

    def __init__(self, n_waiting: int) -> None:
        super().__init__(f"texts of {n_waiting} characters and tokens are waiting, which is the limit; try again later")


class NotSupportedError(Exception):
    """The server was started without the flag that this needs."""


class NoSuchPrefixError(Exception):
    """A prefix that is not pinned was to be unpinned."""

    def __init__(self, prefix_id: int) -> None:
        super().__init__(f"no pinned prefix has the id {prefix_id}")


class SlotFileError(Exception):
    """What a slot holds could not be written to its file."""

    def __init__(self, filename: str, error: OSError) -> None:
        super().__init__(f"cannot save {filename}: {error.strerror or error}")


def _overflow(error: ContextOverflow) -> dict[str, Any]:
    # Clients look for llama-server's words.
    message = (
        f"request ({error.length}) exceeds the available context size ({error.n_ctx} tokens);"
        " shorten the prompt, or start the server with a larger --ctx-size or a smaller --parallel"
    )
    return {"message": message, "n_prompt_tokens": error.n_prompt, "n_ctx": error.n_ctx}


def _param(error: InvalidRequest) -> dict[str, Any]:
    return {"param": error.param}


# Exception → status, type, and what else the error says. The first row whose class fits wins.
_TABLE: list[tuple[type[Exception], int, str, Callable[[Any], dict[str, Any]] | None]] = [
    (ContextOverflow, 400, "exceed_context_size_error", _overflow),
    (InvalidRequest, 400, "invalid_request_error", _param),
    (PrefixFileError, 400, "invalid_request_error", None),
    (InvalidKeyError, 401, "authentication_error", None),
    (NoSuchPrefixError, 404, "not_found_error", None),
    (BodyTimeoutError, 408, "timeout_error", None),
    (PinsFull, 409, "conflict_error", None),
    (QueueFull, 429, "rate_limit_error", None),
    (TextsWaitingError, 429, "rate_limit_error", None),
    (ClientLeftError, 499, "client_closed_request", None),
    (NotSupportedError, 501, "not_supported_error", None),
    (StillLoadingError, 503, "unavailable_error", None),
    (SlotsBusyError, 503, "unavailable_error", None),
    (EngineStopped, 503, "unavailable_error", None),
    (ModelLoadError, 500, "server_error", None),
    (InvalidConfig, 500, "server_error", None),
    (SlowReader, 500, "server_error", None),
    (PrefixSaveError, 500, "server_error", None),
    (SlotFileError, 500, "server_error", None),
    (DecodeError, 500, "server_error", None),
]

# What the framework itself raises carries its own status.
_TYPES = {404: "not_found_error", 401: "authentication_error", 403: "permission_error"}


def describe(error: Exception) -> ErrorObject:
    """Says what an exception means to a client. One that is in no row is our bug: it is logged, and said without detail."""
    for kind, status, name, more in _TABLE:
        if isinstance(error, kind):
            told = {"message": str(error)} | (more(error) if more else {})
            return ErrorObject(code=status, type=name, **told)
    if isinstance(error, ValidationException):
        return _describe_field(error)
    if isinstance(error, HTTPException) and error.status_code < 500:
        name = _TYPES.get(error.status_code, "invalid_request_error")
        return ErrorObject(code=error.status_code, message=error.detail, type=name)
    logger.error("a request failed", exc_info=error)
    return ErrorObject(code=500, message="internal error", type="server_error")


def _describe_field(error: ValidationException) -> ErrorObject:
    """Names the first field of a body or query that does not fit its schema."""
    first = error.extra[0] if isinstance(error.extra, list) and error.extra else {}
    place = first.get("key", "")
    if place in ("", "data"):
        return ErrorObject(code=400, message="the body must be a JSON object", type="invalid_request_error")
    # The place may lie inside of the field: `stop[0]`, `stream_options.include_usage`.
    field = place.partition("[")[0].partition(".")[0]
    return ErrorObject(code=400, message=f"{place}: {first.get('message')}", type="invalid_request_error", param=field)


def error_response(_: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """The answer to a request that failed before anything was sent."""
    described = describe(error)
    headers = error.headers if isinstance(error, HTTPException) else None
    if isinstance(error, QueueFull | TextsWaitingError):
        headers = {"retry-after": str(RETRY_AFTER_S)}
    if isinstance(error, InvalidKeyError):
        headers = {"www-authenticate": "Bearer"}
    beside = error.beside if isinstance(error, SlotsBusyError) else {}
    body = msgspec.json.encode({"error": described} | beside)
    return Response(body, status_code=described.code, media_type="application/json", headers=headers)
