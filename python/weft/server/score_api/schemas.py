"""Fields of `/score`."""

from typing import Any

import msgspec

from weft.server.response_fields.probabilities import TokenLogprob

TextOrTokens = str | list[int | str]


class ScoreTask(msgspec.Struct):
    """A prompt and its possible continuations. A list is one text, of tokens and texts."""

    prompt: TextOrTokens | None = None
    continuations: list[TextOrTokens] | None = None


class ScoreBody(ScoreTask):
    """`POST /score`: one prompt with its continuations, or several such `tasks`."""

    tasks: list[ScoreTask] | None = None
    n_probs: int | None = None
    """Number of most likely alternatives to report for each token."""
    tokens: bool | None = None
    """Reports each token in addition to the sums; defaults to true."""
    cache_prompt: bool | None = None
    lora: Any = None
    priority: int | None = None


class TokenScore(TokenLogprob):
    """One token of a continuation; `is_greedy` if it is the most likely one."""

    is_greedy: bool
    top_logprobs: list[TokenLogprob] | msgspec.UnsetType = msgspec.UNSET


class ContinuationScore(msgspec.Struct):
    """Likelihood of a continuation; `logprob` is the sum over its tokens."""

    index: int
    logprob: float
    n_tokens: int
    is_greedy: bool
    tokens: list[TokenScore] | msgspec.UnsetType = msgspec.UNSET


class TaskScores(msgspec.Struct):
    """Scores of the continuations of one prompt, in order."""

    index: int
    scores: list[ContinuationScore]


class ScoreUsage(msgspec.Struct):
    """Token counts: prompts (each counted once), continuations, and computed tokens of both."""

    prompt_tokens: int
    continuation_tokens: int
    computed_tokens: int


class ScoreReport(msgspec.Struct):
    """Response of `/score`: `scores` if the body has one prompt, `results` if it has tasks."""

    model: str
    usage: ScoreUsage
    scores: list[ContinuationScore] | msgspec.UnsetType = msgspec.UNSET
    results: list[TaskScores] | msgspec.UnsetType = msgspec.UNSET
