"""From prompts and continuations to how likely these are."""

from collections.abc import Callable, Sequence

import msgspec

from weft import InvalidRequest, Request, Score
from weft.scoring import continuation_tokens
from weft.scoring import scores as scores_of
from weft.server.auth import current_owner
from weft.server.run.aside import Purpose
from weft.server.run.collected import Collected
from weft.server.run.service import Service
from weft.server.run.submission import Piece, size_of

__all__ = ["MAX_CONTINUATIONS", "MAX_SCORED", "Asked", "Task", "Written", "score"]

MAX_CONTINUATIONS = 4096
"""Most continuations of one request, over all of its prompts."""

MAX_SCORED = 1 << 18
"""Most log-probabilities that one request is told: of each token of each continuation, and of the likely ones in its place."""

SCORED_BYTES = 512
"""What a log-probability takes: as an object, and as JSON."""

Written = Callable[[Sequence[Sequence[Score]]], bytes]
"""How scores are written."""


class Task(msgspec.Struct, frozen=True):
    """A prompt and what may follow it, in texts and tokens."""

    prompt: Sequence[Piece]
    continuations: Sequence[Sequence[Piece]]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be scored."""

    tasks: Sequence[Task]
    n_probs: int
    use_cache: bool
    adapters: Sequence[tuple[int, float]] | None
    priority: int


async def score(service: Service, asked: Asked, write: Written, collected: Collected) -> list[bytes]:
    """The JSON of the scores of continuations.

    Raises:
        ContextOverflow: a prompt with a continuation does not fit.
        InvalidRequest: a text has no token, they are too many, or a field is out of range.
        QueueFull: too many requests wait.
        TextsWaitingError: too many texts wait.
        AnswerTooLargeError: the answer would be, alone or beside others (AnswersTooLargeError).
        ClientLeftError: the client has left.
        EngineStopped: the engine was stopped.
        NotSupportedError: the server makes vectors only.
        NotSupported: the model does.
    """
    service.check_writes()
    n_continuations = sum(len(task.continuations) for task in asked.tasks)
    if n_continuations > MAX_CONTINUATIONS:
        message = f"there are {n_continuations} continuations; at most {MAX_CONTINUATIONS} are scored at once"
        raise InvalidRequest("continuations", message)
    size = sum(size_of(task.prompt) + sum(map(size_of, task.continuations)) for task in asked.tasks)
    owner = current_owner()
    tasks = await service.aside.work(Purpose.PROMPT, size, _read, service, asked.tasks)
    n_scored = sum(len(text) for _, continuations in tasks for text in continuations) * (1 + asked.n_probs)
    if n_scored > MAX_SCORED:
        message = f"the continuations ask for {n_scored} log-probabilities; at most {MAX_SCORED} are told at once"
        raise InvalidRequest("continuations", message)
    collected.grow(n_scored * SCORED_BYTES)
    template = Request(
        prompt=(),
        use_cache=asked.use_cache,
        adapters=service.adapters(asked.adapters),
        priority=asked.priority,
        owner=owner,
    )
    try:
        made = await scores_of(service.engine, tasks, template, asked.n_probs)
    except InvalidRequest as error:
        if error.param != "adapters":
            raise
        raise InvalidRequest("lora", error.message.replace("adapters", "lora")) from None
    for each in made:
        for one in each:
            service.tally.add(one.usage)
    return [await service.aside.work(Purpose.TEXT, n_scored, write, made)]


def _read(service: Service, tasks: Sequence[Task]) -> list[tuple[Sequence[int], list[Sequence[int]]]]:
    """Prompts and continuations in tokens."""
    for task in tasks:
        for text in task.continuations:
            service.check_length([*task.prompt, *text])
    return [(service.prompt_now(task.prompt), [_continuation(service, text) for text in task.continuations]) for task in tasks]


def _continuation(service: Service, pieces: Sequence[Piece]) -> Sequence[int]:
    model = service.engine.model
    tokens: list[int] = []
    for piece in pieces:
        tokens += [piece] if isinstance(piece, int) else continuation_tokens(model, piece)
    return tokens
