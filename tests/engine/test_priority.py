"""Who goes first, and how long a stream may be held up: what a request may say of itself among others."""

import time
from collections.abc import AsyncIterator

import pytest

import weft
from tests.helpers import collect, prompt_of


@pytest.fixture
async def one_slot() -> AsyncIterator[weft.Engine]:
    """An engine where all but one must wait."""
    async with weft.Engine(n_slots=1, n_ctx=512, n_threads=1) as engine:
        yield engine


@pytest.mark.parametrize("priority", [0, 1])
async def test_of_those_that_wait_the_highest_priority_goes_first(one_slot: weft.Engine, priority: int) -> None:
    running = one_slot.stream("A fox", ignore_eos=True, priority=2)
    await anext(running)
    early = one_slot.stream("An owl", max_tokens=1)
    late = one_slot.stream("A hedgehog", ignore_eos=True, priority=priority)
    running.close()
    await anext(late)
    assert one_slot.stats().n_waiting == priority, "the one that came first waits still, where the other is of higher priority"
    late.close()
    assert len(await collect(early)) == 2


async def test_one_of_higher_priority_takes_the_slot_of_another_which_goes_on_later(one_slot: weft.Engine) -> None:
    running = one_slot.stream("A fox", max_tokens=400, ignore_eos=True, priority=-1)
    await anext(running)
    assert (await one_slot.complete("An owl", max_tokens=5, ignore_eos=True)).n_predicted == 5
    assert one_slot.stats().n_preempted == 1
    *_, end = await collect(running)
    assert isinstance(end, weft.Finished)
    assert (end.finish_reason, end.usage.n_predicted) == ("length", 400)


async def test_nobody_gives_way_to_an_equal(one_slot: weft.Engine) -> None:
    running = one_slot.stream("A fox", max_tokens=200, ignore_eos=True, priority=3)
    await anext(running)
    await one_slot.complete("An owl", max_tokens=1, priority=3)
    assert one_slot.stats().n_preempted == 0
    assert running.request_id not in [slot.request_id for slot in one_slot.slots], "it had its end before the other began"


async def largest_piece_beside(engine: weft.Engine, *, max_token_gap_ms: float) -> int:
    """Most rows of a step that computes a prompt beside a stream that allows such pauses."""
    stream = engine.stream(prompt_of(20, "a stream"), ignore_eos=True, max_token_gap_ms=max_token_gap_ms)
    for _ in range(30):
        await anext(stream)
    began = time.monotonic()
    await engine.complete(prompt_of(700, "a long prompt"), max_tokens=1, use_cache=False)
    assert any(slot.request_id == stream.request_id for slot in engine.slots), "the stream ran all the while"
    stream.close()
    return max(step.n_rows for step in engine.recent_steps() if step.started >= began)


async def test_the_pauses_that_a_stream_allows_bound_what_is_computed_beside_it(engine: weft.Engine) -> None:
    loose = await largest_piece_beside(engine, max_token_gap_ms=60_000)
    assert await largest_piece_beside(engine, max_token_gap_ms=1) < loose / 2
