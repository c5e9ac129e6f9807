"""What settings of the engine come to: where its weights lie, how its cache is kept, and what computes a step."""

import logging
import re
import resource
import shutil
from pathlib import Path

import pytest

import weft
from tests.helpers import prompt_of
from tests.server.live import LiveServer
from weft.config import EngineOptions

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


async def test_a_locked_model_stays_in_memory(own_model: Path) -> None:
    before = locked_bytes()
    async with weft.Engine(own_model, config=SMALL, use_mlock=True) as engine:
        locked, size = locked_bytes() - before, engine.model.size_bytes
        assert (await engine.complete("Once upon a time,", max_tokens=2)).n_predicted == 2
    allowed, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    assert locked > 0.9 * size or -1 < allowed < size


@pytest.mark.parametrize(
    "asked", [{"n_gpu_layers": 99}, {"main_gpu": 3}, {"tensor_split": (3.0, 1.0)}, {"split_mode": "row"}], ids=str
)
async def test_whoever_asks_for_gpus_where_there_are_none_is_told(asked: EngineOptions, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with weft.Engine(config=SMALL):
            pass
        assert caplog.messages == []
        async with weft.Engine(config=SMALL, **asked) as engine:
            assert (await engine.complete("Once upon a time,", max_tokens=2)).n_predicted == 2
    assert caplog.messages == ["llama.cpp finds no GPU: all of the model is computed by the CPU, whatever GPUs are asked to hold"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"n_threads": 2}, "at most 256 tokens per decode, 2 threads (asked for)"),
        ({"n_threads_batch": 2}, "at most 256 tokens per decode, 1 threads (asked for), 2 for prompts (asked for)"),
        ({"n_ubatch": 32}, "at most 32 tokens per decode, 1 threads (asked for)"),
        ({"n_batch": 32}, "at most 32 tokens per decode, 1 threads (asked for)"),
        ({"n_batch": 64, "n_ubatch": 32}, "at most 32 tokens per decode, 1 threads (asked for)"),
    ],
    ids=str,
)
async def test_a_step_is_computed_by_as_many_threads_and_of_as_many_tokens_as_asked(asked: EngineOptions, told: str) -> None:
    async with weft.Engine(config=SMALL, **asked) as engine:
        assert engine.compute.summary.endswith(told)
        assert (await engine.complete(prompt_of(100, "as asked"), max_tokens=1)).n_predicted == 1


async def test_a_cache_of_32_bits_takes_twice_as_much_as_one_of_16(tmp_path: Path) -> None:
    saved: dict[str, int] = {}
    for kind in ("f32", "f16"):
        async with weft.Engine(config=SMALL, type_k=kind, type_v=kind) as engine:
            saved[kind] = (await engine.save_prefix(prompt_of(100, "kinds of cache"), tmp_path / kind)).n_bytes
    assert saved["f32"] == pytest.approx(2 * saved["f16"], rel=0.02)


@pytest.mark.parametrize("strategy", [[], ["distribute"], ["isolate"], ["numactl"]], ids=str)
async def test_every_strategy_for_numa_serves(strategy: list[str], tmp_path: Path) -> None:
    # How memory is laid out is settled once for a process.
    with LiveServer(tmp_path / "log", "--numa", *strategy, "-np", "1", "-c", "256") as server:
        await server.ready()
        assert server.get("/props")["total_slots"] == 1
        assert "ERROR" not in server.log
