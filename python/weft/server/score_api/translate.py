"""Conversion of bodies of `/score` to tasks, and of scores to reports. No I/O here."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from weft import InvalidRequestError, Logprob, Score, ScoredToken
from weft.scoring import MAX_PROBS
from weft.server.inference.submission import Piece
from weft.server.response_fields.probabilities import TokenLogprob
from weft.server.score_api import schemas

LOWEST = -3.4028234663852886e38
"""Reported in place of minus infinity, which JSON cannot represent: the lowest 32-bit float."""


class Task(NamedTuple):
    """A prompt and its possible continuations, as text and tokens."""

    prompt: Sequence[Piece]
    continuations: Sequence[Sequence[Piece]]


def tasks(data: schemas.ScoreBody) -> list[Task]:
    """Returns the prompts of a body with their continuations."""
    if data.tasks is None:
        return [_task(data, "")]
    if data.prompt is not None or data.continuations is not None:
        raise InvalidRequestError("tasks", "tasks stand in the place of prompt and continuations; leave one of the two out")
    return [_task(task, f"tasks[{position}].") for position, task in enumerate(data.tasks)]


def n_probs(data: schemas.ScoreBody) -> int:
    """Returns the number of top logprobs to report for each token."""
    n = data.n_probs or 0
    if not 0 <= n <= MAX_PROBS:
        raise InvalidRequestError("n_probs", f"n_probs is {n}; it must be 0 to {MAX_PROBS}")
    return n


def _task(task: schemas.ScoreTask, where: str) -> Task:
    if task.prompt is None:
        raise InvalidRequestError(f"{where}prompt", f"{where}prompt must be given")
    if task.continuations is None:
        raise InvalidRequestError(
            f"{where}continuations", f"{where}continuations must be given, as a list of texts or of lists of tokens"
        )
    return Task(_pieces(task.prompt), [_pieces(text) for text in task.continuations])


def _pieces(text: str | list[int | str]) -> Sequence[Piece]:
    return [text] if isinstance(text, str) else text


def report(data: schemas.ScoreBody, model_name: str, scores: Sequence[Sequence[Score]]) -> bytes:
    """Returns the report of scores as JSON."""
    tells_tokens = data.tokens is not False
    results = [
        [_continuation(position, score, data.n_probs or 0, tells_tokens=tells_tokens) for position, score in enumerate(of_task)]
        for of_task in scores
    ]
    made = schemas.ScoreReport(model=model_name, usage=_usage(scores))
    if data.tasks is None:
        made.scores = results[0]
    else:
        made.results = [schemas.TaskScores(position, result) for position, result in enumerate(results)]
    return msgspec.json.encode(made)


def _usage(scores: Sequence[Sequence[Score]]) -> schemas.ScoreUsage:
    each = [score for of_task in scores for score in of_task]
    n_prompt = sum(of_task[0].usage.n_prompt - of_task[0].n_tokens for of_task in scores if of_task)
    return schemas.ScoreUsage(n_prompt, sum(score.n_tokens for score in each), sum(score.n_computed for score in each))


def _continuation(index: int, score: Score, n_probs: int, *, tells_tokens: bool) -> schemas.ContinuationScore:
    return schemas.ContinuationScore(
        index=index,
        logprob=_finite(score.logprob),
        n_tokens=score.n_tokens,
        is_greedy=score.is_greedy,
        tokens=[_token(token, n_probs) for token in score.tokens] if tells_tokens else msgspec.UNSET,
    )


def _token(token: ScoredToken, n_probs: int) -> schemas.TokenScore:
    return schemas.TokenScore(
        id=token.token,
        token=token.text,
        bytes=list(token.bytes),
        logprob=_finite(token.logprob),
        is_greedy=token.is_greedy,
        top_logprobs=[_top_logprob(top) for top in token.top] if n_probs else msgspec.UNSET,
    )


def _top_logprob(top: Logprob) -> TokenLogprob:
    return TokenLogprob(top.token, top.text, list(top.bytes), _finite(top.logprob))


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
