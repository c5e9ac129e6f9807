"""Stream format of forks that have their own stream."""

import msgspec

from weft import Event, Finished, Progress, PromptLogprobs, Token
from weft.server.inference.end_reason import end_reason, stop_string
from weft.server.inference.generation import Generation
from weft.server.requests_api.schemas import ForkEnd, ForkEvent
from weft.server.response_fields.timings import timings
from weft.server.streaming import sse
from weft.server.streaming.responses import StreamEncoder


class ForkEncoder(StreamEncoder):
    """Encodes one event per token, and one with `"stop": true` at the end of each fork."""

    def __init__(self, generation: Generation) -> None:
        generation.accepts_forks = True
        self._id: str | msgspec.UnsetType = generation.id

    def frames(self, prompt: int, event: Event) -> list[bytes]:  # noqa: ARG002 (there is one)
        """Returns the frame of the next event, if it is of a fork."""
        return [] if isinstance(event, Progress | PromptLogprobs) else [sse.frame(self._payload(event))]

    def _payload(self, event: Token | Finished) -> ForkEvent | ForkEnd:
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
        return ForkEvent(
            id=name,
            index=event.index,
            content=event.text,
            tokens=[event.token],
            id_slot=event.slot,
            tokens_predicted=event.n_predicted,
        )
