"""Single-request batching: a body becomes requests, events become its events. No I/O here."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from weft import Finished, Progress, PromptLogprobs
from weft.server import request_fields
from weft.server.run import sse
from weft.server.run.generation import Event, Generation
from weft.server.seeds.schemas import BranchStopped, BranchText, Done, Start
from weft.settings import Settings

__all__ = ["Stream", "prepared"]

DEFAULT_N = 8
"""Completions of a prompt where neither the request nor the settings say."""

STOPPED = ("end", "stop")
"""Reasons to end that are no limit."""

_NEUTRAL: dict[str, Callable[[Any], bool]] = {
    # The events have no place for these.
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


def prepared(data: request_fields.CompletionFields, settings: Settings) -> request_fields.CompletionFields:
    """The same body, as one that asks for a stream; the settings say how many completions where it does not."""
    request_fields.refuse(data, _NEUTRAL)
    n = settings.n or DEFAULT_N if data.n is None and data.n_cmpl is None else data.n
    return msgspec.structs.replace(data, stream=True, n=n)


class Stream:
    """One event for each token that brings text, in order of time; completions are numbered over all prompts.

    A token whose text is held back (half a character, what may be the beginning of a stop string) has no event of its own:
    its text comes with the token that completes it, or, where none does, in an event of its own before the branch's end.
    """

    def __init__(self, generation: Generation) -> None:
        self._n = generation.requests[0].n
        self._count = sum(request.n for request in generation.requests)
        self._n_events: Counter[int] = Counter()
        self._is_started = False

    def frames(self, prompt: int, events: Sequence[Event]) -> list[bytes]:
        """The frames of events of one prompt, in order."""
        frames = [] if self._is_started else [sse.spaced_frame(Start(self._count))]
        self._is_started = True
        return [*frames, *(self._frame(prompt, event) for event in events)]

    def _frame(self, prompt: int, event: Event) -> bytes:
        if isinstance(event, Progress | PromptLogprobs):  # No request for these events asks for them.
            return b""
        index = prompt * self._n + event.index
        text = b""
        if event.text:
            self._n_events[index] += 1
            text = sse.spaced_frame(BranchText(index, event.text))
        if not isinstance(event, Finished):
            return text
        return text + sse.spaced_frame(BranchStopped(index, self._n_events[index] - 1, int(event.reason in STOPPED)))

    def end(self) -> bytes:
        """The last event."""
        return sse.spaced_frame(Done(self._count))
