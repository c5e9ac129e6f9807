"""A server with OpenAI's API: Weft, llama-server, or any other."""

import json
from collections.abc import Generator, Iterable
from http.client import HTTPException
from typing import Any

import msgspec

from weft.cli.chat.pieces import ChatModelError, Messages, Piece
from weft.cli.top.server_access import NoAnswerError, ServerAccess, error_text
from weft.sampling_fields import Sampling
from weft.settings import Settings

TIMEOUT_S = 600.0
"""Maximum silence of the server, in seconds: a long prompt is computed before the first token."""


class Delta(msgspec.Struct):
    """Delta of a chunk of `/v1/chat/completions`."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """As `reasoning_content`, of other servers."""


class Choice(msgspec.Struct):
    """Choice of a chunk."""

    index: int = 0
    delta: Delta = msgspec.field(default_factory=Delta)


class Chunk(msgspec.Struct):
    """Chunk of a streamed chat completion."""

    choices: list[Choice] = []
    error: Any = None


class Model(msgspec.Struct):
    """Entry of `/v1/models`."""

    id: str


class Models(msgspec.Struct):
    """Response of `/v1/models`."""

    data: list[Model]


class RemoteModel:
    """A model of a server.

    Args:
        url: URL of the server, with or without `/v1`.
        key: API key; None sends none.
        model: Name of the model; None is the server's first one.
        settings: Settings with the sampling parameters to send.

    Raises:
        ChatModelError: `url` is not an HTTP URL, or the server does not respond.
    """

    def __init__(self, url: str, key: str | None, model: str | None, settings: Settings) -> None:
        try:
            self._access = ServerAccess(url.removesuffix("/").removesuffix("/v1"), key, TIMEOUT_S)
        except ValueError as error:
            raise ChatModelError(str(error)) from None
        self._url = self._access.url
        self._options = _options(settings)
        self.name = model or self._first_model()
        """Name of the model."""

    def answer(self, messages: Messages, n: int) -> Generator[Piece, None, None]:
        """Yields the pieces of `n` answers; see `ChatModel`."""
        body = {"model": self.name, "messages": messages, "n": n, "stream": True, **self._options}
        with self._open("/v1/chat/completions", json.dumps(body).encode()) as response:
            try:
                for piece in _pieces(response):
                    if piece.answer not in range(n):
                        raise ChatModelError(f"{self._url} sent answer {piece.answer} of {n}")
                    yield piece
            except (HTTPException, OSError) as error:
                raise ChatModelError(f"{self._url} ended the answer: {str(error) or type(error).__name__}") from None

    def close(self) -> None:
        """Does nothing: each answer has its own connection."""

    def _first_model(self) -> str:
        with self._open("/v1/models") as response:
            try:
                return msgspec.json.decode(response.read(), type=Models).data[0].id
            except (msgspec.MsgspecError, UnicodeDecodeError, IndexError):
                raise ChatModelError(f"{self._url}/v1/models lists no model; name one with --served-model") from None

    def _open(self, path: str, body: bytes | None = None) -> Any:  # noqa: ANN401 (urllib has no common type)
        try:
            return self._access.open(path, body)
        except NoAnswerError as error:
            raise ChatModelError(str(error)) from None


def _options(settings: Settings) -> dict[str, Any]:
    """Returns the request fields that differ from their defaults."""
    sampling = msgspec.structs.asdict(settings.sampling)
    defaults = msgspec.structs.asdict(Sampling())
    changed = {name: value for name, value in sampling.items() if value != defaults[name]}
    more = {"max_tokens": settings.n_predict, "seed": settings.seed, "stop": list(settings.stop) or None}
    return changed | {name: value for name, value in more.items() if value is not None}


def _pieces(lines: Iterable[bytes]) -> Generator[Piece, None, None]:
    """Parses server-sent events of chat completion chunks."""
    for line in lines:
        data = line.strip().removeprefix(b"data:").strip()
        if not line.startswith((b"data:", b"error:")) or data == b"[DONE]":
            continue
        try:
            chunk = msgspec.json.decode(data, type=Chunk)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ChatModelError(f"the server did not send a chat completion chunk: {error}") from None
        if chunk.error is not None:
            raise ChatModelError(error_text(chunk.error))
        for choice in chunk.choices:
            if reasoning := choice.delta.reasoning_content or choice.delta.reasoning:
                yield Piece(choice.index, "reasoning", reasoning)
            if choice.delta.content:
                yield Piece(choice.index, "content", choice.delta.content)
