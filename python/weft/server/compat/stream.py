"""`/stream`: a prompt and its completion as plain text, one token per line."""

from collections.abc import Callable
from typing import Any

import msgspec
from litestar.params import FromQuery, JSONBody

from weft import Event, Finished, InvalidRequestError, Token
from weft.fields.excerpt import excerpt
from weft.fields.validation import check_range
from weft.server.api import Api
from weft.server.compat.prompt_files import restore_or_save
from weft.server.context import ServiceDependency
from weft.server.errors import NOT_SUPPORTED, ErrorBody, describe
from weft.server.inference.submission import Submission
from weft.server.request_fields import requests
from weft.server.request_fields.fields import CompletionFields
from weft.server.streaming import ndjson, sse
from weft.server.streaming.encoder import Encoder
from weft.server.streaming.responses import Answer, StreamedResponse
from weft.server.web_policy import require_trusted_sender
from weft.settings import Settings

api = Api("other servers")

DEFAULT_LIMIT = 32
"""Default maximum of generated tokens."""

MAX_CACHE_ID = 2**63 - 1


class StreamBody(msgspec.Struct):
    """`POST /stream`. Missing fields have the server's defaults."""

    prompt: str | None = None
    num_predict: int | None = None
    """Maximum tokens after the prompt; defaults to 32."""
    n_batch: int | None = None
    """Maximum prompt tokens computed per step."""
    top_k: int | None = None
    top_p: float | None = None
    repeat_penalty: float | None = None
    temp: float | None = None
    cache: int = 0
    """Number of the file that stores the computed prompt; 0 for none. Files are in the folder of `--slot-save-path`, or with
    `--compat stream` in the user's cache directory."""


def submission(data: StreamBody, settings: Settings) -> Submission:
    """Returns the submission of a body."""
    if data.prompt is None:
        raise InvalidRequestError("prompt", "a prompt must be given")
    check_range("n_batch", data.n_batch, 1)
    check_range("num_predict", data.num_predict, 0)
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
    raise InvalidRequestError("format", f"format is {excerpt(name)}; it must be text or ndjson")


class LineEncoder(Encoder):
    """Encodes the prompt, then one line for each token that adds text. In plain text, a line-break token is an empty line."""

    ping = None

    def __init__(self, prompt: str, content_type: str, write: Callable[[str], bytes]) -> None:
        self.headers = sse.HEADERS | {"content-type": content_type}
        self._prompt: str | None = prompt
        self._write = write

    def frames(self, prompt: int, event: Event) -> list[bytes]:  # noqa: ARG002 (there is one)
        """Returns the lines of the next event."""
        texts = [] if self._prompt is None else [self._prompt]
        self._prompt = None
        if isinstance(event, Token | Finished) and event.text:
            texts.append(event.text)
        return [self._write(text) for text in texts]

    def failure(self, error: Exception) -> bytes:
        """Returns the last line of a failed stream. It is an object, unlike the lines of tokens."""
        return ndjson.line(ErrorBody(describe(error)))


@api.route("POST", "/stream", summary="Stream plain text", errors=NOT_SUPPORTED)
async def stream(
    data: JSONBody[StreamBody],
    service: ServiceDependency,
    format: FromQuery[str | None] = None,  # noqa: A002
) -> Answer[str]:
    """Continues a prompt as plain text: the prompt, then each token, one per line; with `format=ndjson`, JSON strings."""
    form = line_form(format)
    parsed = submission(data, service.settings)
    if data.cache:
        require_trusted_sender("the field cache")
        await restore_or_save(service, data.cache, data.prompt or "")
    generation = await service.submit(parsed)
    return Answer(StreamedResponse(generation, LineEncoder(data.prompt or "", *form), None))
