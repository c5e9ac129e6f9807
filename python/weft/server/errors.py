"""Maps exceptions to HTTP errors: one table from exception to status, and one body format.

The format is OpenAI's, `{"error": {"code", "message", "type", "param"}}`, with llama-server's values of `type`. APIs with another
format register it for their paths.
"""

import logging
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi.datastructures import ResponseSpec

from weft.errors import (
    AnswerTooLargeError,
    ContextOverflowError,
    DecodeError,
    DocumentConflictError,
    DocumentFileError,
    DocumentNotFoundError,
    DocumentsBusyError,
    DocumentsFullError,
    EngineStoppedError,
    InvalidConfigError,
    InvalidRequestError,
    ModelLoadError,
    NotSupportedError,
    PinBudgetError,
    PrefixFileError,
    PrefixSaveError,
    QueueFullError,
    SlowConsumerError,
    WorkCancelledError,
)
from weft.fields.excerpt import MAX_EXCERPT, truncate
from weft.fields.validation import with_json_types
from weft.server.refusals import Reason
from weft.server.request_line import current_line

logger = logging.getLogger(__name__)


MAX_MESSAGE = 2000
"""Maximum length of an error message, in characters. Quoted input is truncated separately, to less."""


class ErrorObject(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An error. `param` names the invalid field; both counts belong to `exceed_context_size_error`."""

    code: int
    message: str
    type: str
    param: str | None = None
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class ErrorBody(msgspec.Struct):
    """Body of every error response."""

    error: ErrorObject


RETRY_AFTER_S = 1
"""`Retry-After` when the queue is full or the model is not available, in seconds. The waiting time cannot be predicted; one
second is the header's smallest value that keeps clients from retrying in a tight loop."""


_ANYWHERE = {
    403: "The route rejects web pages of other origins.",
    408: "The body did not arrive in time.",
    413: "The body is larger than `--max-body`.",
    415: "A web page of another origin sent a body that is not `application/json`.",
    421: "The `Host` is not allowed.",
    429: "The server is busy; retry after the seconds in `Retry-After`.",
    503: "The model is being loaded, the server is stopping, or another server uses its file of documents.",
}
"""Errors that any route may return, by status."""


def _documented(descriptions: Mapping[int, str], body: type[msgspec.Struct] = ErrorBody) -> dict[int, ResponseSpec]:
    return {
        status: ResponseSpec(body, generate_examples=False, description=description)
        for status, description in sorted(descriptions.items())
    }


ERRORS = _documented(_ANYWHERE | {400: "The request is invalid; `param` names the field."})
"""Errors that any route may return, for the OpenAPI document."""

NOT_FOUND = _documented({404: "The item does not exist."})
CONFLICT = _documented({409: "The request conflicts with others or with the pinned prefixes."})
_UNSUPPORTED = {501: "The model or the flags of the server do not support this."}
NOT_SUPPORTED = _documented(_UNSUPPORTED)
FULL = _documented({507: "A quota of documents is used up, or the disk is full."})


def errors_with(body: type[msgspec.Struct]) -> dict[int, ResponseSpec]:
    """Returns the errors that any route of an API with its own body of errors may return, for the OpenAPI document."""
    return _documented(_ANYWHERE | {400: "The request is invalid; the message names the field."} | _UNSUPPORTED, body)


class ServerError(Exception):
    """An error that the server itself causes; its classes set how it is answered."""

    status: ClassVar[int]
    reason: ClassVar[Reason | None]
    """Reason that `/metrics` counts. None for failures that are not refusals."""
    param: ClassVar[str | None]
    """Field of the request at fault, if it is one."""
    extra_fields: Mapping[str, Any] = MappingProxyType({})
    """Fields of the response beside the error."""

    def __init_subclass__(cls, status: int, reason: Reason | None, param: str | None = None) -> None:
        cls.status, cls.reason, cls.param = status, reason, param


class StillLoadingError(ServerError, status=503, reason=Reason.NOT_READY):
    """The model is still being loaded or downloaded. The response reports the progress in additional fields."""

    def __init__(self, extra_fields: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.extra_fields = extra_fields
        super().__init__("Loading model")


class SlotsBusyError(ServerError, status=503, reason=Reason.SLOTS_BUSY):
    """All slots are busy, and the client asked for an error in that case. The response adds the fields of `health`."""

    def __init__(self, health: msgspec.Struct | None = None) -> None:
        fields = {} if health is None else msgspec.structs.asdict(health)
        self.extra_fields = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
        super().__init__("no slot available")


class InvalidKeyError(ServerError, status=401, reason=Reason.NO_KEY):
    """The request has no API key, or an unknown one."""

    def __init__(self) -> None:
        super().__init__("Invalid API Key")


class CrossOriginError(ServerError, status=403, reason=Reason.CROSS_ORIGIN):
    """A page of an untrusted origin requested a route for pages of this server, named origins and clients other than browsers."""

    def __init__(self, what: str, origin: str | None) -> None:
        page = "a page of another origin" if origin is None else f"a page of {origin}"
        super().__init__(
            f"{page} may not use {what}, which is restricted to pages of this server, origins listed in --cors-origins"
            f" ('*' lists none) and clients other than browsers; {_remedy(origin)}"
        )


def _remedy(origin: str | None) -> str:
    if origin == "null":
        return "a page without an origin, such as a file or a sandboxed frame, cannot be allowed: serve it over HTTP"
    return f"start the server with --cors-origins {origin or 'ORIGIN'}"


class CrossOriginBodyError(ServerError, status=415, reason=Reason.CROSS_ORIGIN):
    """A page of another origin sent a body in a way that needs no preflight request."""

    def __init__(self, content_type: str) -> None:
        given = f"Content-Type is {truncate(content_type)}" if content_type else "there is no Content-Type"
        super().__init__(f"{given}; a page of another origin must send JSON with Content-Type: application/json")


class JsonRequiredError(ServerError, status=415, reason=Reason.INVALID_BODY):
    """A route that changes documents received a body of another type than JSON.

    Browsers send such bodies of any page's form without asking the server first.
    """

    def __init__(self, content_type: str) -> None:
        super().__init__(f"the Content-Type must be application/json (got {truncate(content_type)!r})")


class MisdirectedRequestError(ServerError, status=421, reason=Reason.WRONG_HOST):
    """The request's `Host` is not a name of this server. An attacker may have made the name resolve here (DNS rebinding)."""

    def __init__(self, host: str) -> None:
        name = truncate(host.strip().rpartition(":")[0] or host.strip()) or "NAME"
        super().__init__(
            f"the host {truncate(host) or '(empty)'} is not allowed; use 127.0.0.1 or localhost,"
            f" or start the server with --allowed-hosts {name}"
        )


class BodyTimeoutError(ServerError, status=408, reason=Reason.SLOW_BODY):
    """The client stopped sending the body, or sends it too slowly."""

    @classmethod
    def silent(cls, timeout_s: float) -> Self:
        """Returns the error for a body of which nothing arrived for `timeout_s` seconds."""
        return cls(f"no more of the body arrived for {timeout_s:g} s")

    @classmethod
    def slow(cls, bytes_per_s: float, saved_s: float) -> Self:
        """Returns the error for a body that arrived more slowly than `bytes_per_s`, or paused longer than `saved_s` seconds."""
        least = f"at least {bytes_per_s:g} bytes a second"
        return cls(f"the body arrives too slowly; send {least}, and pause for {saved_s:g} s at most")


class ClientDisconnectedError(ServerError, status=499, reason=Reason.CLIENT_LEFT):
    """The client disconnected before the response started. The message is never sent."""

    def __init__(self) -> None:
        super().__init__("the client disconnected")


class TextsWaitingError(ServerError, status=429, reason=Reason.TEXTS_WAITING):
    """Too much work of one kind is queued: texts, cache requests or slot files. The client should retry later."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}, which is the limit; try again later")


class AnswersTooLargeError(ServerError, status=429, reason=Reason.ANSWER_TOO_LARGE, param="stream"):
    """Responses that are not streamed exceed their common memory limit."""

    def __init__(self, n_bytes: int) -> None:
        super().__init__(
            f"responses that are not streamed use {n_bytes} bytes, which is the limit; set stream, or try again later"
        )


class BodiesTooLargeError(ServerError, status=429, reason=Reason.TOO_MANY_BODIES):
    """Bodies that are being received or wait to be decoded exceed their common memory limit."""

    def __init__(self, n_bytes: int) -> None:
        super().__init__(f"request bodies that are being received use {n_bytes} bytes, which is the limit; try again later")


class NoSuchItemError(ServerError, status=404, reason=Reason.NO_ROUTE):
    """The requested item does not exist or belongs to another owner."""


class ConversationBusyError(ServerError, status=409, reason=Reason.SLOTS_BUSY):
    """Another response is being generated for the same conversation."""

    def __init__(self, name: str) -> None:
        super().__init__(f"another response is being generated for the conversation {name}; try again when it has ended")


class OffsetLostError(ServerError, status=400, reason=Reason.INVALID_FIELD, param="from"):
    """The requested offset of a stream has been dropped from its buffer."""

    def __init__(self, offset: int, n_dropped: int) -> None:
        super().__init__(f"the stream's byte {offset} is no longer stored; the first stored byte is {n_dropped}")


class UnreadStreamError(ServerError, status=408, reason=Reason.CLIENT_LEFT):
    """A stream was cancelled because no client read it for the grace period."""

    def __init__(self, grace_s: float) -> None:
        super().__init__(f"the stream was ended because no client read it for {grace_s:g} s")


class StreamEndedError(ServerError, status=409, reason=Reason.CLIENT_LEFT):
    """A stream was cancelled by its client, or replaced by a stream of the same name."""

    def __init__(self) -> None:
        super().__init__("the stream was ended, by a request to end it or by another stream with its name")


class StreamsFullError(ServerError, status=429, reason=Reason.QUEUE_FULL):
    """The number of resumable streams has reached its limit."""

    def __init__(self, n_streams: int) -> None:
        super().__init__(f"{n_streams} resumable streams are running, which is the limit; try again later")


class SlotFileError(ServerError, status=500, reason=None):
    """The contents of a slot could not be written to a file."""

    def __init__(self, filename: str, error: OSError) -> None:
        super().__init__(f"cannot save {filename}: {error.strerror or error}")


def _overflow(error: ContextOverflowError) -> dict[str, Any]:
    # Clients match llama-server's wording.
    message = (
        f"request ({error.length}) exceeds the available context size ({error.n_ctx} tokens);"
        " shorten the prompt, or start the server with a larger --ctx-size or a smaller --parallel"
    )
    counts = {"n_prompt_tokens": error.n_prompt, "n_ctx": error.n_ctx}
    return {"message": message, "type": "exceed_context_size_error", **counts}


def _too_large(error: AnswerTooLargeError) -> dict[str, Any]:
    message = f"the answer exceeds {error.max_bytes} bytes; set stream, or request fewer tokens, completions or log-probabilities"
    return {"message": message, "param": "stream"}


class _Row(NamedTuple):
    status: int
    reason: Reason | None
    more: Callable[[Any], dict[str, Any]] = lambda _: {}
    """Additional fields of the error, or others than by its status."""


_TABLE: dict[type[Exception], _Row] = {
    ContextOverflowError: _Row(400, Reason.CONTEXT_TOO_LONG, _overflow),
    InvalidRequestError: _Row(400, Reason.INVALID_FIELD, lambda error: {"param": error.param}),
    PrefixFileError: _Row(400, Reason.INVALID_FIELD),
    AnswerTooLargeError: _Row(400, Reason.ANSWER_TOO_LARGE, _too_large),
    PinBudgetError: _Row(409, Reason.PINS_FULL),
    DocumentNotFoundError: _Row(404, Reason.NO_ROUTE),
    DocumentConflictError: _Row(409, Reason.CONFLICT),
    DocumentsFullError: _Row(507, Reason.DOCUMENTS_FULL),
    DocumentFileError: _Row(500, None),
    DocumentsBusyError: _Row(503, Reason.CONFLICT),
    QueueFullError: _Row(429, Reason.QUEUE_FULL),
    WorkCancelledError: _Row(499, Reason.CLIENT_LEFT),
    NotSupportedError: _Row(501, Reason.NOT_SUPPORTED),
    EngineStoppedError: _Row(503, Reason.NOT_READY),
    ModelLoadError: _Row(500, None),
    InvalidConfigError: _Row(500, None),
    SlowConsumerError: _Row(500, Reason.SLOW_READER),
    PrefixSaveError: _Row(500, None),
    DecodeError: _Row(500, None),
}
"""The package's errors. The first class of an error's ancestors that has a row applies."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    429: "rate_limit_error",
    499: "client_closed_request",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
    507: "insufficient_storage_error",
}
"""Values of `type` by status, with llama-server's words; `invalid_request_error` for others."""

_HEADERS = {
    401: {"www-authenticate": "Bearer"},
    429: {"retry-after": str(RETRY_AFTER_S)},
    # Official clients retry a status of 500 or above unless this header forbids it.
    501: {"x-should-retry": "false"},
    503: {"retry-after": str(RETRY_AFTER_S)},
    507: {"x-should-retry": "false"},
}
"""Headers of error responses, by status."""

_REASONS = {404: Reason.NO_ROUTE, 405: Reason.NO_ROUTE, 413: Reason.BODY_TOO_LARGE}
"""Reasons of Litestar's exceptions, by status; `INVALID_BODY` for others."""


def describe(error: Exception) -> ErrorObject:
    """Returns the error that a client receives for an exception.

    Unlisted exceptions are bugs: they are logged and reported without detail.
    """
    described = _describe(error)
    described.message = truncate(described.message, MAX_MESSAGE)
    if described.param is not None:
        described.param = truncate(described.param)
    return described


def _describe(error: Exception) -> ErrorObject:
    if isinstance(error, ValidationException):
        return _describe_field(error)
    if isinstance(error, ServerError):
        return _object(error.status, error.reason, str(error), param=error.param)
    if (row := next((_TABLE[kind] for kind in type(error).__mro__ if kind in _TABLE), None)) is not None:
        return _object(row.status, row.reason, **{"message": str(error)} | row.more(error))
    if isinstance(error, HTTPException) and error.status_code < 500:
        return _object(error.status_code, _REASONS.get(error.status_code, Reason.INVALID_BODY), error.detail)
    logger.error("a request failed", exc_info=error)
    return _object(500, None, "internal error")


def _object(status: int, reason: Reason | None, message: str, **more: Any) -> ErrorObject:  # noqa: ANN401 (other fields)
    """Returns an error, and counts the reason of a refusal."""
    if reason is not None and (line := current_line()) is not None:
        line.refuse(reason)
    return ErrorObject(**{"type": _TYPES.get(status, "invalid_request_error"), **more}, code=status, message=message)


def _describe_field(error: ValidationException) -> ErrorObject:
    """Describes the first field of a body or query that does not match its schema."""
    first = error.extra[0] if isinstance(error.extra, list) and error.extra else {}
    location, reason = first.get("key", ""), str(first.get("message"))
    is_whole_body = location in ("", "data")
    if is_whole_body and (unknown := UNKNOWN_FIELD.search(reason)) is not None:
        field = truncate(unknown[1], MAX_EXCERPT // 2)  # The name appears twice in the error.
        return _object(400, Reason.INVALID_FIELD, f"{field}: unknown field", param=field)
    reason = with_json_types(reason)
    if is_whole_body:
        if (entry := IN_A_LIST.search(str(error.__cause__))) is None:
            kind = "list" if reason.startswith("Expected `array") else "object"
            message = "the body is empty; it must be JSON" if reason == NO_BODY else f"the body must be a JSON {kind}"
            return _object(400, Reason.INVALID_BODY, message)
        location = entry[1]
    # The location may be inside the field: `stop[0]`, `stream_options.include_usage`.
    field = INDEX.sub("", location).partition("[")[0].partition(".")[0]
    location = location.replace("[...]", ".*")
    return _object(400, Reason.INVALID_FIELD, f"{truncate(location)}: {truncate(reason)}", param=field or None)


UNKNOWN_FIELD = re.compile(r"unknown field `(.*)`")
"""msgspec's message about a field that the schema lacks."""

IN_A_LIST = re.compile(r" - at `\$\.data(\[.*)`$")
"""Location in a body that is a list, in msgspec's message. Litestar ignores it."""

INDEX = re.compile(r"^\[\d+\]\.?")
"""Index at the beginning of such a location."""

NO_BODY = "'data'"
"""Litestar's message about a missing body."""

Shape = Callable[[ErrorObject], Mapping[str, Any]]
"""Encodes an error in the format of one API: returns the fields of the body."""


def message_with_param(described: ErrorObject) -> str:
    """Returns the message with the invalid field's name in it, for formats without a `param`."""
    if described.param is None or described.param in described.message:
        return described.message
    return f"{described.param}: {described.message}"


class ErrorResponses:
    """Builds responses to requests that fail before a response has started."""

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        """Takes the formats of APIs that have their own, by path prefix such as `/api`."""
        self._shapes = shapes

    def response(
        self, request: Request[Any, Any, Any], error: Exception, also: Mapping[str, Any] = MappingProxyType({})
    ) -> Response[bytes]:
        """Returns the error response; the fields of `also` are added to the body."""
        path = request.scope["path"]
        shapes = (shape for prefix, shape in self._shapes.items() if f"{path}/".startswith(f"{prefix}/"))
        described = describe(error)
        headers = error.headers if isinstance(error, HTTPException) else _HEADERS.get(described.code)
        extra_fields = error.extra_fields if isinstance(error, ServerError) else {}
        body = msgspec.json.encode({**also, **next(shapes, lambda error: {"error": error})(described), **extra_fields})
        return Response(body, status_code=described.code, media_type="application/json", headers=headers)
