"""Stream format of forks that have their own stream."""

from collections.abc import Sequence

import msgspec

from weft import Finished, Progress, PromptLogprobs
from weft.server.requests_api.schemas import ForkEnd, ForkEvent
from weft.server.response_fields import timings
from weft.server.run.end_reason import end_reason, stop_string
from weft.server.run.generation import Event, Generation
from weft.server.streaming import sse

__all__ = ["ForkEncoder"]


class ForkEncoder:
    """Encodes one event per token, and one with `"stop": true` at the end of each fork."""

    def __init__(self, generation: Generation) -> None:
        generation.accepts_forks = True
        self._id: str | msgspec.UnsetType = generation.id

    def frames(self, prompt: int, events: Sequence[Event]) -> list[bytes]:  # noqa: ARG002 (there is one)
        """Returns the frames of events, in order."""
        return [sse.frame(self._payloads(event)) for event in events if not isinstance(event, Progress | PromptLogprobs)]

    def _payloads(self, event: Event) -> ForkEvent | ForkEnd:
        name, self._id = self._id, msgspec.UNSET
        if isinstance(event, Finished):
            usage = event.usage
            return ForkEnd(
                id=name,
                index=event.index,
                content=event.text,
                reason=end_reason(event),
                stopping_word=stop_string(event) or "",
                truncated=event.is_truncated,
                tokens_predicted=usage.n_predicted,
                tokens_evaluated=usage.n_prompt,
                tokens_computed=usage.n_computed,
                timings=timings([usage]),
            )
        assert not isinstance(event, Progress | PromptLogprobs), "those are of no branch"
        return ForkEvent(
            id=name,
            index=event.index,
            content=event.text,
            tokens=[event.token],
            id_slot=event.slot,
            tokens_predicted=event.n_predicted,
        )

    def end(self) -> bytes:
        """Returns nothing; the last fork's final event ends the stream."""
        return b""
