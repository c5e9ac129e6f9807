"""The fields of `/score`."""

from typing import Any

import msgspec

from weft.server.response_fields.probabilities import TokenLogprob

__all__ = ["ContinuationScore", "ScoreBody", "ScoreReport", "ScoreTask", "ScoreUsage", "TaskScores", "TokenScore"]

TextOrTokens = str | list[int | str]


class ScoreTask(msgspec.Struct):
    """A prompt and what may follow it. A list is one text, of tokens and texts."""

    prompt: TextOrTokens | None = None
    continuations: list[TextOrTokens] | None = None


class ScoreBody(ScoreTask):
    """`POST /score`: one prompt with its continuations, or several such `tasks`."""

    tasks: list[ScoreTask] | None = None
    n_probs: int | None = None
    """Most likely tokens that are told in the place of each."""
    tokens: bool | None = None
    """Whether each token is told, and not the sums alone; true where nothing is said."""
    cache_prompt: bool | None = None
    lora: Any = None
    priority: int | None = None


class TokenScore(msgspec.Struct):
    """One token of a continuation; `is_greedy` says that no other is more likely there."""

    id: int
    token: str
    bytes: list[int]
    logprob: float
    is_greedy: bool
    top_logprobs: list[TokenLogprob] | msgspec.UnsetType = msgspec.UNSET


class ContinuationScore(msgspec.Struct):
    """How likely a continuation is: `logprob` is the sum of those of its tokens."""

    index: int
    logprob: float
    n_tokens: int
    is_greedy: bool
    tokens: list[TokenScore] | msgspec.UnsetType = msgspec.UNSET


class TaskScores(msgspec.Struct):
    """The scores of the continuations of one prompt, in their order."""

    index: int
    scores: list[ContinuationScore]


class ScoreUsage(msgspec.Struct):
    """Tokens of all prompts, each once, and of all continuations; and of both, how many were computed."""

    prompt_tokens: int
    continuation_tokens: int
    computed_tokens: int


class ScoreReport(msgspec.Struct):
    """What `/score` answers: `scores` where the body has one prompt, `results` where it has tasks."""

    model: str
    usage: ScoreUsage
    scores: list[ContinuationScore] | msgspec.UnsetType = msgspec.UNSET
    results: list[TaskScores] | msgspec.UnsetType = msgspec.UNSET
