"""A body with a thousand prompts: what it is turned to for, in one turn of the event loop, is bounded."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import weft
from tests.server.scripted import ScriptedStream, finished
from weft.server.inference import generation
from weft.server.inference.generation import Generation
from weft.server.inference.usage_counters import UsageCounters

N_PROMPTS = 1_000


class Turns:
    """Counts the turns of the event loop, and what is done in each."""

    def __init__(self) -> None:
        self.n = 0
        self.counts: dict[str, Counter[int]] = {"waits": Counter(), "reads": Counter()}
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self.n += 1
        asyncio.get_running_loop().call_soon(self._turn)

    def count(self, what: str) -> None:
        self.counts[what][self.n] += 1

    def most(self, what: str) -> int:
        return max(self.counts[what].values())


class CountedStream(ScriptedStream):
    """Says when it is waited for and when it is read."""

    def __init__(self, turns: Turns) -> None:
        super().__init__([[finished(0)], []])
        self._turns = turns

    async def readable(self) -> None:
        self._turns.count("waits")

    async def next_batch(self, *, compact: bool) -> Sequence[Any]:
        self._turns.count("reads")
        return cast("Sequence[Any]", self._steps.pop(0))


async def test_so_many_streams_are_waited_for_and_read_in_turns_of_a_hundred() -> None:
    turns = Turns()
    streams = cast("list[weft.Stream]", [CountedStream(turns) for _ in range(N_PROMPTS)])
    told = Generation(cast("Any", SimpleNamespace(branches=())), [weft.Request(prompt=[1])] * N_PROMPTS, streams, UsageCounters())
    batches = []
    while batch := await told.next_batches():
        batches += batch
    assert sorted(prompt for prompt, _ in batches) == list(range(N_PROMPTS))
    # Those that were waited for anew come beside those that are read.
    assert turns.most("waits") <= generation.MAX_STREAMS
    assert turns.most("reads") <= generation.MAX_STREAMS
