"""The completions of one HTTP request, possibly for several prompts."""

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, cast

import msgspec

from weft import CacheExplanation, Event, Finished, InvalidRequestError, PromptLogprobs, Request, Stream, Token
from weft._native import CompactLogprobs
from weft.chat.answer.branches import BranchParsers
from weft.chat.answer.parts import PLAIN, AnswerForm
from weft.chat.branch_texts import BranchTexts
from weft.request.branches import branch_requests
from weft.server.inference.schema_parts import SchemaParts
from weft.server.inference.submission import Submission
from weft.server.inference.usage_counters import UsageCounters
from weft.server.request_line import current_line
from weft.server.streaming.fair_scheduler import FairScheduler, current_scheduler, yield_fairly

logger = logging.getLogger(__name__)

MAX_WEIGHT = 4_000
"""Maximum events and logprobs read from several streams in one step of the event loop, about a millisecond of its time."""

MAX_STREAMS = 100
"""Maximum streams of a request that are read or awaited before other tasks run."""

STREAM_WEIGHT = MAX_WEIGHT // MAX_STREAMS
"""Cost of reading from a stream, in events."""


HEAVY = 100
"""Logprobs per token from which a request counts as heavy. Such requests read one per iteration of the event loop: converting
what has gathered takes milliseconds, and the engine wakes all of them together."""


class Generation:
    """The completion streams of all prompts of a request, read together. Dropping a generation cancels it."""

    def __init__(
        self,
        submission: Submission,
        requests: Sequence[Request],
        streams: Sequence[Stream],
        usage_counters: UsageCounters,
        *,
        owner: str | None = None,
        schema_parts: SchemaParts | None = None,
        form: AnswerForm | None = None,
    ) -> None:
        self.id = uuid.uuid4().hex
        """Id in the requests API."""
        self.owner = owner
        """Digest of the client's API key."""
        self.created = time.time()
        """Unix timestamp in seconds."""
        self.submission = submission
        self.schema_parts = schema_parts or SchemaParts()
        """Parsed schemas for the response's fields."""
        self.requests = requests
        self.streams = streams
        self._usage_counters = usage_counters
        self._waiting: dict[asyncio.Task[None], int] = {}
        """Tasks that wait for a stream, with its prompt."""
        self._readable: deque[int] = deque()
        """Prompts whose streams have events."""
        self._arrived = asyncio.Event()
        self._is_begun = False
        self._scheduler: FairScheduler | None = None
        """Scheduler of the event loop that reads the generation."""
        self._branches: dict[int, list[Request]] = {}
        """Branch requests of prompts whose branches differ."""
        n_probs = [max(request.logprobs or 0, request.prompt_logprobs or 0) for request in requests]
        self._is_heavy = max([*n_probs, *(branch.template.logprobs or 0 for branch in submission.branches)], default=0) >= HEAVY
        self.accepts_forks = False
        """True if the response can include forks. Set by its encoder."""
        self.is_chat = form is not None
        self._forks: dict[tuple[int, int], Request] = {}
        """Requests of forked branches."""
        self._with_top_logprobs: set[tuple[int, int]] = set()
        self._with_new_line: set[tuple[int, int]] = set()
        self.texts = [BranchTexts(request.n) for request in requests]
        """Texts of the branches of each prompt, as far as they have been read."""
        # A chat has one prompt. No reference to this object, which must be released without the garbage collector.
        self.parsers = BranchParsers(PLAIN if form is None else form, self.texts[0].before)
        """Parsers of a chat's branches. Each event must be read once, in order."""
        self._n_predicted: dict[tuple[int, int], int] = {}
        self._reasons: dict[tuple[int, int], str] = {}
        """Finish reasons of finished branches."""
        self.explanations: dict[int, CacheExplanation] = {}
        """Cache explanations received so far, by prompt, if the request asked for them."""
        self.closed = asyncio.Event()
        self._at_close: list[Callable[[], object]] = []
        if (line := current_line()) is not None:
            line.expect(requests, self._n_predicted)
        self._line = line

    def branch(self, prompt: int, index: int) -> Request:
        """Returns the request of one branch, with the branch's own seed."""
        if (fork := self._forks.get((prompt, index))) is not None:
            return fork
        request = self.requests[prompt]
        if not request.branches or index >= len(request.branches):
            return msgspec.structs.replace(request, seed=(self.streams[prompt].seed + index) % 2**32)
        if prompt not in self._branches:
            self._branches[prompt] = branch_requests(request)
        return self._branches[prompt][index]

    def requests_top_logprobs(self, prompt: int, index: int) -> bool:
        """Returns whether a branch is a fork that requested top logprobs itself."""
        return (prompt, index) in self._with_top_logprobs

    def add_forks(
        self, prompt: int, indices: Sequence[int], request: Request, appended: str, *, requests_top_logprobs: bool
    ) -> None:
        """Registers forks that share the stream of their source.

        Args:
            prompt: Index of the prompt.
            indices: Branch indices of the forks.
            request: The forks' request; its seed is the first fork's.
            appended: Text between the source's text and the forks'.
            requests_top_logprobs: Whether the forks request top logprobs.
        """
        if requests_top_logprobs:
            self._with_top_logprobs.update((prompt, index) for index in indices)
        seed = request.seed or 0
        for nth, index in enumerate(indices):
            self._forks[prompt, index] = msgspec.structs.replace(request, seed=(seed + nth) % 2**32)
        self.texts[prompt].add_forks(self.streams[prompt], indices, appended)

    def n_branches(self, prompt: int) -> int:
        """Returns the number of branches of a prompt, including forks."""
        return self.requests[prompt].n + sum(of == prompt for of, _ in self._forks)

    async def next_batches(self) -> list[tuple[int, list[Event]]]:
        """Returns events that are ready, by prompt: at least one, or none once all branches have finished."""
        try:
            batches = await (self._next_of_one() if len(self.streams) == 1 else self._next_of_several())
        except InvalidRequestError as error:  # A remote engine reports invalid requests on the first read.
            raise self.submission.rename_parameter(error) from None
        if not self._is_heavy:
            if self._scheduler is None:
                self._scheduler = current_scheduler()
            self._scheduler.mark_light_task()
        for prompt, events in batches:
            await self.texts[prompt].wait_for_forks(events)
            ended = self._watch(prompt, events)
            for finished in ended:
                self._usage_counters.add(finished.usage)
            if self._line is not None:
                self._line.watch(prompt, events, ended)
        return batches

    def _watch(self, prompt: int, events: Sequence[Event]) -> list[Finished]:
        """Records generated text. Returns the final events among `events`."""
        ended: list[Finished] = []
        texts, n_predicted = self.texts[prompt], self._n_predicted
        for event in events:
            if isinstance(event, Token):  # The most frequent case.
                branch = prompt, event.index
                n_predicted[branch] = event.n_predicted
            elif isinstance(event, Finished):
                branch = prompt, event.index
                self._end(branch, event)
                ended.append(event)
            else:
                continue
            texts.add(event)
            if "\n" in event.text:
                self._with_new_line.add(branch)
        return ended

    def _end(self, branch: tuple[int, int], finished: Finished) -> None:
        self._reasons[branch] = end_reason(finished)
        if finished.explanation is not None:
            explanation = self._with_volatile_count(finished.explanation)
            if self.submission.template.explain_cache:
                self.explanations[branch[0]] = explanation
            logger.debug("the cache for request %d: %s", explanation.request_id, explanation.short)

    def _with_volatile_count(self, explanation: CacheExplanation) -> CacheExplanation:
        return msgspec.structs.replace(explanation, n_volatile=self.submission.n_volatile)

    def explanations_by_now(self) -> dict[int, CacheExplanation]:
        """Returns `explanations` including those of prompts whose first branch is running. Thread-safe."""
        if not self.submission.template.explain_cache:
            return {}
        by_prompt = ((prompt, self.explanations.get(prompt) or stream.explanation) for prompt, stream in enumerate(self.streams))
        return {prompt: self._with_volatile_count(explanation) for prompt, explanation in by_prompt if explanation is not None}

    def n_predicted(self, prompt: int, index: int) -> int:
        """Returns the number of tokens of a branch read so far."""
        return self._n_predicted.get((prompt, index), 0)

    def reason(self, prompt: int, index: int) -> str | None:
        """Returns the finish reason of a branch, or None if its end has not been read."""
        return self._reasons.get((prompt, index))

    @property
    def n_finished(self) -> int:
        """Finished branches of all prompts."""
        return len(self._reasons)

    def unfinished(self) -> list[tuple[int, int]]:
        """Returns the unfinished branches as pairs of prompt and branch index."""
        branches = ((prompt, index) for prompt in range(len(self.requests)) for index in range(self.n_branches(prompt)))
        return [branch for branch in branches if branch not in self._reasons]

    def explanation(self, prompt: int, finished: Finished) -> CacheExplanation | msgspec.UnsetType:
        """Returns the cache explanation that this final event must include, or UNSET."""
        return msgspec.UNSET if finished.explanation is None else self.explanations.get(prompt, msgspec.UNSET)

    def has_new_line(self, prompt: int, index: int) -> bool:
        """Returns whether the text of a branch read so far contains a line break."""
        return (prompt, index) in self._with_new_line

    async def _next_of_one(self) -> list[tuple[int, list[Event]]]:
        if self._is_heavy:
            await self.streams[0].readable()
            await yield_fairly()
        batch = await self.streams[0].next_batch(compact=True)
        return [(0, batch)] if batch else []

    async def _next_of_several(self) -> list[tuple[int, list[Event]]]:
        # Only streams with events are visited: of a thousand prompts, perhaps eight are running.
        if not self._is_begun:
            self._is_begun = True
            for prompt in range(len(self.streams)):
                if prompt % MAX_STREAMS == 0:
                    await asyncio.sleep(0)
                self._wait(prompt)
        while self._waiting or self._readable:
            await self._arrived.wait()
            # Yields before each read, also if more events are ready.
            await (yield_fairly() if self._is_heavy else asyncio.sleep(0))
            batches = []
            weight = 0
            while self._readable and weight < MAX_WEIGHT:
                prompt = self._readable.popleft()
                weight += STREAM_WEIGHT
                if batch := await self.streams[prompt].next_batch(compact=True):
                    batches.append((prompt, batch))
                    weight += sum(map(_weight, batch))
                    self._wait(prompt)
            if not self._readable:
                self._arrived.clear()
            if batches:
                return sorted(batches, key=lambda item: item[0])
        return []

    def _wait(self, prompt: int) -> None:
        task = asyncio.create_task(_readable(self.streams[prompt]))
        self._waiting[task] = prompt
        task.add_done_callback(self._arrive)

    def _arrive(self, task: asyncio.Task[None]) -> None:
        prompt = self._waiting.pop(task, None)
        if prompt is None or task.cancelled():
            return
        # The read raises the stream's error.
        task.exception()
        self._readable.append(prompt)
        self._arrived.set()

    def at_close(self, call: Callable[[], object]) -> None:
        """Registers a function that is called when the generation is closed, finished or not."""
        self._at_close.append(call)

    def close(self) -> None:
        """Cancels unfinished branches. May be called twice."""
        calls, self._at_close = self._at_close, []
        for call in calls:
            call()
        waiting, self._waiting = self._waiting, {}
        for task in waiting:
            task.cancel()
        for stream in self.streams:
            stream.close()
        self.closed.set()


def token_logprobs(token: Token) -> CompactLogprobs | None:
    """Returns the logprobs of a token, which a [`Generation`] reads in compact form."""
    return cast("CompactLogprobs | None", token.logprobs)


def prompt_logprobs(event: PromptLogprobs) -> Sequence[CompactLogprobs | None]:
    """Returns the logprobs of a part of a prompt, in compact form."""
    return cast("Sequence[CompactLogprobs | None]", event.logprobs)


async def _readable(stream: Stream) -> None:
    await stream.readable()


def _weight(event: Event) -> int:
    """Returns the cost of converting an event, relative to one without logprobs."""
    match event:
        case Token() if (logprobs := token_logprobs(event)) is not None:
            return 1 + len(logprobs)
        case PromptLogprobs():
            return 1 + sum(1 + len(one) for one in prompt_logprobs(event) if one is not None)
        case _:
            return 1


EndReason = Literal["end", "stop", "length", "context_full", "cancelled"]
"""`stop` by whether an end token or a stop string ended the text, and `length` by whether the context was full."""


def end_reason(finished: Finished) -> EndReason:
    """Returns why a branch ended."""
    if finished.finish_reason == "stop":
        return "end" if stop_string(finished) is None else "stop"
    return "context_full" if finished.is_context_full else finished.finish_reason


def stop_string(finished: Finished) -> str | None:
    """Returns the stop string that ended a branch, or None."""
    return finished.stop_reason if isinstance(finished.stop_reason, str) else None
