"""Complete, not streamed, results of a request."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Any, Self

import msgspec

from weft._native import Stream
from weft.errors import AnswerTooLargeError
from weft.events import CacheExplanation, Event, Finished, FinishReason, Logprobs, PromptLogprobs, Token, Usage
from weft.fields.meta import described

__all__ = ["MAX_BYTES", "Choice", "Completion", "event_bytes"]

MAX_BYTES = 256 * 1024 * 1024
"""Default limit of one completion, in bytes: about a million tokens, or 2,000 tokens with 1,000 top logprobs each."""

_TOKEN_BYTES = 192
"""Estimated bytes of one token, without the characters of its text."""

_LOGPROB_BYTES = 144
"""Estimated bytes of one token id with its logprob."""


@described
class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the completions of a prompt."""

    index: Annotated[int, "index of the choice, `0 <= index < n`"]
    text: Annotated[str, "full text, without the stop string that ended it"]
    token_ids: Annotated[tuple[int, ...], "generated token ids, including an end token"]
    finish_reason: Annotated[FinishReason, "see `Finished.finish_reason`"]
    stop_reason: Annotated[str | int | None, "stop string or end token; see `Finished.stop_reason`"]
    is_context_full: Annotated[bool, 'True if the finish reason is "length" because the context was full']
    is_truncated: Annotated[bool, "True if the context was full; see `Finished.is_truncated`"]
    usage: Annotated[Usage, "token counts and timings"]
    logprobs: Annotated[tuple[Logprobs, ...], "one entry per token if the request has `logprobs`, else empty"]
    score: Annotated[float | None, "ranking score of a beam search; see `Finished.score`"] = None
    explanation: Annotated[CacheExplanation | None, "causes of cache misses; see `Finished.explanation`"] = None


@described
class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """Completions of a prompt."""

    choices: Annotated[tuple[Choice, ...], "the completions, in order of index"]
    seed: Annotated[int, "seed of choice 0; choice `i` used `seed + i` (modulo 2³²)"]
    n_prompt: Annotated[int, "prompt length in tokens"]
    prompt_logprobs: Annotated[
        tuple[Logprobs | None, ...],
        "one entry per prompt token (None for the first) if the request set `prompt_logprobs`, else empty",
    ]

    @property
    def text(self) -> str:
        """Text of choice 0."""
        return self.choices[0].text

    @property
    def texts(self) -> list[str]:
        """Text of each choice."""
        return [choice.text for choice in self.choices]

    @property
    def n_computed(self) -> int:
        """Prompt tokens that were computed for this request, summed over all choices."""
        return sum(choice.usage.n_computed for choice in self.choices)

    @property
    def n_cached(self) -> int:
        """Prompt tokens that were reused from the cache, summed over all choices: `n * n_prompt - n_computed`."""
        return sum(choice.usage.n_cached for choice in self.choices)

    @property
    def n_predicted(self) -> int:
        """Generated tokens, summed over all choices, including end tokens."""
        return sum(choice.usage.n_predicted for choice in self.choices)

    @classmethod
    async def collect(cls, stream: Stream, *, max_bytes: int = MAX_BYTES) -> Self:
        """Reads `stream` to its end and returns the completions.

        Closes the stream on success, error and cancellation, which frees its slots.

        Args:
            stream: The stream to read. Events that were read before are missing from the completions.
            max_bytes: Maximum estimated size of the completions: 192 bytes per token, 144 per logprob, and one per character.

        Raises:
            AnswerTooLargeError: The completions exceed `max_bytes`.
            WeftError: Any error of the stream.
        """
        tokens: defaultdict[int, list[Token]] = defaultdict(list)
        finished: dict[int, Finished] = {}
        prompt_logprobs: list[Logprobs | None] = []
        n_bytes = 0
        try:
            while events := await stream.next_batch():
                for event in events:
                    n_bytes += event_bytes(event)
                    if n_bytes > max_bytes:
                        raise AnswerTooLargeError(max_bytes)
                    if isinstance(event, Token):
                        tokens[event.index].append(event)
                    elif isinstance(event, Finished):
                        finished[event.index] = event
                    elif isinstance(event, PromptLogprobs):
                        prompt_logprobs += event.logprobs
        finally:
            stream.close()
        choices = tuple(_choice(tokens[index], finished[index]) for index in sorted(finished))
        return cls(choices=choices, seed=stream.seed, n_prompt=stream.n_prompt, prompt_logprobs=tuple(prompt_logprobs))


def event_bytes(event: Event) -> int:
    """Returns the estimated bytes that an event adds to a completion."""
    match event:
        case Token(text=text, logprobs=logprobs):
            return _TOKEN_BYTES + len(text) + _bytes_of_logprobs(logprobs)
        case Finished(text=text):
            return _TOKEN_BYTES + len(text)
        case PromptLogprobs(logprobs=logprobs):
            return sum(map(_bytes_of_logprobs, logprobs))
        case _:
            return 0


def _bytes_of_logprobs(logprobs: Logprobs | None) -> int:
    return 0 if logprobs is None else _LOGPROB_BYTES * (1 + len(logprobs.top))


def _choice(tokens: Sequence[Token], finished: Finished) -> Choice:
    fields: dict[str, Any] = {name: getattr(finished, name) for name in Choice.__struct_fields__ if hasattr(finished, name)}
    fields["text"] = "".join(token.text for token in tokens) + finished.text
    logprobs = tuple(token.logprobs for token in tokens if token.logprobs is not None)
    return Choice(**fields, token_ids=tuple(token.token for token in tokens), logprobs=logprobs)
