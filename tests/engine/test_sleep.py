"""An engine that sleeps holds no model, and is as it was when it has woken."""

import asyncio
import threading
from pathlib import Path

import pytest

import weft
from tests.adapters import write_adapter
from tests.helpers import prompt_of, wait_until
from weft.work import cache


def small(**options: object) -> weft.Engine:
    return weft.Engine(n_slots=2, n_ctx=512, kv_unified=True, n_threads=1, **options)  # type: ignore[arg-type]


async def test_awake_again_it_writes_what_it_wrote_and_its_adapters_count_as_they_did(tmp_path: Path) -> None:
    files = [write_adapter(tmp_path / f"{seed}.gguf", seed=seed) for seed in (1, 2)]
    async with small(lora=files) as engine:
        engine.set_adapters([(1, 0.5)])
        written = await engine.complete("Once upon a time,", max_tokens=8, temperature=0)
        for _ in range(2):
            await engine.sleep()
            assert not engine.is_running
            await engine.wake()
            assert [adapter.scale for adapter in engine.adapters] == [0.0, 0.5]
            again = await engine.complete("Once upon a time,", max_tokens=8, temperature=0)
            assert again.choices[0].token_ids == written.choices[0].token_ids
            assert again.choices[0].usage.n_cached == 0


async def test_asleep_it_says_so_and_ends_what_runs() -> None:
    async with small() as engine:
        with pytest.raises(RuntimeError, match="the engine is not asleep"):
            await engine.wake()
        stream = engine.stream("Once upon a time,", max_tokens=400, ignore_eos=True)
        await engine.sleep()
        with pytest.raises(weft.EngineStoppedError):
            async for _ in stream:
                pass
        for ask in (engine.stats, lambda: engine.stream("a"), lambda: engine.model):
            with pytest.raises(RuntimeError, match=r"the engine is asleep; `await engine\.wake\(\)`"):
                ask()
        with pytest.raises(RuntimeError, match="asleep"):
            await engine.sleep()
        await engine.wake()
        assert await engine.prefixes() == []


async def test_a_load_that_fails_leaves_it_asleep(tmp_path: Path, model_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.symlink_to(model_path)
    async with weft.Engine(path, n_slots=1, n_ctx=256, n_threads=1) as engine:
        await engine.sleep()
        path.unlink()
        for _ in range(2):
            with pytest.raises(weft.ModelLoadError):
                await engine.wake()
        path.symlink_to(model_path)
        await engine.wake()
        assert (await engine.complete("a", max_tokens=1)).choices


async def test_adapters_that_cannot_count_as_they_did_leave_it_asleep(tmp_path: Path) -> None:
    files = [write_adapter(tmp_path / f"{seed}.gguf", seed=seed) for seed in (1, 2)]
    async with small(lora=[files[0], (files[1], 0.0)]) as engine:
        engine.set_adapters([(0, 0.5), (1, 0.5)])
        await engine.sleep()
        for file in files:
            write_adapter(file, seed=3, invoked_by=[7])
        for _ in range(2):
            with pytest.raises(
                weft.InvalidRequestError, match="adapters has 0 and 1, but a text can have at most one activated adapter"
            ):
                await engine.wake()
            assert engine.is_asleep
        write_adapter(files[0], seed=1)
        await engine.wake()
        assert [adapter.scale for adapter in engine.adapters] == [0.5, 0.5]


async def test_a_closed_engine_neither_sleeps_nor_wakes() -> None:
    engine = small()
    with pytest.raises(RuntimeError, match="is not started"):
        await engine.sleep()
    await engine.start()
    await engine.sleep()
    await engine.close()
    for ask in (engine.wake, engine.sleep):
        with pytest.raises(weft.EngineStoppedError):
            await ask()


async def test_copies_bring_back_what_was_cached() -> None:
    async with small() as engine:
        prompts = [prompt_of(100, f"copied {number}") for number in range(3)]
        for prompt in prompts:
            await engine.complete(prompt, max_tokens=1)
        await wait_until(lambda: engine.stats().n_cells_idle == 0)
        copies = await engine.export_cache()
        await engine.sleep()
        await engine.wake()
        await engine.import_cache(copies)
        for prompt in prompts:
            assert (await engine.complete(prompt, max_tokens=1)).choices[0].usage.n_computed == 1


async def test_closing_waits_for_a_worker_that_is_being_ended_already() -> None:
    engine = small()
    await engine.start()
    stop, may_go_on, has_begun = engine._stop, threading.Event(), threading.Event()
    assert stop is not None

    def slow() -> None:
        has_begun.set()
        assert may_go_on.wait(20)
        stop()

    engine._stop = slow
    sleeping = asyncio.create_task(engine.sleep())
    await wait_until(has_begun.is_set)
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    engine._stop = stop
    may_go_on.set()
    await asyncio.gather(sleeping, closing)
    with pytest.raises(weft.EngineStoppedError):
        await engine.wake()


def counted_copies(monkeypatch: pytest.MonkeyPatch) -> list[weft.Stream]:
    """The copies that are made from now on."""
    made: list[weft.Stream] = []
    finish = cache._last_event

    async def counted(stream: weft.Stream) -> weft.Finished:
        made.append(stream)
        return await finish(stream)

    monkeypatch.setattr(cache, "_last_event", counted)
    return made


async def test_copies_that_cannot_fit_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async with small() as engine:
        prompts = [prompt_of(20, "short"), *(prompt_of(100, f"long {number}") for number in range(12))]
        for prompt in prompts:
            await engine.complete(prompt, max_tokens=1)
        await wait_until(lambda: engine.stats().n_cells_idle == 0)
        allowed = iter([True, False])
        [one] = await engine.export_cache(should_continue=lambda: next(allowed))
        made = counted_copies(monkeypatch)
        monkeypatch.setattr("weft.work.cache.free_memory_bytes", lambda: 5 * one.n_bytes)
        copies = await engine.export_cache()
        assert [copy.tokens[:20] for copy in copies] == [prompts[at][:20] for at in (-1, -2, 0)]
        assert len(made) == 4, "one did not fit, and none was made that is as long"


async def test_few_copies_are_made_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    async with small() as engine:
        for number in range(8):
            await engine.complete(prompt_of(40 + 10 * number, f"{number}"), max_tokens=1)
        await wait_until(lambda: engine.stats().n_cells_idle == 0)
        made = counted_copies(monkeypatch)
        monkeypatch.setattr("weft.work.cache.free_memory_bytes", lambda: 2)
        assert await engine.export_cache() == []
        assert len(made) == cache.MAX_MISFITS
