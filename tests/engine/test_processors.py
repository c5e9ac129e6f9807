"""Which processors compute, who goes first where others want them too, and how threads wait: what Linux tells of the threads."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.helpers import prompt_of, wait_until
from weft.engine_options import EngineOptions

SMALL = weft.EngineConfig(n_slots=1, n_ctx=256, n_threads=1, tuned=False)
MINE = sorted(os.sched_getaffinity(0))
FIRST, LAST = MINE[0], MINE[-1]
"""The same one, where this process has no other."""


def computing() -> set[int]:
    """The threads of this process that compute tokens, by Linux's numbers."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # It has ended.
            if (task / "comm").read_text(encoding="utf-8") == "weft-worker\n":
                found.add(int(task.name))
    return found


@asynccontextmanager
async def threads_of(**asked: Any) -> AsyncIterator[tuple[weft.Engine, set[int]]]:  # noqa: ANN401 (fields of a configuration)
    """An engine that has computed a prompt and a token, with the threads that do."""
    before = computing()
    async with weft.Engine(config=SMALL, **asked) as engine:
        await engine.complete("Once upon a time,", max_tokens=2)
        yield engine, computing() - before


def places(threads: Iterable[int]) -> set[tuple[int, ...]]:
    """The processors that threads may run on, as Linux keeps them."""
    return {tuple(sorted(os.sched_getaffinity(thread))) for thread in threads}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"cpus": [FIRST]}, [(FIRST,)]),
        ({"cpus": [LAST]}, [(LAST,)]),
        ({"cpus": [LAST], "n_threads": 8}, [(LAST,)]),
        ({"cpus": MINE}, [tuple(MINE)]),
        ({"cpus": [FIRST, LAST], "strict_cpu": True}, [(FIRST,)]),
        ({"cpus": sorted({FIRST, LAST}), "strict_cpu": True, "n_threads": len({FIRST, LAST})}, [(FIRST,), (LAST,)]),
    ],
    ids=["first", "last", "no more threads than processors", "all", "strict", "one each"],
)
async def test_threads_compute_on_the_processors_that_are_asked_for(
    asked: EngineOptions, expected: list[tuple[int, ...]]
) -> None:
    async with threads_of(**asked) as (_, threads):
        assert places(threads) == set(expected)


async def test_prompts_may_be_computed_on_other_processors() -> None:
    async with threads_of(cpus=[FIRST], cpus_batch=[LAST]) as (engine, threads):
        assert places(threads) == {(FIRST,)}, "the last step computed a token"
        await engine.pin(prompt_of(100, "elsewhere"))
        assert places(threads) == {(LAST,)}, "and now a prompt alone"
        await engine.complete("Once upon a time,", max_tokens=2)
        assert places(threads) == {(FIRST,)}


def turns(threads: Iterable[int]) -> set[tuple[int, int]]:
    """How Linux gives threads their turns, and their priorities."""
    return {(os.sched_getscheduler(thread), os.sched_getparam(thread).sched_priority) for thread in threads}


@pytest.mark.parametrize(
    ("prio", "expected"),
    [
        (-1, (os.SCHED_BATCH, 0)),
        (0, (os.SCHED_OTHER, 0)),
        (1, (os.SCHED_RR, 40)),
        (2, (os.SCHED_RR, 80)),
        (3, (os.SCHED_RR, 90)),
    ],
)
async def test_threads_have_the_priority_that_is_asked_for_or_the_log_says_why_not(
    prio: int, expected: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with threads_of(prio=prio) as (_, threads):
            told = turns(threads)
    is_refused = "the system refused the thread priority" in caplog.text
    assert told == {(os.SCHED_OTHER, 0) if is_refused else expected}
    assert not is_refused or prio > 0


async def test_prompts_may_have_another_priority() -> None:
    async with threads_of(prio_batch=-1) as (engine, threads):
        assert turns(threads) == {(os.SCHED_OTHER, 0)}
        await engine.pin(prompt_of(100, "with another priority"))
        assert turns(threads) == {(os.SCHED_BATCH, 0)}


def seconds_computed(threads: Iterable[int]) -> float:
    """How long threads have had a processor, together."""
    stats = (Path(f"/proc/self/task/{thread}/schedstat").read_text(encoding="utf-8") for thread in threads)
    return sum(int(stat.split()[0]) for stat in stats) / 1e9


async def test_threads_wait_at_full_speed_as_long_as_is_asked_for() -> None:
    async with threads_of(n_threads=2, poll=0) as (engine, threads):
        await asyncio.sleep(0.1)
        before = seconds_computed(threads)
        await asyncio.sleep(0.3)
        assert seconds_computed(threads) - before < 0.02, "they sleep at once"
    async with threads_of(n_threads=2, poll=100) as (engine, threads):
        await engine.complete("Once upon a time,", max_tokens=2)
        before = seconds_computed(threads)
        # One that has no other beside it, on a machine of one processor, waits for nobody.
        await wait_until(lambda: len(threads) == 1 or seconds_computed(threads) - before > 0.05)
