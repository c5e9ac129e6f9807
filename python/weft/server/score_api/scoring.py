"""Scoring continuations of prompts."""

from collections.abc import Sequence

from weft import InvalidRequestError
from weft.request.internal import InternalRequest
from weft.scoring import continuation_tokens, scores
from weft.server.auth import current_owner
from weft.server.executor import Purpose
from weft.server.inference.submission import Piece, size_of
from weft.server.memory_budget import Reservation
from weft.server.request_fields.adapters import adapters
from weft.server.score_api import translate
from weft.server.score_api.schemas import ScoreBody
from weft.server.service import Service

MAX_CONTINUATIONS = 4096
"""Maximum continuations of a request, over all prompts."""

MAX_SCORED = 1 << 18
"""Maximum logprobs of a request: of each token of each continuation, and of its alternatives."""

SCORED_BYTES = 512
"""Memory of one logprob, as an object and as JSON."""


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
    tasks, n_probs, lora = translate.tasks(data), translate.n_probs(data), adapters(data.lora)
    service.check_generates()
    n_continuations = sum(len(task.continuations) for task in tasks)
    if n_continuations > MAX_CONTINUATIONS:
        message = f"there are {n_continuations} continuations; at most {MAX_CONTINUATIONS} are scored at once"
        raise InvalidRequestError("continuations", message)
    size = sum(size_of(task.prompt) + sum(map(size_of, task.continuations)) for task in tasks)
    tokenized = await service.executor.run(Purpose.PROMPT, size, _tokenized, service, tasks)
    n_scored = sum(len(text) for _, continuations in tokenized for text in continuations) * (1 + n_probs)
    if n_scored > MAX_SCORED:
        message = f"the continuations ask for {n_scored} log-probabilities; at most {MAX_SCORED} are told at once"
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
    return [await service.executor.run(Purpose.TEXT, n_scored, translate.report, data, service.model_name, made)]


def _tokenized(service: Service, tasks: Sequence[translate.Task]) -> list[tuple[Sequence[int], list[Sequence[int]]]]:
    """Tokenizes prompts and continuations."""
    for task in tasks:
        for text in task.continuations:
            service.request_builder.check_length([*task.prompt, *text])
    return [
        (service.request_builder.prompt(task.prompt), [_continuation(service, text) for text in task.continuations])
        for task in tasks
    ]


def _continuation(service: Service, pieces: Sequence[Piece]) -> Sequence[int]:
    model = service.engine.model
    tokens: list[int] = []
    for piece in pieces:
        tokens += [piece] if isinstance(piece, int) else continuation_tokens(model, piece)
    return tokens
