"""The completions of one HTTP request, which may hold several prompts."""

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, cast

import msgspec

from weft import CacheExplanation, Event, Finished, InvalidRequest, Progress, PromptLogprobs, Request, Stream, Token
from weft._native import CompactLogprobs
from weft.request.branches import branch_requests
from weft.server.request_line import current_line
from weft.server.run.schema_parts import SchemaParts
from weft.server.run.submission import Submission
from weft.server.run.tally import Tally
from weft.server.run.writing import LoopTurns, next_turn, turns_here

__all__ = ["Event", "Generation", "drawn", "told"]

logger = logging.getLogger(__name__)

MAX_WEIGHT = 4_000
"""Events and log-probabilities that are taken out of several streams at once: about a millisecond of the event loop's time."""

MAX_STREAMS = 100
"""Streams of one request that are waited for, or read, before others have their turn."""

STREAM_WEIGHT = MAX_WEIGHT // MAX_STREAMS
"""What it costs to turn to a stream, in events."""


HEAVY = 100
"""Of requests that are told so many log-probabilities for each token, one alone is served each time that the event loop goes
round: what they were told since costs milliseconds of its time to take up, and all of them are woken together."""


class _Fork(NamedTuple):
    """Where a branch comes from that was forked from another one of its stream."""

    source: int
    n_said: int
    """Tokens of that one which it continues."""
    appended: str
    """What was put between them and its own text."""
    unshown: str = ""
    """Text of that one before this, which neither shows."""
    n_shown_again: int = 0
    """Characters at the end of its text up to there that this one shows again."""


class Generation:
    """One stream of completions for each prompt of a request, read as one. Dropping it cancels them."""

    def __init__(
        self,
        asked: Submission,
        requests: Sequence[Request],
        streams: Sequence[Stream],
        tally: Tally,
        *,
        owner: str | None = None,
        schema_parts: SchemaParts | None = None,
    ) -> None:
        self.id = uuid.uuid4().hex
        """By which it is found while it runs."""
        self.owner = owner
        """Whose key asked for it."""
        self.created = time.time()
        """In seconds since 1970."""
        self.asked = asked
        self.schema_parts = schema_parts or SchemaParts()
        """What the answer is to tell of the schemas that its branches are held to."""
        self.requests = requests
        self.streams = streams
        self._tally = tally
        self._waiting: dict[asyncio.Task[None], int] = {}
        """Who waits for which prompt's stream."""
        self._readable: deque[int] = deque()
        """Prompts whose streams have something."""
        self._arrived = asyncio.Event()
        self._is_begun = False
        self._turns: LoopTurns | None = None
        """Those of the loop that it is read on."""
        self._branches: dict[int, list[Request]] = {}
        """The requests of each prompt's branches, where they differ."""
        n_probs = [max(request.n_probs, request.prompt_logprobs or 0) for request in requests]
        self._is_heavy = max([*n_probs, *(branch.template.n_probs for branch in asked.branches)], default=0) >= HEAVY
        self.takes_forks = False
        """Whether forks of its branches may come into its answer: whoever writes it says so."""
        self.reads_forks = False
        """Whether whoever tells of forks in its streams reads all text that stands before each of them again."""
        self._forks: dict[tuple[int, int], Request] = {}
        """What is asked of the branches that were forked from others."""
        self._origins: dict[tuple[int, int], _Fork] = {}
        """Where these come from."""
        self._n_forking = 0
        self._are_forks_known = asyncio.Event()
        self._with_likely: set[tuple[int, int]] = set()
        self._with_new_line: set[tuple[int, int]] = set()
        self._texts: dict[tuple[int, int], list[str]] = {}
        """What each branch has written: a text for each token, and what was held back until its end."""
        self._n_predicted: dict[tuple[int, int], int] = {}
        self._reasons: dict[tuple[int, int], str] = {}
        """Why each branch that has ended did."""
        self.explanations: dict[int, CacheExplanation] = {}
        """Why what was computed of each prompt had to be, where that was asked for, as far as it was told."""
        self.closed = asyncio.Event()
        self._at_close: list[Callable[[], object]] = []
        if (line := current_line()) is not None:
            line.expect(requests, self._n_predicted)
        self._line = line

    def branch(self, prompt: int, index: int) -> Request:
        """What is asked of one branch of a prompt, with its own seed."""
        if (fork := self._forks.get((prompt, index))) is not None:
            return fork
        request = self.requests[prompt]
        if not request.branches or index >= len(request.branches):
            return msgspec.structs.replace(request, seed=(self.streams[prompt].seed + index) % 2**32)
        if prompt not in self._branches:
            self._branches[prompt] = branch_requests(request)
        return self._branches[prompt][index]

    def asks_likely(self, prompt: int, index: int) -> bool:
        """Whether a branch is a fork that was asked to tell likely tokens, whatever the request was."""
        return (prompt, index) in self._with_likely

    def add_forks(self, prompt: int, indices: Sequence[int], request: Request, appended: str, *, asks_likely: bool) -> None:
        """Takes up forks that come into the stream of a prompt, and what they were asked for; its seed is the first one's.

        `appended` stands between the text of their branch and theirs; `asks_likely` says whether they are to tell likely tokens.
        """
        if asks_likely:
            self._with_likely.update((prompt, index) for index in indices)
        seed = request.seed or 0
        for nth, index in enumerate(indices):
            self._forks[prompt, index] = msgspec.structs.replace(request, seed=(seed + nth) % 2**32)
            if (place := self.streams[prompt].forked_at(index)) is not None:
                self._origins[prompt, index] = _Fork(*place, appended, *self.streams[prompt].forked_seam(index))

    @contextmanager
    def forking(self) -> Iterator[None]:
        """A block in which forks are asked for, and taken up: what they write may come before it is known what they are."""
        self._n_forking += 1
        self._are_forks_known.clear()
        try:
            yield
        finally:
            self._n_forking -= 1
            if not self._n_forking:
                self._are_forks_known.set()

    def _is_unknown(self, prompt: int, event: Event) -> bool:
        index = 0 if isinstance(event, Progress | PromptLogprobs) else event.index
        return index >= self.requests[prompt].n and (prompt, index) not in self._forks

    def n_branches(self, prompt: int) -> int:
        """How many branches of a prompt there are, those that were forked among them."""
        return self.requests[prompt].n + sum(of == prompt for of, _ in self._forks)

    async def next_batches(self) -> list[tuple[int, list[Event]]]:
        """Events that are ready, with the position of their prompt; at least one, and none once all have finished."""
        try:
            batches = await (self._next_of_one() if len(self.streams) == 1 else self._next_of_several())
        except InvalidRequest as error:  # An engine that is elsewhere refuses when it is read.
            raise self.asked.blame(error) from None
        if not self._is_heavy:
            if self._turns is None:
                self._turns = turns_here()
            self._turns.serve_little()
        if self._n_forking and any(self._is_unknown(prompt, event) for prompt, events in batches for event in events):
            await self._are_forks_known.wait()
        for prompt, events in batches:
            ended = self._watch(prompt, events)
            if ended:
                self._tally.watch(ended)
            if self._line is not None:
                self._line.watch(prompt, events, ended)
        return batches

    def _watch(self, prompt: int, events: Sequence[Event]) -> list[Finished]:
        """Takes what branches have written; returns the ends of those that have one here."""
        ended: list[Finished] = []
        texts, n_predicted = self._texts, self._n_predicted
        for event in events:
            if isinstance(event, Token):  # Nearly all are.
                branch = prompt, event.index
                n_predicted[branch] = event.n_predicted
            elif isinstance(event, Finished):
                branch = prompt, event.index
                self._end(branch, event)
                ended.append(event)
            else:
                continue
            text = event.text
            if "\n" in text:
                self._with_new_line.add(branch)
            if (written := texts.get(branch)) is not None:
                written.append(text)
            else:
                texts[branch] = [text]
        return ended

    def _end(self, branch: tuple[int, int], finished: Finished) -> None:
        self._reasons[branch] = finished.reason
        if finished.explanation is not None:
            told = self._told(finished.explanation)
            if self.asked.template.explain_cache:
                self.explanations[branch[0]] = told
            logger.debug("the cache for request %d: %s", told.request_id, told.short)

    def _told(self, explanation: CacheExplanation) -> CacheExplanation:
        return msgspec.structs.replace(explanation, n_volatile=self.asked.n_volatile)

    def explanations_by_now(self) -> dict[int, CacheExplanation]:
        """The `explanations`, with those of prompts whose first branch runs. Any thread may ask."""
        if not self.asked.template.explain_cache:
            return {}
        begun = ((prompt, self.explanations.get(prompt) or stream.explanation) for prompt, stream in enumerate(self.streams))
        return {prompt: self._told(explanation) for prompt, explanation in begun if explanation is not None}

    def text(self, prompt: int, index: int) -> str:
        """The text of a branch, as far as it was read."""
        return "".join(self._texts.get((prompt, index), []))

    def text_before(self, prompt: int, index: int) -> str:
        """What stands between a prompt and the text of a branch: nothing, but for one that was forked from another."""
        parts: list[str] = []
        while (fork := self._origins.get((prompt, index))) is not None:
            shown = "".join(self._texts.get((prompt, fork.source), [])[: fork.n_said])
            parts += [fork.appended, fork.unshown, shown[: len(shown) - fork.n_shown_again]]
            index = fork.source
        return "".join(reversed(parts))

    def n_predicted(self, prompt: int, index: int) -> int:
        """Tokens of a branch, as far as they were read."""
        return self._n_predicted.get((prompt, index), 0)

    def reason(self, prompt: int, index: int) -> str | None:
        """Why a branch ended; None where it was not read that it has."""
        return self._reasons.get((prompt, index))

    @property
    def n_finished(self) -> int:
        """Branches of all prompts that have ended."""
        return len(self._reasons)

    def unfinished(self) -> list[tuple[int, int]]:
        """The other branches, each with its prompt."""
        branches = ((prompt, index) for prompt in range(len(self.requests)) for index in range(self.n_branches(prompt)))
        return [branch for branch in branches if branch not in self._reasons]

    def explanation(self, prompt: int, finished: Finished) -> CacheExplanation | msgspec.UnsetType:
        """Why what was computed of a prompt had to be, where the end of this branch is to tell it."""
        return msgspec.UNSET if finished.explanation is None else self.explanations.get(prompt, msgspec.UNSET)

    def has_new_line(self, prompt: int, index: int) -> bool:
        """Whether the text of a branch, as far as it was read, has a line break."""
        return (prompt, index) in self._with_new_line

    async def _next_of_one(self) -> list[tuple[int, list[Event]]]:
        if self._is_heavy:
            await self.streams[0].readable()
            await next_turn()
        batch = await self.streams[0].next_batch(compact=True)
        return [(0, batch)] if batch else []

    async def _next_of_several(self) -> list[tuple[int, list[Event]]]:
        # Only the streams that have something are looked at: of a thousand prompts, eight may be running.
        if not self._is_begun:
            self._is_begun = True
            for prompt in range(len(self.streams)):
                if prompt % MAX_STREAMS == 0:
                    await asyncio.sleep(0)
                self._wait(prompt)
        while self._waiting or self._readable:
            await self._arrived.wait()
            # Whoever asks again at once, since there is more, does so in the next turn.
            await (next_turn() if self._is_heavy else asyncio.sleep(0))
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
        # What a stream ends with is raised where it is read.
        task.exception()
        self._readable.append(prompt)
        self._arrived.set()

    def at_close(self, call: Callable[[], object]) -> None:
        """Calls something when nobody reads any more, whether all was read or not."""
        self._at_close.append(call)

    def close(self) -> None:
        """Cancels what still runs. May be called twice."""
        calls, self._at_close = self._at_close, []
        for call in calls:
            call()
        waiting, self._waiting = self._waiting, {}
        for task in waiting:
            task.cancel()
        for stream in self.streams:
            stream.close()
        self.closed.set()


def drawn(token: Token) -> CompactLogprobs | None:
    """The log-probabilities of a token of a [`Generation`], which reads compact events."""
    return cast("CompactLogprobs | None", token.logprobs)


def told(stretch: PromptLogprobs) -> Sequence[CompactLogprobs | None]:
    """The same of a stretch of a prompt."""
    return cast("Sequence[CompactLogprobs | None]", stretch.logprobs)


async def _readable(stream: Stream) -> None:
    await stream.readable()


def _weight(event: Event) -> int:
    """What it costs to take an event up, in events without log-probabilities."""
    match event:
        case Token() if (logprobs := drawn(event)) is not None:
            return 1 + len(logprobs)
        case PromptLogprobs():
            return 1 + sum(1 + len(one) for one in told(event) if one is not None)
        case _:
            return 1
