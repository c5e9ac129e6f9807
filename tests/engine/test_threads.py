"""Many event loops and threads on one engine, and many engines in one process."""

import asyncio
import contextlib
import os
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import uvloop

import weft
from tests.helpers import collect, is_idle, niceness, niceness_of_computing, prompt_of, turn_ns, wait_until


def run_loop(engine: weft.Engine, name: str) -> int:
    """Asks for completions on an event loop of its own; says how many tokens came."""

    async def main() -> int:
        requests = (engine.complete(prompt_of(30, f"{name} {i}"), n=2, max_tokens=10, ignore_eos=True) for i in range(4))
        return sum(completion.n_predicted for completion in await asyncio.gather(*requests))

    return asyncio.run(main())


async def test_every_thread_and_loop_gets_its_own_answers(engine: weft.Engine) -> None:
    with ThreadPoolExecutor(6) as threads:
        loop = asyncio.get_running_loop()
        elsewhere = [loop.run_in_executor(threads, run_loop, engine, f"thread {i}") for i in range(6)]
        here = await engine.complete(prompt_of(30, "here"), n=4, max_tokens=10, ignore_eos=True)
        assert await asyncio.gather(*elsewhere) == [4 * 2 * 10] * 6
    assert here.n_predicted == 40


class FaultyFuture(asyncio.Future[None]):
    """A future that cannot be given its result."""

    def set_result(self, result: None) -> None:
        raise ArithmeticError("this future takes no result")


class FaultyLoop(asyncio.SelectorEventLoop):
    """An event loop whose next future is faulty once `makes_faulty` is set."""

    makes_faulty = False

    def create_future(self) -> asyncio.Future[None]:
        if not self.makes_faulty:
            return super().create_future()
        self.makes_faulty = False
        return FaultyFuture(loop=self)


def block_until(condition: Callable[[], bool], deadline_s: float = 10) -> None:
    """As `wait_until`, but keeps the event loop from running."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not so within {deadline_s} s"
        time.sleep(0.001)


async def next_of(stream: weft.Stream) -> weft.Event:
    return await anext(stream)


def test_a_future_that_raises_keeps_no_other_task_waiting() -> None:
    raised: list[BaseException] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FaultyLoop)
        loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))
        async with weft.Engine(n_slots=2, n_ctx=256, n_threads=1) as engine:
            streams = [engine.stream("Once upon a time,", max_tokens=1) for _ in range(2)]
            loop.makes_faulty = True
            first, second = (asyncio.create_task(next_of(stream)) for stream in streams)
            await asyncio.sleep(0)
            # Both are ready when the loop runs again.
            block_until(lambda: engine.stats().n_predicted == 2 and is_idle(engine))
            assert isinstance(await asyncio.wait_for(second, 10), weft.Token)
            assert not first.done()
            first.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await first

    with asyncio.Runner(loop_factory=FaultyLoop) as runner:
        runner.run(main())
    assert [type(error) for error in raised] == [ArithmeticError]


async def test_threads_that_compute_give_way_to_those_that_answer(engine: weft.Engine) -> None:
    await engine.complete("Once", max_tokens=1)
    assert {niceness(thread) for thread in workers()} == {min(niceness(0) + niceness_of_computing(), 19)}
    if turn_ns(0):
        assert {turn_ns(thread) for thread in workers()} == {20_000_000}


def workers() -> list[int]:
    """Threads that compute tokens: the worker of an engine, and those that it started."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        # Others end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += [int(task.name)] if (task / "comm").read_text() == "weft-worker\n" else []
    return found


async def test_threads_compute_where_a_user_says() -> None:
    before = {*workers()}
    cpus = sorted(os.sched_getaffinity(0))
    last = cpus[-1]
    async with weft.Engine(n_slots=1, n_ctx=256, n_threads=2, cpus=[last, 511], poll=0) as engine:
        answer = await engine.complete("Once upon a time,", max_tokens=8, temperature=0)
        assert {frozenset(os.sched_getaffinity(thread)) for thread in {*workers()} - before} == {frozenset({last})}
    async with weft.Engine(n_slots=1, n_ctx=256, n_threads=2, strict_cpu=True, cpus_batch=cpus[:1], poll_batch=50) as engine:
        assert (await engine.complete("Once upon a time,", max_tokens=8, temperature=0)).text == answer.text
        seen = {frozenset(os.sched_getaffinity(thread)) for thread in {*workers()} - before}
        assert seen <= {frozenset({cpu}) for cpu in cpus}
    async with weft.Engine(n_slots=1, n_ctx=256, cpus=[last]) as engine:
        assert engine.compute.n_threads == 1


async def test_threads_have_the_priority_that_a_user_says() -> None:
    before = {*workers()}
    policies = {}
    for prio in (-1, 0):
        async with weft.Engine(n_slots=1, n_ctx=256, n_threads=2, prio=prio) as engine:
            await engine.complete("Once upon a time,", max_tokens=2)
            policies[prio] = {os.sched_getscheduler(thread) for thread in {*workers()} - before}
    assert policies == {-1: {os.SCHED_BATCH}, 0: {os.SCHED_OTHER}}


async def test_a_priority_that_may_not_be_had_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    before = {*workers()}
    async with weft.Engine(n_slots=1, n_ctx=256, n_threads=1, prio=2, prio_batch=1) as engine:
        assert (await engine.complete("Once upon a time,", max_tokens=2, ignore_eos=True)).n_predicted == 2
        [worker] = {*workers()} - before
        has_it = os.sched_getscheduler(worker) == os.SCHED_RR
    assert has_it != ("the system refused the thread priority" in caplog.text)


async def test_processors_that_are_not_there_are_named() -> None:
    message = "cpus is [511]; it must include a processor that this process may use: ["
    with pytest.raises(weft.InvalidConfigError, match=re.escape(message)) as refused:
        await weft.Engine(cpus=[511]).start()
    assert refused.value.param == "cpus"


async def test_uvloop_is_woken_too(engine: weft.Engine) -> None:
    stream = engine.stream("Once upon a time,", n=4, max_tokens=20, ignore_eos=True)
    assert len(await asyncio.to_thread(lambda: uvloop.run(collect(stream)))) == 4 * (20 + 1)


async def test_a_stream_may_be_read_on_another_loop_than_it_was_made_on(engine: weft.Engine) -> None:
    stream = engine.stream("Once upon a time,", n=2, max_tokens=20, ignore_eos=True)
    await anext(stream)
    rest = await asyncio.to_thread(lambda: asyncio.run(collect(stream)))
    assert len(rest) == 2 * (20 + 1) - 1


async def test_loops_and_tasks_share_one_stream(engine: weft.Engine) -> None:
    stream = engine.stream("Once upon a time,", n=4, max_tokens=50, ignore_eos=True)
    elsewhere = [asyncio.to_thread(lambda: asyncio.run(collect(stream))) for _ in range(3)]
    parts = await asyncio.gather(collect(stream), *elsewhere)
    assert sum(map(len, parts)) == 4 * (50 + 1)


async def test_a_loop_that_closes_in_mid_stream_disturbs_nobody(engine: weft.Engine) -> None:
    left: list[weft.Stream] = []

    async def leave() -> None:
        stream = engine.stream("Once upon a time,", max_tokens=200, ignore_eos=True)
        left.append(stream)
        reading = asyncio.ensure_future(collect(stream))
        await asyncio.sleep(0)
        assert not reading.done()

    for _ in range(5):
        await asyncio.to_thread(lambda: asyncio.run(leave()))
    assert (await engine.complete("Once upon a time,", max_tokens=10, ignore_eos=True)).n_predicted == 10
    # What the closed loops left is still there to be read.
    assert await left[0].next_batch() != []
    left.clear()
    await wait_until(lambda: is_idle(engine))


async def test_a_stream_can_be_closed_from_another_thread(engine: weft.Engine) -> None:
    stream = engine.stream("Once upon a time,", ignore_eos=True)
    await anext(stream)
    thread = threading.Timer(0.01, stream.close)
    thread.start()
    await asyncio.wait_for(collect(stream), 5)
    thread.join()
    await wait_until(lambda: is_idle(engine))


def test_waiting_without_an_event_loop_is_an_error(engine: weft.Engine) -> None:
    stream = engine.stream("Once upon a time,", ignore_eos=True)
    with pytest.raises(RuntimeError, match="no running event loop"):
        read_all_that_is_ready(stream)


def read_all_that_is_ready(stream: weft.Stream) -> None:
    while True:
        # Without a loop to wait on, an awaitable that is ready still answers.
        with pytest.raises(StopIteration):
            anext(stream).send(None)


async def test_engines_live_beside_each_other(engine: weft.Engine) -> None:
    async with weft.Engine(n_slots=2, n_ctx=512, n_threads=1) as other:
        answers = await asyncio.gather(
            engine.complete("Once upon a time,", n=2, max_tokens=10, ignore_eos=True),
            other.complete("Once upon a time,", n=2, max_tokens=10, ignore_eos=True),
        )
        assert [answer.n_predicted for answer in answers] == [20, 20]
        assert len(other.slots) == 2
    assert (await engine.complete("Once upon a time,", max_tokens=3, ignore_eos=True)).n_predicted == 3


async def test_many_requests_at_once_all_end(engine: weft.Engine) -> None:
    requests = [engine.complete(prompt_of(20, f"many {i}"), max_tokens=5, ignore_eos=True) for i in range(100)]
    assert [completion.n_predicted for completion in await asyncio.gather(*requests)] == [5] * 100
