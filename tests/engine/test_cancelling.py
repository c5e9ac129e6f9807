"""Whoever stops reading frees the slots, and loses nothing by waiting."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import pytest

import weft
from tests.helpers import is_idle, n_processing, prompt_of, wait_until
from weft import Finished, Stream, Token


@pytest.fixture(autouse=True)
async def _idle_before_and_after(engine: weft.Engine) -> AsyncIterator[None]:
    await wait_until(lambda: is_idle(engine))
    yield
    await wait_until(lambda: is_idle(engine), deadline_s=2)


def endless(engine: weft.Engine, n: int = 4) -> Stream:
    """A stream that would run until the context is full."""
    return engine.stream("Once upon a time,", n=n, ignore_eos=True)


async def test_break_frees_the_slots(engine: weft.Engine) -> None:
    async for _ in endless(engine, n=8):
        break
    await wait_until(lambda: is_idle(engine), deadline_s=2)


async def _close(stream: Stream) -> None:
    stream.close()


async def _aclose(stream: Stream) -> None:
    await stream.aclose()


async def _leave_aclosing(stream: Stream) -> None:
    async with aclosing(stream):
        pass


@pytest.mark.parametrize("close", [_close, _aclose, _leave_aclosing], ids=["close", "aclose", "aclosing"])
async def test_closing_frees_the_slots_and_ends_the_stream(
    engine: weft.Engine, close: Callable[[Stream], Awaitable[None]]
) -> None:
    stream = endless(engine)
    await anext(stream)
    await close(stream)
    await wait_until(lambda: is_idle(engine), deadline_s=2)
    assert [event async for event in stream] == []
    assert await stream.next_batch() == []
    await close(stream)


async def test_a_cancelled_task_frees_the_slots(engine: weft.Engine) -> None:
    begun = asyncio.Event()

    async def read() -> None:
        async for _ in endless(engine):
            begun.set()

    task = asyncio.create_task(read())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    await wait_until(lambda: is_idle(engine), deadline_s=2)


async def test_a_cancelled_complete_frees_the_slots(engine: weft.Engine) -> None:
    task = asyncio.create_task(engine.complete("Once upon a time,", n=4, ignore_eos=True))
    await wait_until(lambda: n_processing(engine) == 4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until(lambda: is_idle(engine), deadline_s=2)


async def test_a_stream_that_is_garbage_frees_the_slots(engine: weft.Engine) -> None:
    stream = endless(engine)
    await anext(stream)
    cycle: list[object] = [stream]
    cycle.append(cycle)
    del stream, cycle
    gc.collect()
    await wait_until(lambda: is_idle(engine), deadline_s=2)


async def test_a_stream_that_nobody_reads_frees_the_slots_when_it_is_dropped(engine: weft.Engine) -> None:
    n_predicted = engine.stats().n_predicted
    for _ in range(20):
        endless(engine)
    await wait_until(lambda: is_idle(engine), deadline_s=2)
    assert engine.stats().n_predicted - n_predicted < 200


async def test_a_request_that_waits_for_a_slot_can_be_cancelled(engine: weft.Engine) -> None:
    running = endless(engine)
    await anext(running)
    waiting = engine.stream(prompt_of(50, "waits"))
    await wait_until(lambda: engine.stats().n_waiting == 1)
    waiting.close()
    await wait_until(lambda: engine.stats().n_waiting == 0, deadline_s=2)
    assert n_processing(engine) == 4
    running.close()


async def test_a_long_prefill_can_be_cancelled(engine: weft.Engine) -> None:
    n_prompt = engine.limits.n_ctx_slot - 1
    streams = [engine.stream(prompt_of(n_prompt, f"long {i}")) for i in range(4)]
    await wait_until(lambda: n_processing(engine) > 0)
    for stream in streams:
        stream.close()
    await wait_until(lambda: is_idle(engine), deadline_s=2)
    assert all([await stream.next_batch() == [] for stream in streams])


async def test_closing_ends_the_wait_of_another_task(engine: weft.Engine) -> None:
    blocker = endless(engine)
    await anext(blocker)
    stream = engine.stream(prompt_of(50, "closed"))
    one, batch = asyncio.ensure_future(anext(stream, None)), asyncio.create_task(stream.next_batch())
    await asyncio.sleep(0)
    stream.close()
    assert await asyncio.wait_for(one, 2) is None
    assert await asyncio.wait_for(batch, 2) == []
    blocker.close()


async def test_an_impatient_reader_loses_no_event(engine: weft.Engine) -> None:
    # The prompt alone takes longer than the reader waits, however busy the machine is.
    stream = engine.stream(prompt_of(900, "impatient"), n=2, max_tokens=100, ignore_eos=True)
    n_tokens = [0, 0]
    n_timeouts = n_finished = 0
    while n_finished < 2:
        try:
            event = await asyncio.wait_for(anext(stream), 0.0001)
        except TimeoutError:
            n_timeouts += 1
            continue
        if isinstance(event, Finished):
            n_finished += 1
        elif isinstance(event, Token):
            n_tokens[event.index] += 1
            assert event.n_predicted == n_tokens[event.index]
    assert n_tokens == [100, 100]
    assert n_timeouts > 0


async def test_a_task_cancelled_just_as_it_is_woken_loses_no_event(engine: weft.Engine) -> None:
    stream = engine.stream("Once upon a time,", max_tokens=60, ignore_eos=True)
    seen = []
    while True:
        task = asyncio.ensure_future(anext(stream, None))
        # The future of the stream is done before its task has run again.
        while not task.done():
            await asyncio.sleep(0)
            if (waits_for := getattr(task, "_fut_waiter", None)) is not None and waits_for.done():
                task.cancel()
        if task.cancelled():
            continue
        event = task.result()
        if event is None:
            break
        seen.append(event)
    assert len(seen) == 60 + 1


async def test_two_tasks_share_one_stream(engine: weft.Engine) -> None:
    stream = engine.stream("Once upon a time,", n=4, max_tokens=30, ignore_eos=True)

    async def read() -> int:
        return len([event async for event in stream])

    n_read = await asyncio.gather(read(), read(), read())
    assert sum(n_read) == 4 * (30 + 1)
