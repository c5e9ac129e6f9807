"""What settings of the engine come to: where its weights lie, how its cache is kept, and what computes a step."""

import logging
import os
import re
import resource
import shutil
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

import weft
from tests.engine.tiny_encoders import write_tiny_encoder
from tests.helpers import prompt_of, wait_until
from tests.programs import printed
from weft import _native
from weft.engine_options import EngineOptions

SMALL = weft.EngineConfig(n_slots=1, n_ctx=256, n_threads=1, tuned=False)


@pytest.fixture
def own_model(tmp_path: Path, model_path: Path) -> Path:
    """The demo model, as a file that no other engine of this process has open."""
    return Path(shutil.copy(model_path, tmp_path / "own.gguf"))


@pytest.mark.parametrize("use_mmap", [True, False])
async def test_a_model_is_mapped_or_read(own_model: Path, use_mmap: bool) -> None:
    async with weft.Engine(own_model, config=SMALL, use_mmap=use_mmap):
        assert is_mapped(own_model) is use_mmap


def is_mapped(file: Path) -> bool:
    return str(file) in Path("/proc/self/maps").read_text(encoding="utf-8")


def locked_bytes() -> int:
    """Memory of this process that is never swapped out."""
    found = re.search(r"^VmLck:\s*(\d+) kB$", Path("/proc/self/status").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


async def test_a_locked_model_stays_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # What may be locked is bounded, by a few MB on most machines and by 64 kB on some.
    model = tmp_path / "small.gguf"
    write_tiny_encoder("bert", model)
    before = locked_bytes()
    async with weft.Engine(model, config=SMALL, use_mlock=True) as engine:
        locked, size = locked_bytes() - before, engine.model.size_bytes
        assert (await engine.embed("a")).n_tokens == [3]
    allowed, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    assert locked > 0.9 * size or (-1 < allowed < size and "failed to mlock" in caplog.text)


@pytest.mark.parametrize("asked", [{"n_gpu_layers": 99}, {"tensor_split": (1.0,)}, {"split_mode": "row"}], ids=str)
async def test_whoever_asks_for_gpus_where_there_are_none_is_told(asked: EngineOptions, caplog: pytest.LogCaptureFixture) -> None:
    told = "llama.cpp found no GPU: the CPU computes the whole model, and the settings for GPUs have no effect"
    with caplog.at_level(logging.WARNING):
        async with weft.Engine(config=SMALL):
            pass
        assert told not in caplog.messages
        async with weft.Engine(config=SMALL, **asked) as engine:
            assert (await engine.complete("Once upon a time,", max_tokens=2)).n_predicted == 2
    assert (told in caplog.messages) is (not _native.devices())


@pytest.mark.parametrize(
    ("asked", "n_rows"),
    [({}, 64), ({"n_ubatch": 32}, 32), ({"n_batch": 32}, 32), ({"n_batch": 64, "n_ubatch": 32}, 32)],
    ids=str,
)
async def test_a_step_computes_as_many_tokens_as_asked(asked: EngineOptions, n_rows: int) -> None:
    async with weft.Engine(config=SMALL, **asked) as engine:

        def computed() -> list[int]:
            return [step.n_rows for step in engine.recent_steps()]

        await engine.complete(prompt_of(100, "as asked"), max_tokens=1)
        await wait_until(lambda: sum(computed()) >= 100)
        assert sum(computed()) == 100
        assert max(computed()) == n_rows


def threads() -> Counter[str]:
    """How many threads of this process have each name."""
    names: Counter[str] = Counter()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # It has ended.
            names[(task / "comm").read_text(encoding="utf-8").strip()] += 1
    return names


@pytest.mark.parametrize(
    ("asked", "n_workers", "n_samplers"),
    [({}, 1, 0), ({"n_threads": 2}, 2, 1), ({"n_threads_batch": 2}, 2, 0)],
    ids=str,
)
async def test_a_step_is_computed_by_as_many_threads_as_asked(asked: EngineOptions, n_workers: int, n_samplers: int) -> None:
    # There are never more than processors.
    n = len(os.sched_getaffinity(0))
    before = threads()
    async with weft.Engine(config=SMALL, **asked) as engine:
        await engine.complete(prompt_of(100, "as asked"), max_tokens=2)

        def are_there() -> bool:
            more = threads() - before
            # The threads that compute beside the worker have its name, those that draw beside it have their own.
            samplers = sum(count for name, count in more.items() if name.startswith("weft-sampler"))
            return (more["weft-worker"], samplers) == (min(n_workers, n), min(n_samplers, n - 1))

        await wait_until(are_there)


async def test_a_cache_of_32_bits_takes_twice_as_much_as_one_of_16(tmp_path: Path) -> None:
    saved: dict[str, int] = {}
    for kind in ("f32", "f16"):
        async with weft.Engine(config=SMALL, type_k=kind, type_v=kind) as engine:
            saved[kind] = (await engine.save_prefix(prompt_of(100, "kinds of cache"), tmp_path / kind)).n_bytes
    assert saved["f32"] == pytest.approx(2 * saved["f16"], rel=0.02)


@pytest.mark.parametrize(("strategy", "name"), [("distribute", "Distribute"), ("isolate", "Isolate"), ("numactl", "Numactl")])
def test_every_strategy_for_numa_binds_the_threads(strategy: str, name: str) -> None:
    # How memory is laid out is settled once for a process, which then says how.
    program = """
import asyncio, sys, weft

async def answered(numa):
    async with weft.Engine(n_slots=1, n_ctx=256, n_threads=1, tuned=False, numa=numa) as engine:
        return (await engine.complete("Once upon a time,", max_tokens=2)).n_predicted

asked = sys.argv[1]
print(asyncio.run(answered(asked)))
try:
    asyncio.run(answered("isolate" if asked == "distribute" else "distribute"))
except weft.ModelLoadError as error:
    print(error)
"""
    first, second = printed(sys.executable, "-c", program, strategy).splitlines()
    assert first == "2"
    assert second.endswith(f"this process already uses {name}")
