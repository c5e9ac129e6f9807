"""Single-request batching: conversion of bodies and events. No I/O here."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from weft import Event, Finished, Progress, PromptLogprobs
from weft.server.compat.schemas import BranchStopped, BranchText, Done, Start
from weft.server.inference.generation import Generation
from weft.server.request_fields import neutral
from weft.server.request_fields.fields import CompletionFields
from weft.server.streaming import sse
from weft.server.streaming.responses import StreamEncoder
from weft.settings import Settings

DEFAULT_N = 8
"""Default number of completions per prompt."""

_NEUTRAL: dict[str, Callable[[Any], bool]] = {
    # The events cannot represent these.
    "best_of": lambda value: value == 1,
    "echo": lambda value: value is False,
    "explain_cache": lambda value: value is False,
    "logprobs": lambda _: False,
    "n_probs": lambda value: value == 0,
    "post_sampling_probs": lambda value: value is False,
    "response_fields": lambda value: not value,
    "return_progress": lambda value: value is False,
    "return_tokens": lambda value: value is False,
    "stream_options": lambda value: not value.include_usage,
    "suffix": lambda value: value == "",
    "timings_per_token": lambda value: value is False,
    "verbose": lambda value: value is False,
}


def prepared(data: CompletionFields, settings: Settings) -> CompletionFields:
    """Returns the body as a streamed request; the settings provide the number of completions if it is missing."""
    neutral.refuse(data, _NEUTRAL)
    n = settings.n or DEFAULT_N if data.n is None and data.n_cmpl is None else data.n
    return msgspec.structs.replace(data, stream=True, n=n)


class ChunkEncoder(StreamEncoder):
    """Encodes one event for each token that adds text, in order of time. Completions are numbered over all prompts.

    Withheld text (half a character, or a possible beginning of a stop string) comes with the token that completes it, or else in
    a separate event before the branch's end.
    """

    def __init__(self, generation: Generation) -> None:
        self._n = generation.requests[0].n
        self._count = sum(request.n for request in generation.requests)
        self._n_events: Counter[int] = Counter()
        self._is_started = False

    def frames(self, prompt: int, event: Event) -> list[bytes]:
        """Returns the frames of the next event of a prompt."""
        frames = [] if self._is_started else [sse.spaced_frame(Start(self._count))]
        self._is_started = True
        return [*frames, self._frame(prompt, event)]

    def _frame(self, prompt: int, event: Event) -> bytes:
        if isinstance(event, Progress | PromptLogprobs):  # Requests in this format cannot enable these events.
            return b""
        index = prompt * self._n + event.index
        text = b""
        if event.text:
            self._n_events[index] += 1
            text = sse.spaced_frame(BranchText(index, event.text))
        if not isinstance(event, Finished):
            return text
        return text + sse.spaced_frame(BranchStopped(index, self._n_events[index] - 1, int(event.finish_reason == "stop")))

    def end(self) -> bytes:
        """Returns the last event."""
        return sse.spaced_frame(Done(self._count))
