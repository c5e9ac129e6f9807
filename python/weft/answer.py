"""The whole answer to a request."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Literal, Self

import msgspec

from weft._native import Stream
from weft.errors import AnswerTooLarge
from weft.events import CacheExplanation, Event, Finished, Logprobs, PromptLogprobs, Token, Usage
from weft.fields.about import About, described

__all__ = ["MAX_BYTES", "Answer", "Branch"]

MAX_BYTES = 256 * 1024 * 1024
"""Most that one whole answer may take, where nothing else is said: a million tokens, or two thousand with a thousand likely ones
beside each."""

_TOKEN_BYTES = 192
"""What a token takes beside the characters of its text."""

_LIKELY_BYTES = 144
"""What a token with its log-probability takes."""


@described
class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """One completion of the prompt."""

    index: Annotated[int, About("which one, `0 <= index < n`")]
    text: Annotated[str, About("the whole text, without a stop string that ended it")]
    tokens: Annotated[tuple[int, ...], About("the tokens that were drawn, an end token included")]
    reason: Annotated[Literal["end", "stop", "length", "context_full", "cancelled"], About("why it ended; see `Finished.reason`")]
    stop: Annotated[str | None, About('the stop string that ended it, where reason is "stop"')]
    usage: Annotated[Usage, About("what it cost")]
    logprobs: Annotated[tuple[Logprobs, ...], About("one entry per token where `n_probs` asked for them, else empty")]
    truncated: Annotated[bool, About("whether the context was full; see `Finished.truncated`")]
    explanation: Annotated[CacheExplanation | None, About("why the prompt had to be computed; see `Finished.explanation`")] = None
    score: Annotated[float | None, About("what ranks it among what a search has found; see `Finished.score`")] = None


@described
class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer to a request: its branches, in order of index."""

    branches: Annotated[tuple[Branch, ...], About("one for each completion that was asked for, in order of index")]
    seed: Annotated[int, About("the seed of branch 0; branch `i` drew with `seed + i` (modulo 2³²)")]
    n_prompt: Annotated[int, About("the prompt's length in tokens")]
    prompt_logprobs: Annotated[
        tuple[Logprobs | None, ...],
        About("one entry per token of the prompt, None for the first, where `prompt_logprobs` asked for them, else empty"),
    ]

    @property
    def text(self) -> str:
        """The text of branch 0."""
        return self.branches[0].text

    @property
    def texts(self) -> list[str]:
        """The text of every branch."""
        return [branch.text for branch in self.branches]

    @property
    def n_computed(self) -> int:
        """Prompt tokens that were computed for this request, over all branches."""
        return sum(branch.usage.n_computed for branch in self.branches)

    @property
    def n_cached(self) -> int:
        """Prompt tokens that the branches found computed, over all branches: `n * n_prompt - n_computed`."""
        return sum(branch.usage.n_cached for branch in self.branches)

    @property
    def n_predicted(self) -> int:
        """Tokens that were drawn, over all branches, end tokens included."""
        return sum(branch.usage.n_predicted for branch in self.branches)

    @classmethod
    async def collect(cls, stream: Stream, *, max_bytes: int = MAX_BYTES) -> Self:
        """Reads `stream` to its end.

        However this ends, the stream is closed: a cancelled task leaves no slot busy.

        Args:
            stream: What is read.
            max_bytes: Most bytes of memory that the answer may take, as they are counted here: 192 for each token, 144 for each
                log-probability, and one for each character.

        Raises:
            AnswerTooLarge: It would take more.
            WeftError: What reading the stream raises.
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
                        raise AnswerTooLarge(max_bytes)
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
    """What an event adds to the answer."""
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
    return 0 if logprobs is None else _LIKELY_BYTES * (1 + len(logprobs.top))


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
