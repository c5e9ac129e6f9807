"""Whatever requests have in common is computed once: counted, on a real model."""

import asyncio

import weft
from tests.helpers import TRIES, How, branches, collect, is_idle, prompt_of, wait_until
from weft import Token


async def test_requests_that_arrive_together_compute_their_shared_prompt_once(how: How) -> None:
    async with weft.Engine(n_slots=16, n_ctx=8192, kv_unified=True, n_threads=1) as engine:
        n_awaited = 0
        # Those that come while it is still being computed wait for the rest of it: beside other programs all may come after that.
        for attempt in range(TRIES):
            before = engine.stats()
            shared = prompt_of(900, f"together {attempt}")
            prompts = [[*shared, *prompt_of(8, f"together {attempt} {i}")] for i in range(16)]
            answers = await asyncio.gather(*(branches(engine, how, prompt, max_tokens=2, ignore_eos=True) for prompt in prompts))
            assert sum(branch.usage.n_computed for (branch,) in answers) == 900 + 16 * 8
            after = engine.stats()
            assert after.n_cached - before.n_cached == 15 * 900
            n_awaited = after.n_awaited - before.n_awaited
            assert n_awaited <= 15 * 900
            if n_awaited:
                break
        assert n_awaited


async def test_chats_compute_only_what_is_new(engine: weft.Engine, how: How) -> None:
    system = prompt_of(64, f"system {how}")
    await engine.complete(system, max_tokens=0)
    turns = 3

    async def chat(user: int) -> int:
        n_computed = 0
        history = list(system)
        for turn in range(turns):
            history += prompt_of(20, f"{how} {user} {turn}")
            (branch,) = await branches(engine, how, history, max_tokens=10, ignore_eos=True)
            history += branch.token_ids
            n_computed += branch.usage.n_computed
        return n_computed

    # The last token that was drawn was never computed: it is new to the turn that follows.
    assert await asyncio.gather(*(chat(user) for user in range(8))) == [turns * 20 + (turns - 1)] * 8


async def test_any_branch_of_a_finished_request_computes_only_what_is_new(engine: weft.Engine, how: How) -> None:
    prompt = prompt_of(60, f"eight {how}")
    # Hot enough that no two branches are alike.
    first = await engine.complete(prompt, n=8, max_tokens=12, temperature=100, top_k=0, top_p=1, min_p=0, ignore_eos=True)
    assert first.n_computed == 60
    for branch in reversed(first.choices):
        (continued,) = await branches(engine, how, [*prompt, *branch.token_ids, 400, 401], max_tokens=1)
        assert (continued.usage.n_computed, continued.usage.n_cached) == (1 + 2, 60 + 12 - 1)


async def test_more_branches_than_there_are_ids_and_cells_can_each_be_continued(how: How) -> None:
    async with weft.Engine(n_slots=8, n_ctx=1024, n_threads=1) as engine:
        prompts = [prompt_of(40, f"branches {i}") for i in range(50)]
        hot = {"temperature": 100, "top_k": 0, "top_p": 1, "min_p": 0, "ignore_eos": True}
        finished = [await engine.complete(prompt, n=8, max_tokens=8, **hot) for prompt in prompts]  # type: ignore[arg-type]
        assert engine.limits.n_seq_max < 400
        assert engine.limits.n_ctx < 50 * (40 + 8 * 7)
        paths = [[*prompt, *branch.token_ids] for prompt, done in zip(prompts, finished, strict=True) for branch in done.choices]
        for path in paths:
            (branch,) = await branches(engine, how, [*path, 400, 401], max_tokens=1)
            assert (branch.usage.n_computed, branch.usage.n_cached) == (1 + 2, 40 + 7)
        assert engine.stats().n_reloaded > 0


async def test_what_left_the_pool_comes_back_without_computing() -> None:
    async with weft.Engine(n_slots=1, n_ctx=1024, n_threads=1) as engine:
        prompts = [prompt_of(400, f"left {i}") for i in range(6)]
        for prompt in prompts:
            await engine.complete(prompt, max_tokens=1)
        assert engine.stats().host_cache.n_offloaded > 0
        for prompt in prompts:
            assert (await engine.complete([*prompt, 400, 401], max_tokens=1)).n_computed == 2
        stats = engine.stats()
        assert 0 < stats.n_reloaded <= stats.n_cached == 6 * 400
        assert stats.host_cache.n_reloaded >= stats.n_reloaded


async def test_a_store_of_its_limit_keeps_what_was_used_last() -> None:
    async with weft.Engine(n_slots=1, n_ctx=512, n_threads=1, cache_ram=1) as engine:
        assert engine.limits.max_host_cache_bytes == engine.stats().host_cache.max_bytes == 2**20
        for i in range(10):
            await engine.complete(prompt_of(300, f"limit {i}"), max_tokens=1)
            assert engine.stats().host_cache.n_bytes <= 2**20
        assert engine.stats().host_cache.n_evicted > 0
        assert (await engine.complete(prompt_of(300, "limit 9"), max_tokens=1)).n_computed == 1
        assert (await engine.complete(prompt_of(300, "limit 0"), max_tokens=1)).n_computed == 300


async def test_a_store_without_a_limit_has_none() -> None:
    async with weft.Engine(n_slots=1, n_ctx=256, n_threads=1, cache_ram=-1) as engine:
        assert engine.limits.max_host_cache_bytes is engine.stats().host_cache.max_bytes is None


async def test_the_tree_tells_what_is_cached_and_where(engine: weft.Engine) -> None:
    prompt = prompt_of(50, "tree")
    done = await engine.complete(prompt, n=2, max_tokens=6, temperature=100, top_k=0, top_p=1, min_p=0, ignore_eos=True)
    await engine.complete([*prompt, *prompt_of(5, "tree too")], max_tokens=1)
    nodes = await engine.cached()
    [place] = [place for place, node in enumerate(nodes) if node.tokens == prompt]
    trunk, children = nodes[place], [node for node in nodes if node.parent == place]
    assert (trunk.parent, trunk.start, trunk.n_tokens, trunk.is_pinned, trunk.slots) == (None, 0, 50, False, [])
    assert trunk.tier in ("device", "both", "host")
    assert trunk.n_hits >= 1
    branches_of = {(node.start, tuple(node.tokens)) for node in children}
    assert branches_of == {*((50, branch.token_ids[:-1]) for branch in done.choices), (50, tuple(prompt_of(5, "tree too")))}
    for position, node in enumerate(nodes):
        assert node.parent is None or node.parent < position
        assert node.n_tokens == len(node.tokens)


async def test_what_is_being_computed_is_in_the_tree(engine: weft.Engine) -> None:
    prompt = prompt_of(30, "being computed")
    running = engine.stream(prompt, ignore_eos=True)
    event = await anext(running)
    assert isinstance(event, Token)
    tokens = [token for node in await engine.cached() if event.slot in node.slots for token in node.tokens]
    assert tokens[:30] == prompt
    running.close()
    await wait_until(lambda: is_idle(engine))
    assert not any(node.slots for node in await engine.cached())


async def test_the_wished_slot_is_taken_where_it_is_free(engine: weft.Engine) -> None:
    for slot in (2, 0, 3):
        stream = engine.stream(prompt_of(20, "wish"), max_tokens=2, slot=slot, ignore_eos=True)
        assert {event.slot for event in await collect(stream)} == {slot}
    running = engine.stream(prompt_of(20, "wish"), slot=1, ignore_eos=True)
    await anext(running)
    elsewhere = await anext(engine.stream(prompt_of(20, "wish"), slot=1, max_tokens=1))
    assert isinstance(elsewhere, Token)
    assert elsewhere.slot != 1
    running.close()
    await wait_until(lambda: is_idle(engine))


async def test_a_slot_tells_its_tokens_and_forgets_them(engine: weft.Engine) -> None:
    prompt = prompt_of(40, "forget")
    done = await engine.complete(prompt, slot=1, max_tokens=5, ignore_eos=True)
    held = [*prompt, *done.choices[0].token_ids[:-1]]
    assert await engine.slot_tokens(1) == held
    assert await engine.erase_slot(1) == len(held)
    assert await engine.slot_tokens(1) == []
    assert (await engine.complete(prompt, max_tokens=1)).n_computed == 40


async def test_a_slot_is_erased_when_its_sequence_has_ended(engine: weft.Engine) -> None:
    prompt = prompt_of(40, "busy slot")
    running = engine.stream(prompt, slot=2, ignore_eos=True)
    await anext(running)
    erasing = asyncio.create_task(engine.erase_slot(2))
    await engine.complete(prompt_of(20, "meanwhile"), max_tokens=8, ignore_eos=True)
    assert not erasing.done()
    running.close()
    assert await erasing > 40
    assert (await engine.complete(prompt, max_tokens=1)).n_computed == 40


async def test_erasing_a_slot_leaves_what_another_path_holds(engine: weft.Engine) -> None:
    shared = prompt_of(40, "another path")
    await engine.complete([*shared, 400, 401], slot=0, max_tokens=1)
    await engine.complete([*shared, 402, 403], slot=1, max_tokens=1)
    await engine.erase_slot(1)
    assert (await engine.complete([*shared, 404], max_tokens=1)).n_cached == 40
