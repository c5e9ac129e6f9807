"""The completions of one HTTP request, which may hold several prompts."""

import asyncio
from collections.abc import Sequence
from typing import cast

from weft import Completions, Finished, Request, Token
from weft.server.tally import Tally

__all__ = ["Generation"]


class Generation:
    """One stream of completions for each prompt of a request, read as one. Dropping it cancels them."""

    def __init__(self, requests: Sequence[Request], streams: Sequence[Completions], tally: Tally) -> None:
        self.requests = requests
        self.streams = streams
        self._tally = tally
        self._reading: dict[asyncio.Task[list[Token | Finished]], int] = {}
        self._is_begun = False
        self.closed = asyncio.Event()

    async def next_batches(self) -> list[tuple[int, list[Token | Finished]]]:
        """All events that are ready, with the position of their prompt; at least one, and none once all have finished."""
        if len(self.streams) == 1:
            batch = await _next_batch(self.streams[0])
            batches = [(0, batch)] if batch else []
        else:
            batches = await self._next_of_several()
        for _, events in batches:
            self._tally.watch(events)
        return batches

    async def _next_of_several(self) -> list[tuple[int, list[Token | Finished]]]:
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


async def _next_batch(stream: Completions) -> list[Token | Finished]:
    # What else a stream can yield is asked for by no request here.
    return cast(list[Token | Finished], await stream.next_batch())
