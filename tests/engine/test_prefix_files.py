"""What is computed may be saved to a file and loaded by another engine; a file that does not fit is refused."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

import weft
from tests.helpers import is_idle, names_in, prompt_of, wait_until

PROMPT = prompt_of(120, "file")


def an_engine(**settings: object) -> weft.Engine:
    return weft.Engine(**{"n_slots": 2, "n_ctx": 1024, "n_threads": 1} | settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
async def saved(tmp_path_factory: pytest.TempPathFactory) -> weft.PrefixFile:
    """The prompt, saved by an engine that is gone."""
    path = tmp_path_factory.mktemp("files") / "prompt.weft"
    async with an_engine() as engine:
        return await engine.save_prefix(PROMPT, path)


def content_of(file: weft.PrefixFile) -> bytes:
    return Path(file.path).read_bytes()


@pytest.fixture(scope="module")
async def other() -> AsyncIterator[weft.Engine]:
    """An engine that has computed nothing."""
    async with an_engine() as engine:
        yield engine


async def test_what_one_engine_saves_another_one_need_not_compute(saved: weft.PrefixFile) -> None:
    assert saved.n_tokens == 120
    assert saved.n_bytes == len(content_of(saved)) > 120 * 1536
    assert saved.ms > 0
    async with an_engine() as engine:
        loaded = await engine.load_prefix(saved.path)
        assert (loaded.path, loaded.n_tokens, loaded.n_bytes) == (saved.path, 120, saved.n_bytes)
        completion = await engine.complete([*PROMPT, 400, 401], n=3, max_tokens=2, ignore_eos=True)
        assert completion.n_computed == 2
        assert engine.stats().n_computed == 2


@pytest.mark.parametrize("how", ["auto", "on", "off"])
async def test_a_file_may_be_of_the_other_layout(how: Literal["auto", "on", "off"], tmp_path: Path) -> None:
    path = tmp_path / "layout.weft"
    async with an_engine(flash_attention=how) as engine:
        await engine.save_prefix(PROMPT, path)
        expected = await engine.complete([*PROMPT, 400], max_tokens=1, temperature=0, logprobs=5)
    async with an_engine(flash_attention="off" if how != "off" else "auto") as engine:
        await engine.load_prefix(path)
        completion = await engine.complete([*PROMPT, 400], max_tokens=1, temperature=0, logprobs=5)
        assert completion.n_computed == 1
    [[ours], [theirs]] = [given.choices[0].logprobs for given in (completion, expected)]
    # Each kind of attention sums in another order.
    assert [top.logprob for top in ours.top] == pytest.approx([top.logprob for top in theirs.top], abs=0.05)


async def test_only_what_is_cached_is_saved_where_that_is_asked_for(other: weft.Engine, tmp_path: Path) -> None:
    known = prompt_of(80, "known")
    await other.complete(known, max_tokens=0)
    before = other.stats().n_computed
    file = await other.save_prefix([*known, 400, 401], tmp_path / "known.weft", compute=False)
    assert file.n_tokens == 80
    with pytest.raises(weft.InvalidRequestError) as raised:
        await other.save_prefix(prompt_of(80, "unknown"), tmp_path / "unknown.weft", compute=False)
    assert raised.value.param == "prompt"
    assert not (tmp_path / "unknown.weft").exists()
    assert other.stats().n_computed == before


async def refused(engine: weft.Engine, path: str | Path) -> str:
    """Why the engine refuses the file; it must have loaded nothing of it."""
    before = [node.tokens for node in await engine.cached()]
    with pytest.raises(weft.PrefixFileError) as raised:
        await engine.load_prefix(path)
    assert [node.tokens for node in await engine.cached()] == before
    assert raised.value.path == str(path)
    assert raised.value.reason in str(raised.value)
    return raised.value.reason


@pytest.mark.parametrize("part", [0.0, 0.0001, 0.001, 0.01, 0.1, 0.5, 0.9, 0.999, 0.99999])
async def test_a_file_with_a_flipped_bit_is_refused(
    saved: weft.PrefixFile, other: weft.Engine, part: float, tmp_path: Path
) -> None:
    content = bytearray(content_of(saved))
    content[int(part * len(content))] ^= 0x10
    path = tmp_path / "flipped.weft"
    path.write_bytes(content)
    assert await refused(other, path)


@pytest.mark.parametrize("n_bytes", [0, 1, 7, 40, 500, 10_000, -100, -1])
async def test_a_file_that_is_cut_short_is_refused(
    saved: weft.PrefixFile, other: weft.Engine, n_bytes: int, tmp_path: Path
) -> None:
    path = tmp_path / "short.weft"
    path.write_bytes(content_of(saved)[:n_bytes])
    assert await refused(other, path)


async def test_a_file_that_goes_on_after_its_end_is_refused(saved: weft.PrefixFile, other: weft.Engine, tmp_path: Path) -> None:
    path = tmp_path / "long.weft"
    path.write_bytes(content_of(saved) + b"\0")
    assert await refused(other, path)


async def test_a_file_that_is_none_is_refused(other: weft.Engine, model_path: Path, tmp_path: Path) -> None:
    assert await refused(other, model_path)
    assert await refused(other, tmp_path)


async def test_a_file_of_another_kind_of_cache_is_refused(saved: weft.PrefixFile) -> None:
    async with an_engine(type_k="q8_0", type_v="q8_0", flash_attention="on") as engine:
        assert await refused(engine, saved.path)


async def test_a_hole_of_terabytes_is_refused(saved: weft.PrefixFile, other: weft.Engine, tmp_path: Path) -> None:
    path, n_bytes = tmp_path / "hole.weft", 1 << 43
    for start in (b"", content_of(saved)[:12] + n_bytes.to_bytes(8, "little")):
        path.write_bytes(start)
        os.truncate(path, n_bytes)
        assert await refused(other, path)


async def test_a_pipe_is_refused_at_once(other: weft.Engine, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.weft")
    async with asyncio.timeout(60):
        assert await refused(other, tmp_path / "pipe.weft") == "it is not a regular file"


@pytest.fixture(params=[0.1, 0.5, 0.7, 1.0])
def another_model(request: pytest.FixtureRequest, model_path: Path, tmp_path: Path) -> Path:
    """One weight less or more, at this part of the file: the same shapes, another model."""
    content = bytearray(model_path.read_bytes())
    n_bytes: int = int(request.param * (len(content) - 1000))
    content[n_bytes] ^= 1
    path = tmp_path / "another.gguf"
    path.write_bytes(content)
    return path


async def test_a_file_of_another_model_is_refused(saved: weft.PrefixFile, another_model: Path) -> None:
    async with an_engine(model=another_model) as engine:
        reason = await refused(engine, saved.path)
    assert another_model.name in reason
    assert str(another_model) not in reason, "clients of a server read it"


@pytest.fixture
def copied_model(model_path: Path, tmp_path: Path) -> Path:
    """The same model in a file that may be changed."""
    return Path(shutil.copy(model_path, tmp_path / "model.gguf"))


async def test_a_model_whose_own_file_has_changed_is_said_to_be_at_fault(
    saved: weft.PrefixFile, copied_model: Path, tmp_path: Path
) -> None:
    async with an_engine(model=copied_model) as engine:
        os.utime(copied_model, (0, 0))
        for attempt in (engine.load_prefix(saved.path), engine.save_prefix(PROMPT, tmp_path / "changed.weft")):
            with pytest.raises(weft.ModelLoadError) as raised:
                await attempt
            assert raised.value.reason == "model.gguf: it has changed since it was loaded"
            assert str(tmp_path) not in str(raised.value), "clients of a server read it"
    assert names_in(tmp_path) == ["model.gguf"]


async def test_a_file_that_is_not_there_or_cannot_be_written_is_an_os_error(other: weft.Engine, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        await other.load_prefix(tmp_path / "no-such.weft")
    assert raised.value.filename == str(tmp_path / "no-such.weft")
    with pytest.raises(FileNotFoundError):
        await other.save_prefix(PROMPT, tmp_path / "no" / "such.weft")


async def test_a_file_is_replaced_as_a_whole(other: weft.Engine, tmp_path: Path) -> None:
    path = tmp_path / "twice.weft"
    await other.save_prefix(PROMPT, path)
    again = await other.save_prefix(prompt_of(30, "again"), path)
    assert again.n_bytes == len(content_of(again))
    assert (await other.load_prefix(path)).n_tokens == 30
    assert names_in(tmp_path) == ["twice.weft"]


async def test_loading_waits_for_the_slot_that_it_names(saved: weft.PrefixFile, other: weft.Engine) -> None:
    running = other.stream("A fox", slot=1, ignore_eos=True)
    await anext(running)
    loading = asyncio.create_task(other.load_prefix(saved.path, slot=1))
    await wait_until(lambda: other.stats().n_waiting == 1)
    running.close()
    await loading
    assert await other.slot_tokens(1) == PROMPT
    with pytest.raises(weft.InvalidRequestError):
        await other.load_prefix(saved.path, slot=2)


async def test_a_load_that_is_cancelled_loads_nothing(saved: weft.PrefixFile) -> None:
    async with an_engine() as engine:
        running = engine.stream("A fox", slot=0, ignore_eos=True)
        await anext(running)
        loading = asyncio.create_task(engine.load_prefix(saved.path, slot=0))
        await wait_until(lambda: engine.stats().n_waiting == 1)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        running.close()
        await wait_until(lambda: is_idle(engine))
        assert (await engine.complete([*PROMPT, 400], max_tokens=1)).n_cached == 0


async def test_a_prefix_longer_than_a_slot_is_refused(saved: weft.PrefixFile) -> None:
    async with weft.Engine(n_slots=4, n_ctx=1024, kv_unified=False, n_threads=1) as engine:
        async with an_engine(kv_unified=True) as larger:
            await larger.save_prefix(prompt_of(600, "long"), saved.path + ".long")
        with pytest.raises(weft.ContextOverflowError):
            await engine.load_prefix(saved.path + ".long")
