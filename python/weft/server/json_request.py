"""Decoding of JSON bodies, with size limits and errors for invalid ones."""

from collections.abc import AsyncGenerator, Callable, Sequence
from functools import cache, cached_property, partial
from typing import Any, TypeVar, cast, get_args

import msgspec
from litestar import Request
from litestar.exceptions import ClientException, InternalServerException, SerializationException, ValidationException
from litestar.status_codes import HTTP_413_REQUEST_ENTITY_TOO_LARGE

from weft._native import read_body
from weft.server.awake import needs_no_model
from weft.server.errors import BodiesTooLargeError
from weft.server.executor import Purpose
from weft.server.json_errors import why_not_json
from weft.server.media.reader import MAX_BYTES
from weft.server.memory_budget import MemoryBudget, Reservation
from weft.server.service import Service
from weft.server.streaming.fair_scheduler import yield_fairly

ArgT = TypeVar("ArgT")
T = TypeVar("T")

LARGE_BODY = 64 * 1024
"""Bodies above this many bytes are decoded in native code without the GIL. Creating Python objects would block the event loop for
milliseconds to seconds."""

BASE_BYTES = 4 * 1024 * 1024
BYTES_PER_TOKEN = 64
BYTES_PER_BIAS = 32
"""Default body limit: a base, plus bytes for each token of a slot's context, plus bytes for each entry of the vocabulary. A token
id with its comma has up to 8 bytes, a token's text is rarely longer, and an escaped character has 6."""

MEDIA_BYTES = MAX_BYTES * 4 // 3
"""Added to the limit for the images and audio of a request, in base64, if the model has a projector."""

BYTES_WITHOUT_MODEL = 64 * 1024 * 1024
"""Default body limit of routes that answer without the model, such as imports of documents."""

MAX_TOGETHER_BYTES = 1024 * 1024 * 1024
"""Maximum total size of bodies that are being received or wait to be decoded, not counting the first [`LARGE_BODY`] bytes of
each."""

PLACEHOLDER = "\N{HORIZONTAL ELLIPSIS}"
"""Placeholder for a long text until the text itself is inserted."""

ONE_TOKEN = (1,)
ONE_BIAS = ((1, 0.5),)
"""Smallest values of a field of token ids and of a field of biases."""


def max_body(service: Service) -> int:
    """Returns the maximum size of a body of a route that needs the model, in bytes."""
    if service.settings.max_body is not None:
        return service.settings.max_body
    engine = service.engine
    modalities = engine.model.modalities
    media = MEDIA_BYTES if modalities.vision or modalities.audio else 0
    return media + BASE_BYTES + BYTES_PER_TOKEN * engine.limits.n_ctx_slot + BYTES_PER_BIAS * engine.model.n_vocab


def bodies_budget() -> MemoryBudget:
    """Returns the memory budget that all bodies share until they are decoded."""
    return MemoryBudget(MAX_TOGETHER_BYTES, LARGE_BODY, BodiesTooLargeError)


class JsonRequest(Request[Any, Any, Any]):
    """A request with a JSON body, whose bytes are released once it has been decoded.

    The application's state holds the `service`, and the memory budget of all `bodies` that are being received or wait to be
    decoded.
    """

    received: bytes | None = None
    """The complete body, until it has been decoded."""

    @cached_property
    def _reservation(self) -> Reservation:
        return Reservation(self.app.state.bodies)

    @property
    def _service(self) -> Service:
        return cast("Service", self.app.state.service)

    @property
    def _max_body(self) -> int:
        if needs_no_model(self.route_handler):
            given = self._service.settings.max_body
            return BYTES_WITHOUT_MODEL if given is None else given
        return max_body(self._service)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yields the body in chunks as they arrive.

        Raises:
            ClientException: The body is too large. A body that is announced as too large is not read.
            BodiesTooLargeError: The total size of all bodies would exceed its limit.
        """
        limit = self._max_body
        size = self.content_length or 0
        _check_size(size, limit)
        size = 0
        async for part in super().stream():
            size += len(part)
            _check_size(size, limit)
            self._reservation.grow(len(part))
            if size > LARGE_BODY:
                await yield_fairly()
            yield part

    async def body(self) -> bytes:
        """Returns the bytes of the body.

        Raises:
            ClientException: The body is too large, or the client disconnected before its end.
            BodiesTooLargeError: The total size of all bodies would exceed its limit.
            TextsWaitingError: Too much work is queued.
        """
        if self.received is None:
            try:
                parts = [part async for part in self.stream()]
                # Joining tens of megabytes takes as long as a decoding step, so it runs on a worker thread.
                self.received = await self._run(b"".join, parts, sum(map(len, parts)))
            except InternalServerException as error:
                raise ClientException("the body was not sent to its end") from error
            finally:
                if self.received is None:
                    self._reservation.release()
        return self.received

    async def _run(self, work: Callable[[ArgT], T], argument: ArgT, size: int) -> T:
        """Runs work on `size` bytes of a body: directly if they are few, else on a worker thread."""
        if size <= LARGE_BODY:
            return work(argument)
        return await self._service.executor.run(self.route_handler.opt.get("purpose", Purpose.PROMPT), size, work, argument)

    async def json(self) -> Any:  # noqa: ANN401 (any JSON)
        """Returns the decoded body; for a large body, the struct that the handler takes.

        Raises:
            ClientException: The body is not valid JSON or UTF-8, is nested too deeply, or is large and has too many values.
            ValidationException: A large body has a nested list in a field of token ids.
            BodiesTooLargeError: The total size of all bodies would exceed its limit.
        """
        with self._reservation:
            try:
                return await self._value(await self.body())
            finally:
                # The bytes are no longer needed; they would otherwise be held until the response ends.
                self.received = None

    async def _value(self, body: bytes) -> Any:  # noqa: ANN401 (any JSON)
        try:
            if len(body) > LARGE_BODY and (struct := self._struct()) is not None:
                return await self._read(body, struct)
            return await super().json()
        except UnicodeDecodeError as error:
            raise ClientException(f"the body is no UTF-8: {error.reason}") from error
        except RecursionError as error:
            raise ClientException("the body is nested too deep") from error
        except SerializationException as error:
            raise ClientException(why_not_json(body, error)) from error

    async def _read(self, body: bytes, struct: type[msgspec.Struct]) -> Any:  # noqa: ANN401 (the struct, or what cannot become one)
        read = partial(
            read_body,
            fields=list(map(str, _attributes(struct))),
            tokens=_names_of(struct, ONE_TOKEN),
            biases=_names_of(struct, ONE_BIAS),
        )
        try:
            rest, extracted, texts = await self._run(read, body, len(body))
        except ValueError as error:
            raise ClientException(str(error)) from None
        for name, value in extracted.items():
            if isinstance(value, list) and name not in _names_of(struct, (ONE_TOKEN,)):
                raise ValidationException(extra=[{"key": f"{name}[0]", "message": "Expected `int | str`, got `array`"}])
        # Decoding thousands of messages takes a while.
        await yield_fairly()
        try:
            data = msgspec.json.decode(rest, type=struct, strict=False)
        except msgspec.ValidationError:
            # Litestar reports the error, as for a small body.
            try:
                return msgspec.json.decode(rest)
            except msgspec.DecodeError as error:
                raise ClientException(why_not_json(rest, error)) from error
        for name, value in extracted.items():
            setattr(data, name, value)
        # With duplicate keys the last wins: once it has been inserted, earlier ones find no placeholder.
        for path, text in reversed(texts):
            put_text(data, path, text)
        return data

    def _struct(self) -> type[msgspec.Struct] | None:
        """Returns the struct that the handler takes, possibly one of a union."""
        field = self.route_handler.parsed_data_field
        kinds = () if field is None else (field.annotation, *get_args(field.annotation))
        return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)), None)


def put_text(value: Any, path: Sequence[str | int], text: str) -> None:  # noqa: ANN401 (anything that JSON becomes)
    """Inserts a long text at its location. Does nothing if the decoded value has no placeholder there."""
    *steps, last = path
    for step in steps:
        if (value := _at(value, step)) is None:
            return
    if _at(value, last) != PLACEHOLDER:
        return
    if isinstance(value, msgspec.Struct):
        setattr(value, _attributes(type(value))[last], text)
    else:
        value[last] = text


def _at(value: Any, step: Any) -> Any:  # noqa: ANN401 (anything that JSON becomes)
    """Returns the item of a value with this key or index, or None."""
    if isinstance(value, msgspec.Struct):
        return getattr(value, _attributes(type(value)).get(step, ""), None)
    if isinstance(value, dict):
        return value.get(step)
    return value[step] if isinstance(value, list) and isinstance(step, int) and step < len(value) else None


@cache
def _attributes(struct: type[msgspec.Struct]) -> dict[str | int, str]:
    """Returns the attributes of a struct by their JSON names."""
    return {field.encode_name: field.name for field in msgspec.structs.fields(struct)}


@cache
def _names_of(struct: type[msgspec.Struct], value: object) -> list[str]:
    """Returns the fields that accept such a value, except fields of type Any, which are refused by name later."""
    return [field.encode_name for field in msgspec.structs.fields(struct) if field.type is not Any and _takes(field.type, value)]


def _takes(kind: object, value: object) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        message = f"the body has more than {limit} bytes; send less, or start the server with a larger --max-body"
        raise ClientException(message, status_code=HTTP_413_REQUEST_ENTITY_TOO_LARGE)
