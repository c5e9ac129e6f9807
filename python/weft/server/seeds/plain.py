"""`/stream`: a prompt and what follows it as plain text, a token a line. No I/O here."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from weft import Finished, InvalidRequest, Token
from weft.fields.shown import shown
from weft.server import request_fields
from weft.server.errors import ErrorBody, describe
from weft.server.run.generation import Event
from weft.server.run.submission import Submission
from weft.server.seeds.schemas import StreamBody
from weft.settings import Settings

__all__ = ["Lines", "failure", "line_form", "submission"]

DEFAULT_LIMIT = 32
"""Tokens that are written where a request does not say."""

MAX_CACHE_ID = 2**63 - 1

_encode = msgspec.json.Encoder().encode


def submission(data: StreamBody, settings: Settings) -> Submission:
    """What a body asks for."""
    if data.prompt is None:
        raise InvalidRequest("prompt", "a prompt must be given")
    if data.n_batch is not None and data.n_batch < 1:
        raise InvalidRequest("n_batch", f"n_batch is {data.n_batch}; it must be at least 1")
    if data.num_predict is not None and data.num_predict < 0:
        raise InvalidRequest("num_predict", f"num_predict is {data.num_predict}; it must be 0 or more")
    if not 0 <= data.cache <= MAX_CACHE_ID:
        raise InvalidRequest("cache", f"cache is {data.cache}; it must be a positive integer, or 0 for no file")
    fields: dict[str, Any] = {
        "prompt": data.prompt,
        "stream": True,
        "n": 1,
        "n_predict": DEFAULT_LIMIT if data.num_predict is None else data.num_predict,
        "top_k": data.top_k,
        "top_p": data.top_p,
        "repeat_penalty": data.repeat_penalty,
        "temperature": data.temp,
    }
    asked = request_fields.submission(request_fields.CompletionFields(**fields), settings, n_probs=("n_probs", None))
    template = msgspec.structs.replace(asked.template, n_batch=data.n_batch)
    return msgspec.structs.replace(asked, template=template, sent_as={"temperature": "temp", "max_tokens": "num_predict"})


def _plain(text: str) -> bytes:
    return text.encode() + b"\n"


def _quoted(text: str) -> bytes:
    return _encode(text) + b"\n"


def line_form(name: str | None) -> tuple[str, Callable[[str], bytes]]:
    """The content type of a format that a query names, and how it writes a line.

    Raises:
        InvalidRequest: there is no such format.
    """
    match name:
        case None | "text":
            return "text/plain; charset=utf-8", _plain
        case "ndjson":
            return "application/x-ndjson", _quoted
    raise InvalidRequest("format", f"there is no format of this name: {shown(name)}; it must be text or ndjson")


def failure(error: Exception) -> bytes:
    """The last line of a stream that could not be written to its end: no token is an object."""
    return _encode(ErrorBody(describe(error))) + b"\n"


class Lines:
    """The prompt, then one line for each token that brings text. As plain text, a token that is a line break is an empty line."""

    def __init__(self, prompt: str, write: Callable[[str], bytes]) -> None:
        self._prompt: str | None = prompt
        self._write = write

    def frames(self, prompt: int, events: Sequence[Event]) -> list[bytes]:  # noqa: ARG002 (there is one)
        """The lines of events, in order."""
        texts = [event.text for event in events if isinstance(event, Token | Finished) and event.text]
        if self._prompt is not None:
            texts.insert(0, self._prompt)
            self._prompt = None
        return [self._write(text) for text in texts]

    def end(self) -> bytes:
        """Nothing: the connection's end is the stream's."""
        return b""
