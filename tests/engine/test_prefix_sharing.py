"""What one request has computed, another one need not."""

import weft
from tests.helpers import How, branches, prompt_of


async def test_second_request_computes_only_its_suffix(engine: weft.Engine, how: How) -> None:
    prompt = prompt_of(100, f"suffix {how}")
    (first,) = await branches(engine, how, prompt, max_tokens=10, ignore_eos=True)
    (second,) = await branches(engine, how, [*prompt, *first.token_ids, *prompt_of(20, "more")], max_tokens=1)
    # The last token that was drawn was never computed.
    assert (second.usage.n_computed, second.usage.n_cached) == (20 + 1, 100 + 10 - 1)


async def test_the_same_request_computes_only_its_last_token(engine: weft.Engine, how: How) -> None:
    prompt = prompt_of(100, f"same {how}")
    await branches(engine, how, prompt, max_tokens=2)
    (second,) = await branches(engine, how, prompt, max_tokens=2)
    assert (second.usage.n_computed, second.usage.n_cached) == (1, 99)


async def test_every_branch_can_be_continued(engine: weft.Engine) -> None:
    prompt = prompt_of(60, "branches")
    # Hot enough that no two branches are alike.
    first = await engine.complete(prompt, n=4, max_tokens=12, temperature=100, top_k=0, top_p=1, min_p=0, ignore_eos=True)
    for branch in first.choices:
        continued = await engine.complete([*prompt, *branch.token_ids, 400, 401], max_tokens=1)
        assert continued.n_computed == 2 + 1


async def test_what_a_running_request_has_computed_is_shared(engine: weft.Engine) -> None:
    prompt = prompt_of(200, "running")
    running = engine.stream(prompt, ignore_eos=True)
    await anext(running)
    completion = await engine.complete([*prompt, 400, 401], n=2, max_tokens=1)
    assert completion.n_computed == 2
    running.close()


async def test_requests_that_differ_share_nothing(engine: weft.Engine) -> None:
    await engine.complete(prompt_of(50, "this"), max_tokens=1)
    assert (await engine.complete(prompt_of(50, "that"), max_tokens=1)).n_cached == 0


async def test_what_was_least_recently_used_makes_room() -> None:
    async with weft.Engine(n_slots=1, n_ctx=1024, n_threads=1, cache_ram=0) as engine:
        old, kept = prompt_of(400, "old"), prompt_of(400, "kept")
        await engine.complete(old, max_tokens=1)
        await engine.complete(kept, max_tokens=1)
        await engine.complete(prompt_of(400, "new"), max_tokens=1)
        assert (await engine.complete(kept, max_tokens=1)).n_computed == 1
        assert (await engine.complete(old, max_tokens=1)).n_computed > 1
