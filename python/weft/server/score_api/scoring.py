"""Scoring continuations of prompts."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from weft import InvalidRequestError, Logprob, Score, ScoredToken
from weft.fields.validation import check_range
from weft.request.internal import InternalRequest
from weft.scoring import MAX_PROBS, continuation_tokens, scores
from weft.server.auth import current_owner
from weft.server.executor import Purpose
from weft.server.inference.submission import Piece, size_of
from weft.server.memory_budget import Reservation
from weft.server.request_fields.adapters import adapters
from weft.server.response_fields.probabilities import TokenLogprob
from weft.server.score_api import schemas
from weft.server.score_api.schemas import ScoreBody
from weft.server.service import Service

MAX_CONTINUATIONS = 4096
"""Maximum continuations of a request, over all prompts."""

MAX_SCORED = 1 << 18
"""Maximum logprobs of a request: of each token of each continuation, and of its alternatives."""

SCORED_BYTES = 512
"""Memory of one logprob, as an object and as JSON."""


LOWEST = -3.4028234663852886e38
"""Reported in place of minus infinity, which JSON cannot represent: the lowest 32-bit float."""


class Task(NamedTuple):
    """A prompt and its possible continuations, as text and tokens."""

    prompt: Sequence[Piece]
    continuations: Sequence[Sequence[Piece]]


def _tasks(data: schemas.ScoreBody) -> list[Task]:
    """Returns the prompts of a body with their continuations."""
    if data.tasks is None:
        return [_task(data, "")]
    if data.prompt is not None or data.continuations is not None:
        raise InvalidRequestError("tasks", "tasks cannot be combined with prompt and continuations; leave one of the two out")
    return [_task(task, f"tasks[{position}].") for position, task in enumerate(data.tasks)]


def _n_probs(data: schemas.ScoreBody) -> int:
    """Returns the number of top logprobs to report for each token."""
    n = data.n_probs or 0
    check_range("n_probs", n, 0, MAX_PROBS)
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


def _report(data: schemas.ScoreBody, model_name: str, scores: Sequence[Sequence[Score]]) -> bytes:
    """Returns the report of scores as JSON."""
    includes_tokens = data.tokens is not False
    results = [
        [
            _continuation(position, score, data.n_probs or 0, includes_tokens=includes_tokens)
            for position, score in enumerate(of_task)
        ]
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


def _continuation(index: int, score: Score, n_probs: int, *, includes_tokens: bool) -> schemas.ContinuationScore:
    return schemas.ContinuationScore(
        index=index,
        logprob=_finite(score.logprob),
        n_tokens=score.n_tokens,
        is_greedy=score.is_greedy,
        tokens=[_token(token, n_probs) for token in score.tokens] if includes_tokens else msgspec.UNSET,
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


async def score(service: Service, data: ScoreBody, collected: Reservation) -> list[bytes]:
    """Scores the continuations of a body and returns the JSON.

    Raises:
        ContextOverflowError: A prompt with a continuation does not fit.
        InvalidRequestError: A continuation is empty, there are too many, or a field is missing or out of range.
        QueueFullError: Too many requests are queued.
        TextsWaitingError: Too many texts are queued.
        AnswerTooLargeError: The response would exceed its limit.
        AnswersTooLargeError: All responses together would exceed their limit.
        ClientDisconnectedError: The client has disconnected.
        EngineStoppedError: The engine was stopped.
        NotSupportedError: The server or the model computes embeddings only.
    """
    tasks, n_probs, lora = _tasks(data), _n_probs(data), adapters(data.lora)
    service.check_generates()
    n_continuations = sum(len(task.continuations) for task in tasks)
    if n_continuations > MAX_CONTINUATIONS:
        message = f"there are {n_continuations} continuations; at most {MAX_CONTINUATIONS} are allowed"
        raise InvalidRequestError("continuations", message)
    size = sum(size_of(task.prompt) + sum(map(size_of, task.continuations)) for task in tasks)
    tokenized = await service.executor.run(Purpose.PROMPT, size, _tokenized, service, tasks)
    n_scored = sum(len(text) for _, continuations in tokenized for text in continuations) * (1 + n_probs)
    if n_scored > MAX_SCORED:
        message = f"the continuations require {n_scored} log-probabilities; at most {MAX_SCORED} are allowed"
        raise InvalidRequestError("continuations", message)
    collected.grow(n_scored * SCORED_BYTES)
    template = InternalRequest(
        prompt=(),
        use_cache=data.cache_prompt is not False,
        adapters=service.request_builder.adapters(lora),
        priority=data.priority or 0,
        owner=current_owner(),
    )
    try:
        made = await scores(service.engine, tokenized, template, n_probs)
    except InvalidRequestError as error:
        if error.param != "adapters":
            raise
        raise InvalidRequestError("lora", error.message.replace("adapters", "lora")) from None
    for each in made:
        for one in each:
            service.usage_counters.add(one.usage)
    return [await service.executor.run(Purpose.TEXT, n_scored, _report, data, service.model_name, made)]


def _tokenized(service: Service, tasks: Sequence[Task]) -> list[tuple[Sequence[int], list[Sequence[int]]]]:
    """Tokenizes prompts and continuations."""
    for task in tasks:
        for text in task.continuations:
            service.request_builder.check_length([*task.prompt, *text])
    return [
        (
            service.request_builder.prompt(task.prompt),
            [_continuation_tokens(service, text) for text in task.continuations],
        )
        for task in tasks
    ]


def _continuation_tokens(service: Service, text: Sequence[Piece]) -> Sequence[int]:
    model = service.engine.model
    parts = ([piece] if isinstance(piece, int) else continuation_tokens(model, piece) for piece in text)
    return [token for part in parts for token in part]
