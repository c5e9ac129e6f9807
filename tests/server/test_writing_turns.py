"""Those that have much to write take turns: whoever has little waits for one of them, however many they are."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

import weft
from tests.server.scripted import ScriptedStream, finished, token
from weft.server.run.generation import HEAVY, Generation
from weft.server.run.tally import Tally
from weft.server.run.writing import next_turn

N_WRITERS = 20


async def test_of_many_that_write_much_one_alone_writes_between_two_looks_of_another() -> None:
    written: list[int] = []

    async def write(writer: int) -> None:
        for _ in range(10):
            await next_turn()
            written.append(writer)

    looks: list[int] = []

    async def look() -> None:
        while len(written) < 10 * N_WRITERS:
            looks.append(len(written))
            await asyncio.sleep(0)

    await asyncio.gather(look(), *(write(writer) for writer in range(N_WRITERS)))
    assert max(later - before for before, later in pairwise(looks)) == 1
    # And each as often as the others.
    assert written == list(range(N_WRITERS)) * 10


async def test_one_that_no_longer_waits_holds_nobody_up() -> None:
    waiting = [asyncio.create_task(next_turn()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    async with asyncio.timeout(5):
        await waiting[2]
    assert [task.cancelled() for task in waiting] == [True, True, False]


@pytest.mark.parametrize("n_prompts", [1, 3])
async def test_of_many_that_are_told_much_one_alone_is_served_each_time(n_prompts: int) -> None:
    read: list[int] = []

    class Told(ScriptedStream):
        def __init__(self, reader: int) -> None:
            super().__init__([[token(0, "a")], [token(0, "b")], [finished(0)], []])
            self._reader = reader

        async def next_batch(self, *, compact: bool) -> Sequence[Any]:
            read.append(self._reader)
            return await super().next_batch(compact=compact)

    async def answer(reader: int) -> None:
        requests = [weft.Request(prompt="a", n_probs=HEAVY)] * n_prompts
        streams = [Told(reader) for _ in requests]
        generation = Generation(cast("Any", SimpleNamespace(branches=())), requests, cast("Any", streams), Tally())
        while await generation.next_batches():
            pass

    readers_at_once: list[int] = []

    async def look() -> None:
        while len(read) < 4 * N_WRITERS * n_prompts:
            before = len(read)
            await asyncio.sleep(0)
            readers_at_once.append(len(set(read[before:])))

    await asyncio.gather(look(), *(answer(reader) for reader in range(N_WRITERS)))
    assert max(readers_at_once) == 1
