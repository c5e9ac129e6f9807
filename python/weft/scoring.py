"""Scoring of continuations: log-probabilities of texts after a prompt."""

import math
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypedDict

import msgspec

from weft._native import Model, Stream
from weft.completion import Completion
from weft.errors import InvalidRequestError, QueueFullError
from weft.events import Logprob, Usage
from weft.fields.meta import described
from weft.fields.validation import check_range
from weft.request import Request

if TYPE_CHECKING:
    from weft.engine import Engine

__all__ = ["MAX_PROBS", "Continuation", "Score", "ScoreOptions", "ScoredToken", "continuation_tokens", "scores"]

Continuation: TypeAlias = str | Sequence[int]
"""A candidate text or its token ids."""

MAX_PROBS = 1_000
"""Maximum top logprobs per position."""

N_AHEAD = 64
"""Requests that are submitted ahead of the one being read, which keeps every slot busy."""


class ScoreOptions(TypedDict, total=False):
    """Fields of `Request` that apply to scoring, as keywords of `Engine.score`."""

    priority: int
    max_token_gap_ms: float | None
    n_batch: int | None
    adapters: Sequence[tuple[int, float]] | None
    use_cache: bool


@described
class ScoredToken(Logprob, frozen=True, gc=False):
    """One token of a continuation, with its log-probability given all tokens before it."""

    is_greedy: Annotated[bool, "True if no other token is more likely at this position"]
    top: Annotated[tuple[Logprob, ...], "the `top_logprobs` most likely tokens at this position, most likely first"] = ()


@described
class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probability of a continuation after its prompt."""

    logprob: Annotated[float, "natural logarithm of its probability: the sum over its tokens"]
    tokens: Annotated[tuple[ScoredToken, ...], "its tokens, in order"]
    usage: Annotated[Usage, "token counts and timings of prompt and continuation together"]

    @property
    def n_tokens(self) -> int:
        """Number of tokens of the continuation."""
        return len(self.tokens)

    @property
    def n_computed(self) -> int:
        """Tokens of the prompt and the continuation that were computed, not cached."""
        return self.usage.n_computed

    @property
    def is_greedy(self) -> bool:
        """True if every token is the most likely at its position, as in greedy decoding."""
        return all(token.is_greedy for token in self.tokens)


def continuation_tokens(model: Model, text: str) -> Sequence[int]:
    """Returns the token ids of a text that continues another one.

    Adds neither a BOS token nor the leading space of some vocabularies, and does not parse control tokens.

    Raises:
        InvalidRequestError: The text has a lone surrogate.
    """
    try:
        spelt = text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError("continuations", "a continuation has a lone surrogate, which UTF-8 cannot encode") from None
    return model.tokenize_on(spelt, parse_special=False)


async def scores(
    engine: "Engine", tasks: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]], template: Request, top_logprobs: int = 0
) -> list[list[Score]]:
    """Returns the scores of the continuations of each prompt, in token ids. `template` is a request whose prompt is replaced.

    Raises:
        InvalidRequestError: A prompt or a continuation has no tokens, or `top_logprobs` is out of range.
        WeftError: Any error of a request.
    """
    check_range("top_logprobs", top_logprobs, 0, MAX_PROBS)
    _check(tasks, engine.model.n_vocab)
    requests = _requests(tasks, msgspec.structs.replace(template, max_tokens=0, n=1, prompt_logprobs=max(top_logprobs, 1)))
    made = [score async for score in _scores_in_order(engine, requests, top_logprobs)]
    rest = iter(made)
    return [[next(rest) for _ in continuations] for _, continuations in tasks]


def _check(tasks: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]], n_vocab: int) -> None:
    for prompt, continuations in tasks:
        if not len(prompt):
            raise InvalidRequestError("prompt", "the prompt is empty; it must have at least one token")
        for position, continuation in enumerate(continuations):
            if not len(continuation):
                raise InvalidRequestError("continuations", f"continuation {position} is empty; it must have at least one token")
            for token in (min(continuation), max(continuation)):
                if not 0 <= token < n_vocab:
                    message = f"continuation {position} has token {token}, which is not in the vocabulary ({n_vocab} tokens)"
                    raise InvalidRequestError("continuations", message)


def _requests(tasks: Iterable[tuple[Sequence[int], Sequence[Sequence[int]]]], template: Request) -> Iterator[Request]:
    for prompt, continuations in tasks:
        for continuation in continuations:
            yield msgspec.structs.replace(template, prompt=[*prompt, *continuation], prompt_logprobs_from=len(prompt))


async def _scores_in_order(engine: "Engine", requests: Iterator[Request], top_logprobs: int) -> AsyncIterator[Score]:
    """Yields scores in order. Requests are submitted ahead, so that they are computed together; the oldest is read first."""
    streams: deque[Stream] = deque()
    try:
        for request in requests:
            is_queued = False
            while not is_queued:
                if len(streams) < N_AHEAD:
                    try:
                        streams.append(engine.stream(request))
                        is_queued = True
                        continue
                    except QueueFullError:
                        # Own requests will leave the queue.
                        if not streams:
                            raise
                yield await _score(streams.popleft(), top_logprobs)
        while streams:
            yield await _score(streams.popleft(), top_logprobs)
    finally:
        for stream in streams:
            stream.close()


async def _score(stream: Stream, top_logprobs: int) -> Score:
    completion = await Completion.collect(stream, max_bytes=sys.maxsize)
    tokens = tuple(
        ScoredToken(
            *(entry.chosen.token, entry.chosen.bytes, entry.chosen.logprob),
            is_greedy=entry.chosen.logprob >= entry.top[0].logprob,
            top=entry.top[:top_logprobs],
        )
        for entry in completion.prompt_logprobs
        if entry is not None
    )
    return Score(logprob=math.fsum(token.logprob for token in tokens), tokens=tokens, usage=completion.choices[0].usage)
