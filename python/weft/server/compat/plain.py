"""`/stream`: a prompt and its completion as plain text, one token per line. No I/O here."""

from collections.abc import Callable
from typing import Any

import msgspec

from weft import Event, Finished, InvalidRequestError, Token
from weft.fields.excerpt import excerpt
from weft.server.compat.schemas import StreamBody
from weft.server.errors import ErrorBody, describe
from weft.server.inference.submission import Submission
from weft.server.request_fields import requests
from weft.server.request_fields.fields import CompletionFields
from weft.server.streaming import ndjson
from weft.server.streaming.responses import StreamEncoder
from weft.settings import Settings

DEFAULT_LIMIT = 32
"""Default maximum of generated tokens."""

MAX_CACHE_ID = 2**63 - 1


def submission(data: StreamBody, settings: Settings) -> Submission:
    """Returns the submission of a body."""
    if data.prompt is None:
        raise InvalidRequestError("prompt", "a prompt must be given")
    if data.n_batch is not None and data.n_batch < 1:
        raise InvalidRequestError("n_batch", f"n_batch is {data.n_batch}; it must be at least 1")
    if data.num_predict is not None and data.num_predict < 0:
        raise InvalidRequestError("num_predict", f"num_predict is {data.num_predict}; it must be 0 or more")
    if not 0 <= data.cache <= MAX_CACHE_ID:
        raise InvalidRequestError("cache", f"cache is {data.cache}; it must be a positive integer, or 0 for no file")
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
    parsed = requests.submission(CompletionFields(**fields), settings, n_probs=("n_probs", None))
    template = msgspec.structs.replace(parsed.template, n_batch=data.n_batch)
    return msgspec.structs.replace(parsed, template=template, sent_as={"temperature": "temp", "max_tokens": "num_predict"})


def _plain(text: str) -> bytes:
    return text.encode() + b"\n"


def line_form(name: str | None) -> tuple[str, Callable[[str], bytes]]:
    """Returns the content type of a format, and a function that encodes a line.

    Raises:
        InvalidRequestError: The format does not exist.
    """
    match name:
        case None | "text":
            return "text/plain; charset=utf-8", _plain
        case "ndjson":
            return ndjson.HEADERS["content-type"], ndjson.line
    raise InvalidRequestError("format", f"there is no format of this name: {excerpt(name)}; it must be text or ndjson")


def failure(error: Exception) -> bytes:
    """Returns the last line of a failed stream. It is an object, unlike the lines of tokens."""
    return ndjson.line(ErrorBody(describe(error)))


class LineEncoder(StreamEncoder):
    """Encodes the prompt, then one line for each token that adds text. In plain text, a line-break token is an empty line."""

    def __init__(self, prompt: str, write: Callable[[str], bytes]) -> None:
        self._prompt: str | None = prompt
        self._write = write

    def frames(self, prompt: int, event: Event) -> list[bytes]:  # noqa: ARG002 (there is one)
        """Returns the lines of the next event."""
        texts = [] if self._prompt is None else [self._prompt]
        self._prompt = None
        if isinstance(event, Token | Finished) and event.text:
            texts.append(event.text)
        return [self._write(text) for text in texts]
