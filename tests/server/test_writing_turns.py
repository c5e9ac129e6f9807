"""Those that have much to write take turns: whoever has little waits for one of them, however many they are."""

import asyncio
import time
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

import weft
from tests.server.scripted import ScriptedStream, finished, token
from weft.server.inference.generation import HEAVY, Generation
from weft.server.inference.usage_counters import UsageCounters
from weft.server.streaming.fair_scheduler import BURST_S, LIGHT_ACTIVE_S, SHARE, TokenBucket, current_scheduler, yield_fairly

N_WRITERS = 20


async def test_of_many_that_write_much_one_alone_writes_between_two_looks_of_another() -> None:
    written: list[int] = []

    async def write(writer: int) -> None:
        for _ in range(10):
            await yield_fairly()
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
    waiting = [asyncio.create_task(yield_fairly()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    async with asyncio.timeout(5):
        await waiting[2]
    assert [task.cancelled() for task in waiting] == [True, True, False]


def test_an_allowance_is_given_bit_by_bit_and_only_so_much_of_it_is_kept() -> None:
    allowance = TokenBucket(0.25, 0.5, now=10.0)
    allowance.spend(1.0)
    assert allowance.wait_s(10.0) == 2.0
    assert allowance.wait_s(11.0) == 1.0
    assert allowance.wait_s(20.0) == 0.0
    allowance.spend(0.5)
    assert allowance.wait_s(20.0) == 0.0, "half a second was kept"
    allowance.spend(0.25)
    assert allowance.wait_s(20.0) == 1.0, "and no more than that"


@pytest.mark.parametrize("is_shared", [True, False])
async def test_those_that_have_much_get_their_share_of_the_loop_while_others_are_served_and_else_all_of_it(
    is_shared: bool,
) -> None:
    await asyncio.sleep(LIGHT_ACTIVE_S)  # Whoever was served by other tests.
    worked_s = 0.0
    most_s = 0.0
    end = time.perf_counter() + 0.2

    async def work() -> None:
        nonlocal worked_s, most_s
        while time.perf_counter() < end:
            began = time.thread_time()
            while (now := time.thread_time()) < began + 0.001:
                pass
            worked_s += now - began
            most_s = max(most_s, now - began)
            await yield_fairly()

    async def serve() -> None:
        while is_shared and time.perf_counter() < end:
            current_scheduler().mark_light_task()
            await asyncio.sleep(0)

    began, began_s = time.perf_counter(), time.thread_time()
    await asyncio.gather(serve(), work(), work())
    took_s = time.perf_counter() - began
    if is_shared:
        # Each begins without a turn, and a turn may be longer than what was left of the allowance.
        assert worked_s <= SHARE * took_s + BURST_S + 3 * most_s
    else:
        assert worked_s > (time.thread_time() - began_s) / 2


async def test_who_waits_for_a_processor_spends_nothing() -> None:
    await asyncio.sleep(LIGHT_ACTIVE_S)
    began = time.perf_counter()
    for _ in range(5):
        current_scheduler().mark_light_task()
        await yield_fairly()
        time.sleep(0.02)  # noqa: ASYNC251  (the loop is to be held)
    assert time.perf_counter() - began < 0.5, "of a tenth of the time it would have had to wait for a second"


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
        requests = [weft.Request(prompt="a", logprobs=HEAVY)] * n_prompts
        streams = [Told(reader) for _ in requests]
        generation = Generation(cast("Any", SimpleNamespace(branches=())), requests, cast("Any", streams), UsageCounters())
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
