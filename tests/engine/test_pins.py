"""A pinned prefix stays computed, whatever else is asked for."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import weft
from tests.helpers import is_idle, n_processing, prompt_of, wait_until

BYTES_PER_TOKEN = 1536
"""Of the demo model's cache in f16."""


@pytest.fixture(params=[0, 1, None], ids=["no store", "a store of 1 MiB", "a store"])
async def tight(request: pytest.FixtureRequest) -> AsyncIterator[weft.Engine]:
    """One slot, and a pool of 1,024 tokens."""
    async with weft.Engine(n_slots=1, n_ctx=1024, n_threads=1, cache_ram=request.param) as engine:
        yield engine


async def flood(engine: weft.Engine, name: str) -> None:
    """Asks for more than the pool and a store of 1 MiB hold."""
    for i in range(6):
        await engine.complete(prompt_of(600, f"{name} {i}"), max_tokens=1)


async def test_a_pinned_prefix_survives_pressure_until_it_is_unpinned(tight: weft.Engine) -> None:
    prompt = prompt_of(200, "pinned")
    prefix = await tight.pin(prompt)
    assert (prefix.tokens, prefix.n_tokens) == (prompt, 200)
    assert prefix.n_bytes == pytest.approx(200 * BYTES_PER_TOKEN, rel=0.1)
    await flood(tight, "first")
    assert [listed.id for listed in await tight.prefixes()] == [prefix.id]
    assert (await tight.complete([*prompt, 400, 401], max_tokens=1)).n_computed == 2
    assert await tight.unpin(prefix)
    assert await tight.prefixes() == []
    await flood(tight, "second")
    n_forgotten = 0 if tight.limits.max_host_cache_bytes is not None and tight.limits.max_host_cache_bytes > 2**20 else 200
    assert (await tight.complete([*prompt, 402, 403], max_tokens=1)).n_computed == 2 + n_forgotten


async def test_pinning_computes_only_what_is_not_cached(engine: weft.Engine) -> None:
    prompt = prompt_of(100, "half")
    await engine.complete(prompt[:60], max_tokens=0)
    before = engine.stats().n_computed
    prefix = await engine.pin(prompt)
    assert engine.stats().n_computed - before == 40
    assert await engine.unpin(prefix.id)


async def test_what_is_pinned_is_pinned_in_the_tree(engine: weft.Engine) -> None:
    prompt = prompt_of(30, "in the tree")
    await engine.complete([*prompt, *prompt_of(10, "beyond")], max_tokens=1)
    prefix = await engine.pin(prompt)
    nodes = await engine.cached()
    assert [node.tokens for node in nodes if node.is_pinned] == [prompt]
    await engine.unpin(prefix)
    assert not any(node.is_pinned for node in await engine.cached())


async def test_the_nodes_that_were_used_last_come_first(tight: weft.Engine) -> None:
    shared = prompt_of(50, "used")
    for ending in (400, 401, 402):
        await tight.complete([*shared, *[ending] * 20], max_tokens=1)
    everything = await tight.cached()
    nodes, n_nodes = await tight.recently_used(1000)
    assert n_nodes == len(nodes) == len(everything) >= 4
    assert sorted(map(what, nodes)) == sorted(map(what, everything))
    used = [node.last_used for node in nodes]
    for place, node in reversed([*enumerate(nodes)]):
        if node.parent is not None:
            assert node.parent < place
            parent = nodes[node.parent]
            assert parent.start + parent.n_tokens == node.start
            used[node.parent] = max(used[node.parent], used[place])
    assert used == sorted(used, reverse=True)
    assert [node.tokens[-1] for node in nodes if node.start + node.n_tokens == 70] == [402, 401, 400]
    for limit in range(n_nodes + 1):
        few, n_of_all = await tight.recently_used(limit)
        assert (n_of_all, [*map(what, few)]) == (n_nodes, [*map(what, nodes[:limit])])
        assert [node.parent for node in few] == [node.parent for node in nodes[:limit]]
    with pytest.raises(OverflowError):
        await tight.recently_used(-1)


def what(node: weft.CachedNode) -> tuple[int, list[int], int]:
    """What tells a node from every other one."""
    return node.start, node.tokens, node.last_used


async def test_an_excerpt_is_both_ends(engine: weft.Engine) -> None:
    prompt = prompt_of(30, "excerpt")
    prefix = await engine.pin(prompt)
    [node] = [node for node in await engine.cached() if node.is_pinned]
    for of in (prefix, node):
        assert of.excerpt(10) == (prompt[:10], prompt[-10:])
        assert of.excerpt(14) == (prompt[:14], prompt[-14:])
        assert of.excerpt(15) == of.excerpt(1000) == (prompt, [])
        assert of.excerpt(0) == ([], [])
    await engine.unpin(prefix)


@pytest.mark.parametrize(("n_characters", "is_aside"), [(8_192, False), (8_193, True)])
async def test_a_long_text_does_not_hold_the_event_loop_up(
    engine: weft.Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, n_characters: int, *, is_aside: bool
) -> None:
    native = engine._native
    assert native is not None
    threads: list[int] = []

    def pin(prompt: str, *, adapters: None) -> weft.Stream:
        threads.append(threading.get_ident())
        return native.pin(prompt, adapters=adapters)

    def save(prompt: str, *, compute: bool, adapters: None, invoked_at: None) -> weft.Stream:
        threads.append(threading.get_ident())
        return native.save(prompt, compute=compute, adapters=adapters, invoked_at=invoked_at)

    monkeypatch.setattr(engine, "_native", SimpleNamespace(pin=pin, save=save))
    text = "a" * n_characters
    for work in (engine.pin(text), engine.save_prefix(text, tmp_path / "long")):
        with pytest.raises(weft.ContextOverflowError):
            await work
    assert [thread != threading.get_ident() for thread in threads] == [is_aside, is_aside]


async def test_a_text_may_be_pinned_and_several_times(engine: weft.Engine) -> None:
    first, second = await engine.pin("You are a kind storyteller."), await engine.pin("You are a kind storyteller.")
    assert first.tokens == second.tokens == engine.tokenize("You are a kind storyteller.")
    assert first.id < second.id
    assert await engine.unpin(first)
    assert not await engine.unpin(first)
    assert [prefix.id for prefix in await engine.prefixes()] == [second.id]
    assert await engine.unpin(second)


@pytest.mark.parametrize("prefix_id", [-1, 999, 2**64])
async def test_no_prefix_has_a_strange_id(engine: weft.Engine, prefix_id: int) -> None:
    assert not await engine.unpin(prefix_id)


@pytest.mark.parametrize("cache_ram", [0, 1], ids=["no store", "a store of 1 MiB"])
async def test_pins_take_at_most_half_of_the_cache(cache_ram: int) -> None:
    async with weft.Engine(n_slots=1, n_ctx=1024, n_threads=1, cache_ram=cache_ram) as engine:
        half = (1024 * BYTES_PER_TOKEN if cache_ram == 0 else 2**20) // 2
        first = await engine.pin(prompt_of(100, "first"))
        with pytest.raises(weft.PinBudgetError) as raised:
            await engine.pin(prompt_of(half // BYTES_PER_TOKEN, "second"))
        assert raised.value.n_pinned_bytes == first.n_bytes
        assert raised.value.limit == pytest.approx(half, rel=0.05)
        assert raised.value.n_bytes + first.n_bytes > raised.value.limit
        assert len(await engine.prefixes()) == 1
        await engine.unpin(first)
        await engine.pin(prompt_of(half // BYTES_PER_TOKEN - 16, "second"))


async def test_a_pin_that_is_cancelled_pins_nothing() -> None:
    async with weft.Engine(n_slots=1, n_ctx=1024, n_threads=1) as engine:
        running = engine.stream("A fox", ignore_eos=True)
        await anext(running)
        pinning = asyncio.create_task(engine.pin(prompt_of(500, "cancelled")))
        await wait_until(lambda: engine.stats().n_waiting == 1)
        pinning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pinning
        assert n_processing(engine) == 1
        running.close()
        await wait_until(lambda: is_idle(engine))
        assert await engine.prefixes() == []


@pytest.mark.parametrize("prompt", [[], [2048], 5], ids=["no tokens", "no token", "a number"])
async def test_what_is_no_prompt_is_not_pinned(engine: weft.Engine, prompt: list[int]) -> None:
    with pytest.raises(weft.InvalidRequestError) as raised:
        await engine.pin(prompt)
    assert raised.value.param == "prompt"


async def test_a_closed_engine_answers_no_question() -> None:
    engine = weft.Engine(n_slots=1, n_ctx=256, n_threads=1)
    await engine.start()
    native = engine._native
    assert native is not None
    await engine.close()
    for ask in (engine.prefixes, engine.cached, lambda: engine.unpin(0), lambda: engine.erase_slot(0), lambda: engine.pin([1])):
        with pytest.raises(weft.EngineStoppedError):
            await ask()
    with pytest.raises(weft.EngineStoppedError):
        native.pinned()
