"""More is asked for than fits."""

import asyncio

import pytest

import weft
from tests.helpers import How, branches, ended_by, prompt_of

N_CONTROL = 8
"""The demo model's first pieces are control tokens, which stand for no text."""


@pytest.fixture(params=[0, None], ids=["no store", "a store"])
def cache_ram(request: pytest.FixtureRequest) -> int | None:
    """Where a sequence that gives up its slot leaves what it computed."""
    param: int | None = request.param
    return param


def is_whole(engine: weft.Engine, branch: weft.Choice) -> bool:
    """Whether the text of a branch is that of its tokens: nothing was lost, and nothing came twice."""
    shown = [token for token in branch.token_ids if token >= N_CONTROL]
    return branch.text == engine.detokenize(shown) and len(branch.token_ids) == branch.usage.n_predicted


async def test_sequences_that_each_grow_to_the_whole_pool_all_end_well(how: How, cache_ram: int | None) -> None:
    async with weft.Engine(n_slots=8, n_ctx=256, kv_unified=True, n_threads=1, cache_ram=cache_ram) as engine:
        n_ctx = engine.limits.n_ctx_slot
        assert n_ctx == engine.limits.n_ctx == 256
        answers = await asyncio.gather(*(branches(engine, how, prompt_of(16, f"grow {i}"), ignore_eos=True) for i in range(8)))
        assert [(ended_by(branch), branch.usage.n_predicted) for (branch,) in answers] == [("context_full", n_ctx - 16)] * 8
        assert all(is_whole(engine, branch) for (branch,) in answers)
        assert engine.stats().n_preempted > 0


async def test_branches_of_one_prompt_that_grow_to_the_whole_pool_all_end_well(how: How) -> None:
    async with weft.Engine(n_slots=8, n_ctx=256, kv_unified=True, n_threads=1) as engine:
        answer = await branches(engine, how, prompt_of(128, "branches"), n=8, ignore_eos=True)
        assert [(ended_by(branch), branch.usage.n_predicted) for branch in answer] == [("context_full", 128)] * 8
        assert all(is_whole(engine, branch) for branch in answer)
        assert sum(branch.usage.n_computed for branch in answer) == 128


async def test_what_gave_up_its_slot_resumes_without_computing() -> None:
    async with weft.Engine(n_slots=8, n_ctx=256, kv_unified=True, n_threads=1) as engine:
        await asyncio.gather(*(engine.complete(prompt_of(16, f"resume {i}"), ignore_eos=True) for i in range(8)))
        stats = engine.stats()
        # The token that was drawn last is computed where the sequence goes on, and counts as prompt there.
        assert stats.n_preempted > 0
        assert stats.n_computed <= 8 * 16 + stats.n_preempted


async def test_two_that_need_more_than_half_of_the_pool_take_turns_without_chasing_each_other(
    cache_ram: int | None,
) -> None:
    async with weft.Engine(n_slots=2, n_ctx=256, kv_unified=True, n_threads=1, cache_ram=cache_ram) as engine:
        prompts = [prompt_of(100, f"turns {i}") for i in range(2)]
        answers = await asyncio.gather(*(engine.complete(prompt, max_tokens=120, ignore_eos=True) for prompt in prompts))
        assert [(branch.finish_reason, branch.usage.n_predicted) for answer in answers for branch in answer.choices] == [
            ("length", 120)
        ] * 2
        assert all(is_whole(engine, branch) for answer in answers for branch in answer.choices)
        assert engine.stats().n_preempted <= 1


async def test_the_texts_of_events_count_up_also_where_a_sequence_was_interrupted(cache_ram: int | None) -> None:
    async with weft.Engine(n_slots=4, n_ctx=256, kv_unified=True, n_threads=1, cache_ram=cache_ram) as engine:

        async def counted(name: str) -> list[int]:
            stream = engine.stream(prompt_of(16, name), ignore_eos=True)
            return [event.n_predicted async for event in stream if isinstance(event, weft.Token)]

        for counts in await asyncio.gather(*(counted(f"count {i}") for i in range(4))):
            assert counts == list(range(1, 256 - 16 + 1))
        assert engine.stats().n_preempted > 0


async def test_a_piece_that_has_no_room_beside_what_is_held_of_it_is_computed_at_once() -> None:
    async with weft.Engine(n_slots=2, n_ctx=512, kv_unified=True, n_threads=1) as engine:
        for i in range(6):
            await engine.complete(prompt_of(300, f"learn {i}"), max_tokens=0)
        # Left the pool as one piece: what is wanted of it is its end, but a restore takes room for all of it.
        whole = prompt_of(340, "one piece")
        await engine.complete(whole, max_tokens=0)
        running = engine.stream([*whole[:320], 400, 401], max_tokens=150, ignore_eos=True)
        await anext(running)
        ended: list[str] = []

        async def read() -> None:
            async for _ in running:
                pass
            ended.append("the older")

        async def ask() -> None:
            assert (await engine.complete([*whole, 402], max_tokens=1)).n_predicted == 1
            ended.append("the younger")

        await asyncio.wait_for(asyncio.gather(read(), ask()), 10)
        assert ended == ["the younger", "the older"]
