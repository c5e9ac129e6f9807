"""Single-request batching, with the events of llama-srb-api: conversion of bodies and events. No I/O here."""

from collections import Counter

import msgspec
from litestar.response.base import ASGIResponse

from weft import Event, Finished, Progress, PromptLogprobs
from weft.server.inference.generation import Generation
from weft.server.request_fields import unsupported
from weft.server.request_fields.fields import CompletionFields
from weft.server.service import Service
from weft.server.streaming import sse
from weft.server.streaming.encoder import Encoder
from weft.settings import Settings

DEFAULT_N = 8
"""Default number of completions per prompt."""

MODEL_PATHS = ("/v1/models", "/models")
"""Paths of the model list."""

_OWN_NEUTRAL: dict[str, unsupported.Accepts] = {
    "best_of": lambda value: value == 1,
    "echo": lambda value: value is False,
    "logprobs": lambda _: False,
    "stream_options": lambda value: not value.include_usage,
    "suffix": lambda value: value == "",
    "verbose": lambda value: value is False,
}

_NEUTRAL = dict(sorted({**_OWN_NEUTRAL, **unsupported.TEXT_ONLY}.items()))
"""Values of fields that the events cannot represent otherwise. Of several such fields, the first by name is reported."""


def prepared(data: CompletionFields, settings: Settings) -> CompletionFields:
    """Returns the body as a streamed request; the settings provide the number of completions if it is missing."""
    unsupported.refuse(data, _NEUTRAL)
    n = settings.n or DEFAULT_N if data.n is None and data.n_cmpl is None else data.n
    return msgspec.structs.replace(data, stream=True, n=n)


def _frame(event: str, **fields: object) -> bytes:
    return sse.spaced_frame({"event": event, **fields})


class ChunkEncoder(Encoder):
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
        """Returns the frames of the next event of a prompt: first the number of completions."""
        frames = [] if self._is_started else [_frame("start", count=self._count)]
        self._is_started = True
        if isinstance(event, Progress | PromptLogprobs):  # Requests in this format cannot enable these events.
            return frames
        index = prompt * self._n + event.index
        if event.text:
            self._n_events[index] += 1
            frames.append(_frame("stream", index=index, text=event.text))
        if isinstance(event, Finished):
            # A length of -1 stands for no event, and a stop of 0 for the end at a limit.
            frames.append(_frame("stop", index=index, length=self._n_events[index] - 1, stop=int(event.finish_reason == "stop")))
        return frames

    def end(self) -> bytes:
        """Returns the last event."""
        return _frame("done", count=self._count)


def waiting_models(service: Service) -> ASGIResponse:
    """Returns the list of models before the model is loaded, with the engine's state."""
    model = {"object": "model", "id": service.model_name, "engine_state": service.state}
    return ASGIResponse(body=msgspec.json.encode({"object": "list", "data": [model]}), media_type="application/json")
