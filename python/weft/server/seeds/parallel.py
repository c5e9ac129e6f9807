"""The events of llama.cpp's first server for several users at once: text and nothing else. No I/O here."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from weft import Finished, Token
from weft.server import request_fields
from weft.server.run import sse
from weft.server.run.generation import Event, Generation
from weft.server.seeds.schemas import Content
from weft.settings import Settings

__all__ = ["Stream", "prepared"]

_NEUTRAL: dict[str, Callable[[Any], bool]] = {
    # The events have no place for these, and do not say of which completion they are.
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


def prepared(data: request_fields.CompletionFields, _: Settings) -> request_fields.CompletionFields:
    """The same body, as one that asks for a stream of one completion: there is nothing else."""
    request_fields.refuse(data, _NEUTRAL)
    return msgspec.structs.replace(data, stream=True, n=1)


class Stream:
    """One event for each token that brings text."""

    def __init__(self, _: Generation) -> None:
        pass

    def frames(self, prompt: int, events: Sequence[Event]) -> list[bytes]:  # noqa: ARG002 (there is one)
        """The frames of events, in order."""
        return [sse.frame(Content(event.text)) for event in events if isinstance(event, Token | Finished) and event.text]

    def end(self) -> bytes:
        """Nothing: the connection's end is the stream's."""
        return b""
