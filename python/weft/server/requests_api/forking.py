"""Forks of branches of running generations."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from weft import Event, Finished, InvalidRequestError, Progress, PromptLogprobs, Request, Token
from weft.server.executor import Purpose
from weft.server.inference.generation import Generation, end_reason, stop_string
from weft.server.inference.submission import ForkSubmission
from weft.server.requests_api.schemas import Forked, ForkEnd, ForkEvent
from weft.server.response_fields.timings import timings
from weft.server.service import Service
from weft.server.streaming import sse
from weft.server.streaming.encoder import Encoder
from weft.work.threads import LONG_TEXT

MAX_REPARSED = 65_536
"""Maximum characters that the forks of one request may parse again for a chat's stream; a few milliseconds on the event loop."""


async def fork(
    service: Service, generation: Generation, branch: tuple[int, int], submission: ForkSubmission
) -> Forked | Generation:
    """Forks a branch, given by its prompt and its index.

    Returns:
        The forks' branch indices in the source's stream, or a generation if they have their own stream.

    Raises:
        InvalidRequestError: A field is out of range, or the source's response cannot include forks.
        WeftError: As [`Stream.fork`][weft.Stream.fork].
    """
    if not submission.own_stream and not generation.accepts_forks:
        message = "the response of this request cannot include forks; set stream to true to give the forks their own response"
        raise InvalidRequestError("stream", message)
    size = LONG_TEXT + 1 if submission.scans_vocabulary else submission.size
    options, append = await service.executor.run(Purpose.PROMPT, size, _read, service, generation, branch[0], submission)
    making = asyncio.create_task(_fork(service, generation, branch, submission, options=options, append=append))
    try:
        # Completes even if the client disconnects: unregistered forks could not be cancelled.
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(_close_unread)
        raise


def _read(service: Service, generation: Generation, prompt: int, submission: ForkSubmission) -> tuple[dict[str, Any], list[int]]:
    """Returns the forks' options, and the tokens to append to the text before them."""
    options, append = service.request_builder.fork_options(generation.submission.prompts[prompt], submission)
    if isinstance(schema := options.get("json_schema"), str):
        generation.schema_parts.of(schema)
    return options, append


async def _fork(
    service: Service,
    generation: Generation,
    branch: tuple[int, int],
    submission: ForkSubmission,
    *,
    options: dict[str, Any],
    append: list[int],
) -> Forked | Generation:
    prompt, index = branch
    source = generation.branch(prompt, index)
    try:
        appended = service.engine.detokenize(append) if append else ""
    except InvalidRequestError as error:
        raise InvalidRequestError("append", error.message) from None
    if generation.is_chat and not submission.own_stream:
        _check_reparsed(generation, branch, submission.n, appended)
    with generation.texts[prompt].registering_forks():
        stream = generation.streams[prompt]
        made = await (stream.fork_stream if submission.own_stream else stream.fork)(
            index, n=submission.n, at=submission.at, unit=submission.unit, append=append or None, **options
        )
        if isinstance(made, list):
            seed = options.get("seed")
            first = (source.seed or 0) - index + made[0] if seed is None else seed
            request = _fork_request(source, len(made), {**options, "seed": first % 2**32})
            with_top = options["logprobs"] is not None if "logprobs" in options else generation.requests_top_logprobs(*branch)
            generation.add_forks(prompt, made, request, appended, requests_top_logprobs=with_top)
            return Forked(made)
    alone = msgspec.structs.replace(generation.submission, stream=True, branches=())
    requests = [_fork_request(source, submission.n, {**options, "seed": made.seed})]
    return service.track(Generation(alone, requests, [made], service.usage_counters, owner=generation.owner))


def _check_reparsed(generation: Generation, branch: tuple[int, int], n: int, appended: str) -> None:
    prompt, index = branch
    texts = generation.texts[prompt]
    n_before = len(texts.before(index)) + len(texts.text(index)) + len(appended)
    if n * n_before > MAX_REPARSED:
        message = (
            f"each of the {n} forks would parse {n_before} characters again for the stream of this chat,"
            f" at most {MAX_REPARSED} together; set stream to true to give the forks their own stream, or request fewer"
        )
        raise InvalidRequestError("n", message)


def _fork_request(source: Request, n: int, options: Mapping[str, Any]) -> Request:
    """Returns the request of forks of a branch, as reported to clients."""
    return msgspec.structs.replace(source, **{**options, "n": n, "branches": ()})


def _close_unread(making: "asyncio.Task[Forked | Generation]") -> None:
    """Closes a stream of forks whose client has disconnected."""
    if not making.cancelled() and making.exception() is None and isinstance(made := making.result(), Generation):
        made.close()


class ForkEncoder(Encoder):
    """Encodes one event per token, and one with `"stop": true` at the end of each fork."""

    def __init__(self, generation: Generation) -> None:
        generation.accepts_forks = True
        self._id: str | msgspec.UnsetType = generation.id

    def frames(self, prompt: int, event: Event) -> list[bytes]:  # noqa: ARG002 (there is one)
        """Returns the frame of the next event, if it is of a fork."""
        return [] if isinstance(event, Progress | PromptLogprobs) else [sse.frame(self._payload(event))]

    def _payload(self, event: Token | Finished) -> ForkEvent | ForkEnd:
        shared: dict[str, Any] = {"id": self._id, "index": event.index, "content": event.text}
        self._id = msgspec.UNSET
        if isinstance(event, Finished):
            usage = event.usage
            return ForkEnd(
                **shared,
                reason=end_reason(event),
                stopping_word=stop_string(event) or "",
                truncated=event.is_truncated,
                tokens_predicted=usage.n_predicted,
                tokens_evaluated=usage.n_prompt,
                tokens_computed=usage.n_computed,
                timings=timings([usage]),
            )
        return ForkEvent(**shared, tokens=[event.token], id_slot=event.slot, tokens_predicted=event.n_predicted)
