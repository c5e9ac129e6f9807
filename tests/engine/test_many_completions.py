"""One prompt, n completions: the prompt is computed once."""

import asyncio

import pytest

import weft
from tests.helpers import How, branches, collect, prompt_of
from weft import Finished


@pytest.mark.parametrize("n", [1, 4, 8, 32], ids=["one", "as many as slots", "twice the slots", "eight times the slots"])
async def test_completions_of_a_prompt_compute_it_once(engine: weft.Engine, how: How, n: int) -> None:
    before = engine.stats()
    answer = await branches(engine, how, prompt_of(200, f"once {how} {n}"), n=n, max_tokens=4, ignore_eos=True)
    after = engine.stats()
    assert [branch.index for branch in answer] == list(range(n))
    assert sum(branch.usage.n_computed for branch in answer) == 200
    assert sum(branch.usage.n_cached for branch in answer) == 200 * (n - 1)
    assert all(branch.usage.n_prompt == 200 for branch in answer)
    assert after.n_computed - before.n_computed == 200
    assert after.n_predicted - before.n_predicted == n * 4


async def test_branches_draw_with_seeds_of_their_own(engine: weft.Engine) -> None:
    completion = await engine.complete("Once upon a time,", n=8, max_tokens=24, seed=1, temperature=1.5)
    assert len(set(completion.texts)) > 1
    assert completion.text == completion.texts[0]


async def test_no_more_branches_run_than_there_are_slots(engine: weft.Engine) -> None:
    running: set[int] = set()
    n_most = 0
    for event in await collect(engine.stream(prompt_of(20, "slots"), n=12, max_tokens=6, ignore_eos=True)):
        running.add(event.index)
        n_most = max(n_most, len(running))
        if isinstance(event, Finished):
            running.remove(event.index)
    assert n_most == 4


async def test_many_branches_leave_room_for_a_request_for_one(engine: weft.Engine) -> None:
    many = asyncio.ensure_future(engine.complete(prompt_of(20, "many"), n=32, max_tokens=40, ignore_eos=True))
    await asyncio.sleep(0)
    await engine.complete(prompt_of(20, "one"), max_tokens=4)
    assert not many.done()
    many.cancel()
    with pytest.raises(asyncio.CancelledError):
        await many


async def test_no_tokens_for_any_branch_computes_the_prompt_alone(engine: weft.Engine, how: How) -> None:
    answer = await branches(engine, how, prompt_of(50, f"none {how}"), n=3, max_tokens=0)
    assert [(branch.text, branch.finish_reason, branch.usage.n_predicted) for branch in answer] == [("", "length", 0)] * 3
    assert sum(branch.usage.n_computed for branch in answer) == 50
