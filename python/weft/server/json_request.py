"""How a body is read: what is wrong with it as a whole is the client's error, and said so."""

from collections.abc import AsyncGenerator, Callable, Sequence
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

import msgspec
from litestar import Request
from litestar.exceptions import ClientException, InternalServerException, SerializationException, ValidationException
from litestar.status_codes import HTTP_413_REQUEST_ENTITY_TOO_LARGE
from litestar.types import Empty

from weft._native import read_body
from weft.server.errors import BodiesTooLargeError
from weft.server.json_errors import why_not_json
from weft.server.run.aside import Purpose
from weft.server.run.media import MAX_BYTES
from weft.server.run.room import Room, Share
from weft.server.run.service import Service
from weft.server.run.writing import next_turn

if TYPE_CHECKING:
    from weft.server.app import Application

__all__ = ["LARGE_BODY", "MAX_TOGETHER_BYTES", "JsonRequest", "bodies_room", "max_body", "put_text"]

Given = TypeVar("Given")
Made = TypeVar("Made")

LARGE_BODY = 64 * 1024
"""A body of more bytes is read without the interpreter: objects would be made of it for milliseconds, and up to seconds."""

BASE_BYTES = 4 * 1024 * 1024
BYTES_PER_TOKEN = 64
BYTES_PER_BIAS = 32
"""What a body may have where the settings do not say: for whatever is in it besides, for each token of a slot's context, and for
each piece of the vocabulary. A token's number with its comma has up to 8 bytes, a piece of a text is rarely longer, and a
character that is escaped has 6."""

MEDIA_BYTES = MAX_BYTES * 4 // 3
"""And, where there is a projector, for all pictures and sounds that a request may have, in base64."""

MAX_TOGETHER_BYTES = 1024 * 1024 * 1024
"""Most that all bodies may come to that are being sent, or wait to be read, beyond the first [`LARGE_BODY`] of each."""

STAND_IN = "\N{HORIZONTAL ELLIPSIS}"
"""Where a long text was, until it is put there."""

ONE_TOKEN = (1,)
ONE_BIAS = ((1, 0.5),)
"""The least that a field of token ids holds, and one of biases."""


def max_body(service: Service) -> int:
    """Most bytes of a body."""
    if service.settings.max_body is not None:
        return service.settings.max_body
    engine = service.engine
    modalities = engine.model.modalities
    media = MEDIA_BYTES if modalities.vision or modalities.audio else 0
    return media + BASE_BYTES + BYTES_PER_TOKEN * engine.limits.n_ctx_slot + BYTES_PER_BIAS * engine.model.n_vocab


def bodies_room() -> Room:
    """What all bodies take together until they are read."""
    return Room(MAX_TOGETHER_BYTES, LARGE_BODY, BodiesTooLargeError)


class JsonRequest(Request[Any, Any, Any]):
    """A request whose body is JSON. Its bytes are held until they are read once."""

    @cached_property
    def _share(self) -> Share:
        return Share(cast("Application", self.app).bodies)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The body, in the parts that it comes in.

        Raises:
            ClientException: it is larger than it may be. What is announced as larger is not read.
            BodiesTooLargeError: it is too much beside the bodies of others.
        """
        limit = max_body(cast("Application", self.app).service)
        size = self.content_length or 0
        _check_size(size, limit)
        size = 0
        async for part in super().stream():
            size += len(part)
            _check_size(size, limit)
            self._share.grow(len(part))
            if size > LARGE_BODY:
                await next_turn()
            yield part

    async def body(self) -> bytes:
        """The bytes of the body.

        Raises:
            ClientException: it is too large, or the client left before it had sent all of it.
            BodiesTooLargeError: it is too much beside the bodies of others.
            TextsWaitingError: too much waits to be read.
        """
        if self._body is Empty:
            try:
                parts = [part async for part in self.stream()]
                # Tens of megabytes take as long as a step, beside which others run.
                self._body = await self._aside(b"".join, parts, sum(map(len, parts)))
            except InternalServerException as error:
                raise ClientException("the body was not sent to its end") from error
            finally:
                if self._body is Empty:
                    self._share.release()
        return cast("bytes", self._body)

    async def _aside(self, work: Callable[[Given], Made], given: Given, size: int) -> Made:
        """Does work on so many bytes of a body: at once if they are few, else on another thread."""
        if size <= LARGE_BODY:
            return work(given)
        service = cast("Application", self.app).service
        return await service.aside.work(self.route_handler.opt.get("purpose", Purpose.PROMPT), size, work, given)

    async def json(self) -> Any:  # noqa: ANN401 (any JSON)
        """The value of the body; of a large one, what the route's handler takes.

        Raises:
            ClientException: it is no JSON, no UTF-8, or nested too deep; or it is large and holds too many values.
            ValidationException: a list in a list stands where a large body may have tokens.
            BodiesTooLargeError: it is too much beside the bodies of others.
        """
        with self._share:
            try:
                return await self._value(await self.body())
            finally:
                # Whoever reads has all that was in them: they would be held as long as the answer is written.
                self._body = self._connection_state.body = Empty

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
        read = partial(read_body, fields=_names(struct), tokens=_names_of(struct, ONE_TOKEN), biases=_names_of(struct, ONE_BIAS))
        try:
            rest, beside, texts = await self._aside(read, body, len(body))
        except ValueError as error:
            raise ClientException(str(error)) from None
        for name, value in beside.items():
            if isinstance(value, list) and name not in _names_of(struct, (ONE_TOKEN,)):
                raise ValidationException(extra=[{"key": f"{name}[0]", "message": "Expected `int | str`, got `array`"}])
        # Thousands of messages become objects here.
        await next_turn()
        try:
            data = msgspec.json.decode(rest, type=struct, strict=False)
        except msgspec.ValidationError:
            # Litestar says what is wrong with it, as it does of a small body.
            try:
                return msgspec.json.decode(rest)
            except msgspec.DecodeError as error:
                raise ClientException(why_not_json(rest, error)) from error
        for name, value in beside.items():
            setattr(data, name, value)
        # Of two by one name the last holds: the other finds its place taken.
        for way, text in reversed(texts):
            put_text(data, way, text)
        return data

    def _struct(self) -> type[msgspec.Struct] | None:
        """The struct that the handler takes, perhaps among others."""
        field = self.route_handler.parsed_data_field
        kinds = () if field is None else (field.annotation, *get_args(field.annotation))
        return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)), None)


def put_text(value: Any, way: Sequence[str | int], text: str) -> None:  # noqa: ANN401 (anything that JSON becomes)
    """Puts a long text where it was; what has been read of its place may have no such field, or another value of that name."""
    *steps, last = way
    for step in steps:
        if (value := _at(value, step)) is None:
            return
    if _at(value, last) != STAND_IN:
        return
    if isinstance(value, msgspec.Struct):
        setattr(value, _attributes(type(value))[last], text)
    else:
        value[last] = text


def _at(value: Any, step: Any) -> Any:  # noqa: ANN401 (anything that JSON becomes)
    """What is in a value under a name or an index, or None."""
    if isinstance(value, msgspec.Struct):
        return getattr(value, _attributes(type(value)).get(step, ""), None)
    if isinstance(value, dict):
        return value.get(step)
    return value[step] if isinstance(value, list) and isinstance(step, int) and step < len(value) else None


@cache
def _attributes(struct: type[msgspec.Struct]) -> dict[str | int, str]:
    """The attributes of a struct by what JSON calls them."""
    return {field.encode_name: field.name for field in msgspec.structs.fields(struct)}


@cache
def _names(struct: type[msgspec.Struct]) -> list[str]:
    """The fields of a struct. To look them up takes a millisecond."""
    return [field.encode_name for field in msgspec.structs.fields(struct)]


@cache
def _names_of(struct: type[msgspec.Struct], value: object) -> list[str]:
    """The fields of a struct that may hold such a value, but those that take anything, to refuse it by name."""
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
