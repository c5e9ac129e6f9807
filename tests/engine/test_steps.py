"""What a step of the worker costs those who wait for it, and what it tells of itself."""

import asyncio
import itertools
import time
from collections.abc import Callable
from datetime import timedelta

import weft
from tests.helpers import collect, prompt_of, wait_until

N_STREAMS = 4
N_TOKENS = 30


def wakes_and_steps(engine: weft.Engine) -> tuple[int, int, int]:
    """How often a loop of its own is woken while several streams run, in how many decodes, and how many events come."""

    async def main() -> tuple[int, int, int]:
        loop = asyncio.get_running_loop()
        add_reader = loop.add_reader
        n_wakes = 0

        def add_counted(fd: int, callback: Callable[..., object], *args: object) -> None:
            def wake() -> None:
                nonlocal n_wakes
                n_wakes += 1
                callback(*args)

            add_reader(fd, wake)

        loop.add_reader = add_counted  # type: ignore[method-assign,assignment]
        before = engine.stats().n_decodes
        streams = [
            engine.stream(prompt_of(20, f"wakes {i}"), n=2, max_tokens=N_TOKENS, ignore_eos=True) for i in range(N_STREAMS // 2)
        ]
        events = await asyncio.gather(*map(collect, streams))
        return n_wakes, engine.stats().n_decodes - before, sum(map(len, events))

    return asyncio.run(main())


async def test_a_step_wakes_the_loop_once_for_all_streams(engine: weft.Engine) -> None:
    n_wakes, n_decodes, n_events = await asyncio.to_thread(wakes_and_steps, engine)
    assert n_events == N_STREAMS * (N_TOKENS + 1)
    assert 0 < n_wakes <= n_decodes < n_events / 2


async def test_the_last_steps_tell_when_they_ran_and_what_they_took(engine: weft.Engine) -> None:
    began = time.monotonic()
    # Drafts would be rows too.
    await engine.complete(prompt_of(40, "steps"), n=2, max_tokens=10, ignore_eos=True, max_draft=0)
    ended = time.monotonic()

    def steps_since() -> list[weft.RecentStep]:
        return [step for step in engine.recent_steps() if step.started >= began - 0.001]

    # A step is over when its events can be read already.
    await wait_until(lambda: sum(step.n_rows for step in steps_since()) == 40 + 2 * 9)
    steps = steps_since()
    assert [step.n_rows for step in steps[-9:]] == [2] * 9
    for step, later in itertools.pairwise(steps):
        assert step.started + step.took.total_seconds() <= later.started + 1e-5
    assert steps[-1].started < ended
    for step in steps:
        times = step.times
        parts = [times.receive, times.admit, times.plan, times.decode, times.sample, times.detokenize, times.publish]
        assert times.decode > timedelta(0)
        assert sum(parts, timedelta(0)) <= step.took + timedelta(microseconds=len(parts))


async def test_only_the_last_steps_are_remembered(engine: weft.Engine) -> None:
    await engine.complete("Once upon a time,", max_tokens=100, ignore_eos=True)
    assert len(engine.recent_steps()) == 64


async def test_an_engine_with_nothing_to_do_uses_no_cpu() -> None:
    async with weft.Engine(n_slots=2, n_ctx=512) as engine:
        await engine.complete(prompt_of(40, "then nothing"), n=2, max_tokens=8)
        # After the last decode threads wait for the next one at full speed, but not for long.
        await asyncio.sleep(0.1)
        before = time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - before < 0.05
