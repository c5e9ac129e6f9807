"""Maps exceptions to HTTP errors: one table from exception to status, and one body format.

The format is OpenAI's, `{"error": {"code", "message", "type", "param"}}`, with llama-server's values of `type`. APIs with another
format register it for their paths.
"""

import logging
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi.datastructures import ResponseSpec

from weft.errors import (
    AnswerTooLargeError,
    ContextOverflowError,
    DecodeError,
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
"""`Retry-After` when the queue is full, in seconds. The waiting time cannot be predicted; one second is the header's smallest
value that keeps clients from retrying in a tight loop."""


_ANYWHERE = {
    403: "The route does not answer web pages of other origins.",
    408: "The body did not arrive in time.",
    413: "The body is larger than `--max-body`.",
    415: "A web page of another origin sent a body that is not `application/json`.",
    421: "The server does not answer to this `Host`.",
    429: "The server is busy; retry after the seconds in `Retry-After`.",
    503: "The model is being loaded, or the server is stopping.",
}
"""Errors that any route may return, by status."""


def _documented(status: int, description: str, body: type[msgspec.Struct] = ErrorBody) -> dict[int, ResponseSpec]:
    return {status: ResponseSpec(body, generate_examples=False, description=description)}


def _documented_errors(descriptions: Mapping[int, str], body: type[msgspec.Struct] = ErrorBody) -> dict[int, ResponseSpec]:
    documented: dict[int, ResponseSpec] = {}
    for status, description in sorted({**_ANYWHERE, **descriptions}.items()):
        documented |= _documented(status, description, body)
    return documented


def errors_with(body: type[msgspec.Struct]) -> dict[int, ResponseSpec]:
    """Returns the errors that any route of an API with its own body of errors may return, for the OpenAPI document."""
    own = {
        400: "The request is invalid; the message names the field.",
        501: "The model or the flags of the server do not support this.",
    }
    return _documented_errors(own, body)


ERRORS = _documented_errors({400: "The request is invalid; `param` names the field."})
"""Errors that any route may return, for the OpenAPI document."""

NOT_FOUND = _documented(404, "The item does not exist.")
CONFLICT = _documented(409, "The request conflicts with others or with the pinned prefixes.")
NOT_SUPPORTED = _documented(501, "The model or the flags of the server do not support this.")


class StillLoadingError(Exception):
    """The model is still being loaded or downloaded. The response reports the progress in additional fields."""

    def __init__(self, extra_fields: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.extra_fields = extra_fields
        super().__init__("Loading model")


class SlotsBusyError(Exception):
    """All slots are busy, and the client asked for an error in that case. The response adds the fields of `health`."""

    def __init__(self, health: msgspec.Struct | None = None) -> None:
        fields = {} if health is None else msgspec.structs.asdict(health)
        self.extra_fields = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
        super().__init__("no slot available")


class InvalidKeyError(Exception):
    """The request has no API key, or an unknown one."""

    def __init__(self) -> None:
        super().__init__("Invalid API Key")


class CrossOriginError(Exception):
    """A page of an untrusted origin requested a route for pages of this server, named origins and clients other than browsers."""

    def __init__(self, what: str, origin: str | None) -> None:
        page = "a page of another origin" if origin is None else f"a page of {origin}"
        super().__init__(
            f"{page} may not use {what}, which is for pages of this server, origins named in --cors-origins ('*' names none) and"
            f" clients that are not browsers; {_remedy(origin)}"
        )


def _remedy(origin: str | None) -> str:
    if origin == "null":
        return "a page without an origin, such as a file or a sandboxed frame, cannot be named: serve it from an address"
    return f"start the server with --cors-origins {origin or 'ORIGIN'}"


class CrossOriginBodyError(Exception):
    """A page of another origin sent a body in a way that needs no preflight request."""

    def __init__(self, content_type: str) -> None:
        given = f"Content-Type is {truncate(content_type)}" if content_type else "there is no Content-Type"
        super().__init__(f"{given}; a page of another origin must send JSON with Content-Type: application/json")


class MisdirectedRequestError(Exception):
    """The request's `Host` is not a name of this server. An attacker may have made the name resolve here (DNS rebinding)."""

    def __init__(self, host: str) -> None:
        name = truncate(host.strip().rpartition(":")[0] or host.strip()) or "NAME"
        super().__init__(
            f"this server does not answer to the host {truncate(host) or '(empty)'}; use 127.0.0.1 or localhost,"
            f" or start it with --allowed-hosts {name}"
        )


class BodyTimeoutError(Exception):
    """The client stopped sending the body, or sends it too slowly."""

    @classmethod
    def silent(cls, timeout_s: float) -> Self:
        """Returns the error for a body of which nothing arrived for `timeout_s` seconds."""
        return cls(f"nothing more of the body has arrived for {timeout_s:g} s")

    @classmethod
    def slow(cls, bytes_per_s: float, saved_s: float) -> Self:
        """Returns the error for a body that arrived more slowly than `bytes_per_s`, or paused longer than `saved_s` seconds."""
        least = f"at least {bytes_per_s:g} bytes a second"
        return cls(f"the body arrives too slowly; send {least}, and pause for {saved_s:g} s at most")


class ClientDisconnectedError(Exception):
    """The client disconnected before the response started. The message is never sent."""

    def __init__(self) -> None:
        super().__init__("the client has left")


class TextsWaitingError(Exception):
    """Too much work of one kind is queued: texts, cache requests or slot files. The client should retry later."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}, which is the limit; try again later")


class AnswersTooLargeError(Exception):
    """Responses that are not streamed exceed their common memory limit."""

    def __init__(self, n_bytes: int) -> None:
        most = f"{n_bytes} bytes, the most that is collected"
        super().__init__(f"the answers that are not streamed have come to {most}; ask with stream, or try again later")


class BodiesTooLargeError(Exception):
    """Bodies that are being received or wait to be decoded exceed their common memory limit."""

    def __init__(self, n_bytes: int) -> None:
        super().__init__(f"the bodies that are being sent have come to {n_bytes} bytes, the most that is held; try again later")


class NoSuchItemError(Exception):
    """The requested item does not exist or belongs to another owner."""


class ConversationBusyError(Exception):
    """Another response is being generated for the same conversation."""

    def __init__(self, name: str) -> None:
        super().__init__(f"another response is being written for the conversation {name}; try again when it has ended")


class OffsetLostError(Exception):
    """The requested offset of a stream has been dropped from its buffer."""

    def __init__(self, offset: int, n_dropped: int) -> None:
        super().__init__(f"the stream's byte {offset} is no longer kept; the first that is kept is {n_dropped}")


class UnreadStreamError(Exception):
    """A stream was cancelled because no client read it for the grace period."""

    def __init__(self, grace_s: float) -> None:
        super().__init__(f"the stream was ended: nobody has read it for {grace_s:g} s")


class StreamEndedError(Exception):
    """A stream was cancelled by its client, or replaced by a stream of the same name."""

    def __init__(self) -> None:
        super().__init__("the stream was ended, by a request to end it or by another stream of its name")


class StreamsFullError(Exception):
    """The number of resumable streams has reached its limit."""

    def __init__(self, n_streams: int) -> None:
        super().__init__(f"{n_streams} streams are being written that can be resumed, which is the limit; try again later")


class SlotFileError(Exception):
    """The contents of a slot could not be written to a file."""

    def __init__(self, filename: str, error: OSError) -> None:
        super().__init__(f"cannot save {filename}: {error.strerror or error}")


def _overflow(error: ContextOverflowError) -> dict[str, Any]:
    # Clients match llama-server's wording.
    message = (
        f"request ({error.length}) exceeds the available context size ({error.n_ctx} tokens);"
        " shorten the prompt, or start the server with a larger --ctx-size or a smaller --parallel"
    )
    return {"message": message, "n_prompt_tokens": error.n_prompt, "n_ctx": error.n_ctx}


def _too_large(error: AnswerTooLargeError) -> dict[str, Any]:
    most = f"more than {error.max_bytes} bytes, the most that is collected"
    return {"message": f"the answer has come to {most}; ask for it with stream, or for less", "param": "stream"}


def _param(error: InvalidRequestError) -> dict[str, Any]:
    return {"param": error.param}


class _Row(NamedTuple):
    kind: type[Exception]
    status: int
    type: str
    reason: Reason | None
    """Reason that `/metrics` counts. None for failures that are not refusals."""
    more: Callable[[Any], dict[str, Any]] = lambda _: {}
    """Additional fields of the error."""


# The first matching row applies.
_TABLE = [
    _Row(ContextOverflowError, 400, "exceed_context_size_error", Reason.CONTEXT_TOO_LONG, _overflow),
    _Row(InvalidRequestError, 400, "invalid_request_error", Reason.INVALID_FIELD, _param),
    _Row(PrefixFileError, 400, "invalid_request_error", Reason.INVALID_FIELD),
    _Row(AnswerTooLargeError, 400, "invalid_request_error", Reason.ANSWER_TOO_LARGE, _too_large),
    _Row(OffsetLostError, 400, "invalid_request_error", Reason.INVALID_FIELD, lambda _: {"param": "from"}),
    _Row(InvalidKeyError, 401, "authentication_error", Reason.NO_KEY),
    _Row(CrossOriginError, 403, "permission_error", Reason.CROSS_ORIGIN),
    _Row(NoSuchItemError, 404, "not_found_error", Reason.NO_ROUTE),
    _Row(UnreadStreamError, 408, "timeout_error", Reason.CLIENT_LEFT),
    _Row(BodyTimeoutError, 408, "timeout_error", Reason.SLOW_BODY),
    _Row(ConversationBusyError, 409, "conflict_error", Reason.SLOTS_BUSY),
    _Row(StreamEndedError, 409, "conflict_error", Reason.CLIENT_LEFT),
    _Row(PinBudgetError, 409, "conflict_error", Reason.PINS_FULL),
    _Row(CrossOriginBodyError, 415, "invalid_request_error", Reason.CROSS_ORIGIN),
    _Row(MisdirectedRequestError, 421, "invalid_request_error", Reason.WRONG_HOST),
    _Row(QueueFullError, 429, "rate_limit_error", Reason.QUEUE_FULL),
    _Row(StreamsFullError, 429, "rate_limit_error", Reason.QUEUE_FULL),
    _Row(TextsWaitingError, 429, "rate_limit_error", Reason.TEXTS_WAITING),
    _Row(AnswersTooLargeError, 429, "rate_limit_error", Reason.ANSWER_TOO_LARGE, lambda _: {"param": "stream"}),
    _Row(BodiesTooLargeError, 429, "rate_limit_error", Reason.TOO_MANY_BODIES),
    _Row(ClientDisconnectedError, 499, "client_closed_request", Reason.CLIENT_LEFT),
    _Row(WorkCancelledError, 499, "client_closed_request", Reason.CLIENT_LEFT),
    _Row(NotSupportedError, 501, "not_supported_error", Reason.NOT_SUPPORTED),
    _Row(StillLoadingError, 503, "unavailable_error", Reason.NOT_READY),
    _Row(SlotsBusyError, 503, "unavailable_error", Reason.SLOTS_BUSY),
    _Row(EngineStoppedError, 503, "unavailable_error", Reason.NOT_READY),
    _Row(ModelLoadError, 500, "server_error", None),
    _Row(InvalidConfigError, 500, "server_error", None),
    _Row(SlowConsumerError, 500, "server_error", Reason.SLOW_READER),
    _Row(PrefixSaveError, 500, "server_error", None),
    _Row(SlotFileError, 500, "server_error", None),
    _Row(DecodeError, 500, "server_error", None),
]

_HEADERS = {
    401: {"www-authenticate": "Bearer"},
    429: {"retry-after": str(RETRY_AFTER_S)},
    # Official clients retry a status of 500 or above unless this header forbids it.
    501: {"x-should-retry": "false"},
}
"""Headers of error responses, by status."""

# Litestar's exceptions carry their own status.
_TYPES = {404: "not_found_error", 401: "authentication_error", 403: "permission_error"}
_REASONS = {404: Reason.NO_ROUTE, 405: Reason.NO_ROUTE, 413: Reason.BODY_TOO_LARGE}


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
    for row in _TABLE:
        if isinstance(error, row.kind):
            _count(row.reason)
            fields = {"message": str(error)} | row.more(error)
            return ErrorObject(code=row.status, type=row.type, **fields)
    if isinstance(error, ValidationException):
        return _describe_field(error)
    if isinstance(error, HTTPException) and error.status_code < 500:
        _count(_REASONS.get(error.status_code, Reason.INVALID_BODY))
        name = _TYPES.get(error.status_code, "invalid_request_error")
        return ErrorObject(code=error.status_code, message=error.detail, type=name)
    logger.error("a request failed", exc_info=error)
    return ErrorObject(code=500, message="internal error", type="server_error")


def _count(reason: Reason | None) -> None:
    if reason is not None and (line := current_line()) is not None:
        line.refuse(reason)


def _describe_field(error: ValidationException) -> ErrorObject:
    """Describes the first field of a body or query that does not match its schema."""
    first = error.extra[0] if isinstance(error.extra, list) and error.extra else {}
    location = first.get("key", "")
    if location in ("", "data") and (unknown := UNKNOWN_FIELD.search(str(first.get("message")))) is not None:
        _count(Reason.INVALID_FIELD)
        field = truncate(unknown[1], MAX_EXCERPT // 2)  # The name appears twice in the error.
        return ErrorObject(code=400, message=f"{field}: there is no such field here", type="invalid_request_error", param=field)
    reason = with_json_types(str(first.get("message")))
    if location in ("", "data"):
        if (entry := IN_A_LIST.search(str(error.__cause__))) is None:
            _count(Reason.INVALID_BODY)
            kind = "list" if reason.startswith("Expected `array") else "object"
            message = "the body is empty; it must be JSON" if reason == NO_BODY else f"the body must be a JSON {kind}"
            return ErrorObject(code=400, message=message, type="invalid_request_error")
        location = entry[1]
    # The location may be inside the field: `stop[0]`, `stream_options.include_usage`.
    field = INDEX.sub("", location).partition("[")[0].partition(".")[0]
    _count(Reason.INVALID_FIELD)
    location = location.replace("[...]", ".*")
    return ErrorObject(
        code=400, message=f"{truncate(location)}: {truncate(reason)}", type="invalid_request_error", param=field or None
    )


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


def _openai(described: ErrorObject) -> Mapping[str, Any]:
    return {"error": described}


class ErrorResponses:
    """Builds responses to requests that fail before a response has started."""

    def __init__(self, shapes: Mapping[str, Shape] = MappingProxyType({})) -> None:
        """Takes the formats of APIs that have their own, by path prefix such as `/api`."""
        self._shapes = shapes

    def response(
        self, request: Request[Any, Any, Any], error: Exception, also: Mapping[str, Any] = MappingProxyType({})
    ) -> Response[bytes]:
        """Returns the error response; the fields of `also` are added to the body."""
        return _response(error, self._shape(request.scope["path"]), also)

    def _shape(self, path: str) -> Shape:
        for beginning, shape in self._shapes.items():
            if path == beginning or path.startswith(f"{beginning}/"):
                return shape
        return _openai


def _response(error: Exception, shape: Shape, also: Mapping[str, Any]) -> Response[bytes]:
    described = describe(error)
    headers = error.headers if isinstance(error, HTTPException) else _HEADERS.get(described.code)
    extra_fields = dict(error.extra_fields) if isinstance(error, SlotsBusyError | StillLoadingError) else {}
    body = msgspec.json.encode({**also, **shape(described), **extra_fields})
    return Response(body, status_code=described.code, media_type="application/json", headers=headers)
