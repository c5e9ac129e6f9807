"""The completions of one HTTP request, which may hold several prompts."""

import asyncio
from collections.abc import Sequence

from weft import Finished, Progress, PromptLogprobs, Request, Stream, Token
from weft.server.request_line import current_line
from weft.server.run.submission import Submission
from weft.server.run.tally import Tally

__all__ = ["Event", "Generation"]

Event = Token | Finished | Progress | PromptLogprobs
"""What a stream of completions yields."""


class Generation:
    """One stream of completions for each prompt of a request, read as one. Dropping it cancels them."""

    def __init__(
        self,
        asked: Submission,
        requests: Sequence[Request],
        streams: Sequence[Stream],
        tally: Tally,
        *,
        keeps_text: bool = False,
    ) -> None:
        self.asked = asked
        self.requests = requests
        self.streams = streams
        self._tally = tally
        self._reading: dict[asyncio.Task[list[Event]], int] = {}
        self._is_begun = False
        self._with_new_line: set[tuple[int, int]] = set()
        self._texts: dict[tuple[int, int], list[str]] | None = {} if keeps_text else None
        self.closed = asyncio.Event()
        if (line := current_line()) is not None:
            line.expect(requests)
        self._line = line

    async def next_batches(self) -> list[tuple[int, list[Event]]]:
        """All events that are ready, with the position of their prompt; at least one, and none once all have finished."""
        if len(self.streams) == 1:
            batch = await self.streams[0].next_batch()
            batches = [(0, batch)] if batch else []
        else:
            batches = await self._next_of_several()
        for prompt, events in batches:
            self._tally.watch(events)
            self._watch(prompt, events)
            if self._line is not None:
                self._line.watch(prompt, events)
        return batches

    def _watch(self, prompt: int, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Progress | PromptLogprobs):
                continue
            if "\n" in event.text:
                self._with_new_line.add((prompt, event.index))
            if self._texts is not None:
                self._texts.setdefault((prompt, event.index), []).append(event.text)

    def text(self, prompt: int, index: int) -> str | None:
        """The text of a branch, as far as it was read; None where it is not kept."""
        return None if self._texts is None else "".join(self._texts.get((prompt, index), []))

    def has_new_line(self, prompt: int, index: int) -> bool:
        """Whether the text of a branch, as far as it was read, has a line break."""
        return (prompt, index) in self._with_new_line

    async def _next_of_several(self) -> list[tuple[int, list[Event]]]:
        if not self._is_begun:
            self._is_begun = True
            for prompt in range(len(self.streams)):
                self._read(prompt)
        while self._reading:
            done, _ = await asyncio.wait(self._reading, return_when=asyncio.FIRST_COMPLETED)
            batches = []
            for task in done:
                prompt = self._reading.pop(task)
                if batch := task.result():
                    batches.append((prompt, batch))
                    self._read(prompt)
            if batches:
                return sorted(batches, key=lambda item: item[0])
        return []

    def _read(self, prompt: int) -> None:
        self._reading[asyncio.create_task(_next_batch(self.streams[prompt]))] = prompt

    def close(self) -> None:
        """Cancels what still runs. May be called twice."""
        for task in self._reading:
            task.cancel()
        self._reading.clear()
        for stream in self.streams:
            stream.close()
        self.closed.set()


async def _next_batch(stream: Stream) -> list[Event]:
    return await stream.next_batch()
