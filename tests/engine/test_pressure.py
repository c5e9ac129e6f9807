"""More is asked for than fits."""

import asyncio

import weft
from tests.helpers import How, branches, prompt_of


async def test_sequences_that_each_grow_to_the_whole_pool_all_end_well(how: How) -> None:
    async with weft.Engine(slots=8, ctx_size=256, kv_unified=True, threads=1) as engine:
        n_ctx = engine.limits.n_ctx_slot
        assert n_ctx == engine.limits.n_ctx == 256
        answers = await asyncio.gather(*(branches(engine, how, prompt_of(16, f"grow {i}"), ignore_eos=True) for i in range(8)))
        assert [(branch.reason, branch.usage.n_predicted) for (branch,) in answers] == [("context_full", n_ctx - 16)] * 8
        assert engine.stats().n_preempted > 0


async def test_branches_of_one_prompt_that_grow_to_the_whole_pool_all_end_well(how: How) -> None:
    async with weft.Engine(slots=8, ctx_size=256, kv_unified=True, threads=1) as engine:
        answer = await branches(engine, how, prompt_of(128, "branches"), n=8, ignore_eos=True)
        assert [(branch.reason, branch.usage.n_predicted) for branch in answer] == [("context_full", 128)] * 8
        assert sum(branch.usage.n_computed for branch in answer) == 128
