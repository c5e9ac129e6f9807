"""Events of llama.cpp's first multi-user server: text only. No I/O here."""

from collections.abc import Callable
from typing import Any

import msgspec

from weft import Event, Finished, Token
from weft.server.compat.schemas import Content
from weft.server.inference.generation import Generation
from weft.server.request_fields import neutral
from weft.server.request_fields.fields import CompletionFields
from weft.server.streaming import sse
from weft.server.streaming.responses import StreamEncoder
from weft.settings import Settings

_NEUTRAL: dict[str, Callable[[Any], bool]] = {
    # The events cannot represent these, nor which completion they belong to.
    "explain_cache": lambda value: value is False,
    "n": lambda value: value == 1,
    "n_cmpl": lambda value: value == 1,
    "logprobs": lambda value: value == 0,
    "n_probs": lambda value: value == 0,
    "post_sampling_probs": lambda value: value is False,
    "response_fields": lambda value: not value,
    "return_progress": lambda value: value is False,
    "return_tokens": lambda value: value is False,
    "timings_per_token": lambda value: value is False,
}


def prepared(data: CompletionFields, _: Settings) -> CompletionFields:
    """Returns the body as a streamed request for one completion, the only kind supported."""
    neutral.refuse(data, _NEUTRAL)
    return msgspec.structs.replace(data, stream=True, n=1)


class ChunkEncoder(StreamEncoder):
    """Encodes one event for each token that adds text. Closing the connection ends the stream."""

    def __init__(self, _: Generation) -> None:
        pass

    def frames(self, prompt: int, event: Event) -> list[bytes]:  # noqa: ARG002 (there is one)
        """Returns the frame of the next event, if it adds text."""
        return [sse.frame(Content(event.text))] if isinstance(event, Token | Finished) and event.text else []
