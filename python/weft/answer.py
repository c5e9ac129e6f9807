"""Complete (non-streamed) answer to a request."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Literal, Self

import msgspec

from weft._native import Stream
from weft.errors import AnswerTooLargeError
from weft.events import CacheExplanation, Event, Finished, Logprobs, PromptLogprobs, Token, Usage
from weft.fields.meta import FieldMeta, described

__all__ = ["MAX_BYTES", "Answer", "Branch"]

MAX_BYTES = 256 * 1024 * 1024
"""Default limit of one collected answer, in bytes: about a million tokens, or 2,000 tokens with 1,000 top logprobs each."""

_TOKEN_BYTES = 192
"""Estimated bytes of one token, without the characters of its text."""

_LOGPROB_BYTES = 144
"""Estimated bytes of one token id with its logprob."""


@described
class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """One completion of a request."""

    index: Annotated[int, FieldMeta("index of the branch, `0 <= index < n`")]
    text: Annotated[str, FieldMeta("full text, without the stop string that ended it")]
    tokens: Annotated[tuple[int, ...], FieldMeta("generated token ids, including an end token")]
    reason: Annotated[
        Literal["end", "stop", "length", "context_full", "cancelled"], FieldMeta("finish reason; see `Finished.reason`")
    ]
    stop: Annotated[str | None, FieldMeta('stop string that ended the branch, if the reason is "stop"')]
    usage: Annotated[Usage, FieldMeta("token counts and timings")]
    logprobs: Annotated[tuple[Logprobs, ...], FieldMeta("one entry per token if the request's `n_probs` is above 0, else empty")]
    truncated: Annotated[bool, FieldMeta("True if the context was full; see `Finished.truncated`")]
    explanation: Annotated[CacheExplanation | None, FieldMeta("explanation of cache misses; see `Finished.explanation`")] = None
    score: Annotated[float | None, FieldMeta("ranking score of a beam search; see `Finished.score`")] = None


@described
class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Complete answer to a request: its branches, in order of index."""

    branches: Annotated[tuple[Branch, ...], FieldMeta("one branch per completion, in order of index")]
    seed: Annotated[int, FieldMeta("seed of branch 0; branch `i` used `seed + i` (modulo 2³²)")]
    n_prompt: Annotated[int, FieldMeta("prompt length in tokens")]
    prompt_logprobs: Annotated[
        tuple[Logprobs | None, ...],
        FieldMeta("one entry per prompt token (None for the first) if the request set `prompt_logprobs`, else empty"),
    ]

    @property
    def text(self) -> str:
        """Text of branch 0."""
        return self.branches[0].text

    @property
    def texts(self) -> list[str]:
        """Text of each branch."""
        return [branch.text for branch in self.branches]

    @property
    def n_computed(self) -> int:
        """Prompt tokens that were computed for this request, summed over all branches."""
        return sum(branch.usage.n_computed for branch in self.branches)

    @property
    def n_cached(self) -> int:
        """Prompt tokens that were reused from the cache, summed over all branches: `n * n_prompt - n_computed`."""
        return sum(branch.usage.n_cached for branch in self.branches)

    @property
    def n_predicted(self) -> int:
        """Generated tokens, summed over all branches, including end tokens."""
        return sum(branch.usage.n_predicted for branch in self.branches)

    @classmethod
    async def collect(cls, stream: Stream, *, max_bytes: int = MAX_BYTES) -> Self:
        """Reads `stream` to its end and returns the answer.

        Closes the stream on success, error and cancellation, which frees its slots.

        Args:
            stream: The stream to read. Events that were read before are missing from the answer.
            max_bytes: Maximum estimated size of the answer: 192 bytes per token, 144 per logprob, and one per character.

        Raises:
            AnswerTooLargeError: The answer exceeds `max_bytes`.
            WeftError: Any error of the stream.
        """
        tokens: defaultdict[int, list[Token]] = defaultdict(list)
        finished: dict[int, Finished] = {}
        prompt_logprobs: list[Logprobs | None] = []
        n_bytes = 0
        try:
            while events := await stream.next_batch():
                for event in events:
                    n_bytes += _bytes_of(event)
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
        branches = tuple(_branch(tokens[index], finished[index]) for index in sorted(finished))
        return cls(branches=branches, seed=stream.seed, n_prompt=stream.n_prompt, prompt_logprobs=tuple(prompt_logprobs))


def _bytes_of(event: Event) -> int:
    """Returns the estimated bytes that an event adds to the answer."""
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


def _branch(tokens: Sequence[Token], finished: Finished) -> Branch:
    return Branch(
        index=finished.index,
        text="".join(token.text for token in tokens) + finished.text,
        tokens=tuple(token.token for token in tokens),
        reason=finished.reason,
        stop=finished.stop,
        usage=finished.usage,
        logprobs=tuple(token.logprobs for token in tokens if token.logprobs is not None),
        truncated=finished.truncated,
        explanation=finished.explanation,
        score=finished.score,
    )
