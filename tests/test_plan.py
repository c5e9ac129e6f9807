"""`weft plan` shows the memory that a started engine uses."""

import json
import logging
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import weft
from tests.adapters import write_adapter
from tests.engine.tiny_encoders import write_tiny_encoder
from tests.engine.tiny_models import KINDS, Kind, write_tiny_model
from tests.engine.tiny_projectors import write_tiny_projector
from tests.helpers import wait_until
from weft import _native
from weft.cli.main import parse
from weft.cli.plan import MIB, Plan, make_plan

SIZES = {"n_slots": 4, "n_ctx": 1024}
FLAGS = ("-np", "4", "-c", "1024")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weft", "plan", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def planned(*arguments: str) -> Plan:
    return make_plan(parse(arguments, {}).settings)


def mebibytes(plan: Plan, *beginnings: str) -> float:
    return sum(part.n_bytes for part in plan.parts if part.name.startswith(beginnings)) / MIB


async def started(path: Path, caplog: pytest.LogCaptureFixture) -> tuple[weft.Limits, Counter[str]]:
    """The limits of a started engine, and the mebibytes that llama.cpp logged for each kind of buffer."""
    with caplog.at_level(logging.DEBUG, "weft"):
        async with weft.Engine(path, n_slots=4, n_ctx=1024) as engine:
            limits = engine.limits
            # Another thread writes the log; the compute buffer is llama.cpp's last.
            await wait_until(lambda: any("compute buffer size" in record.message for record in caplog.records))
    sizes: Counter[str] = Counter()
    for kind, size in re.findall(r"(\w+) buffer size = +([\d.]+) MiB", "\n".join(record.message for record in caplog.records)):
        sizes[kind] += float(size)  # type: ignore[assignment]
    return limits, sizes


@pytest.mark.parametrize("kind", KINDS)
async def test_a_plan_has_the_sizes_of_a_started_engine(kind: Kind, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(kind, path)
    plan = planned("-m", str(path), *FLAGS)
    caplog.clear()
    limits, sizes = await started(path, caplog)
    assert (plan.n_slots, plan.n_ctx, plan.n_ctx_slot, plan.n_ubatch) == (
        limits.n_slots,
        limits.n_ctx,
        limits.n_ctx_slot,
        limits.n_ubatch,
    )
    assert plan.max_host_cache_bytes == limits.max_host_cache_bytes
    # llama.cpp logs two decimals.
    assert mebibytes(plan, "KV cache", "recurrent") == pytest.approx(sizes["KV"] + sizes["RS"], abs=0.02)
    assert mebibytes(plan, "logits") == pytest.approx(sizes["output"], abs=0.02)
    # A mapped file has metadata before the weights.
    assert mebibytes(plan, "weights") == pytest.approx(sizes["model"], abs=0.1)
    assert mebibytes(plan, "compute") > 0
    names = {part.name for part in plan.parts}
    assert ("recurrent states" in names) == (kind in {"recurrent", "hybrid"})
    assert ("KV cache: keys, f16" in names) == (kind != "recurrent")


def test_each_format_of_the_cache_has_its_own_part() -> None:
    plan = planned(*FLAGS, "-ctk", "q8_0")
    assert mebibytes(plan, "KV cache: keys, q8_0") / mebibytes(plan, "KV cache: values, f16") == pytest.approx(34 / 64)


def test_weights_that_are_not_mapped_are_said_to_be_loaded() -> None:
    assert "weights" in {part.name for part in planned(*FLAGS, "--no-mmap").parts}
    assert "weights, mapped" in {part.name for part in planned(*FLAGS).parts}


def test_adapters_and_projectors_count_with_their_files(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter.gguf", seed=1)
    model, projector = write_tiny_projector("llava", tmp_path)
    assert mebibytes(planned(*FLAGS, "--lora", str(adapter)), "LoRA") == adapter.stat().st_size / MIB
    assert mebibytes(planned("-m", str(model), *FLAGS, "-mm", str(projector)), "projector") == projector.stat().st_size / MIB


def test_the_command_takes_a_model_and_the_flags_of_a_start(tmp_path: Path) -> None:
    write_tiny_model("window", tmp_path / "tiny.gguf")
    ran = run(str(tmp_path / "tiny.gguf"), *FLAGS, "--port", "80", "--metrics")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "4 slots, 1,024 tokens of context" in ran.stdout
    assert re.search(r"^total +[\d.]+$", ran.stdout, re.MULTILINE)


def test_json_has_bytes() -> None:
    ran = run(*FLAGS, "--json")
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["n_ctx"] == 1024
    assert report["total_bytes"] == sum(part["n_bytes"] for part in report["parts"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["nowhere.gguf"], "plan: cannot load the model nowhere.gguf", id="no model"),
        pytest.param(["-c", "2000000000"], "plan: -c/--ctx-size is 2000000000, which takes", id="more than is free"),
    ],
)
def test_what_does_not_start_cannot_be_planned(arguments: list[str], message: str) -> None:
    ran = run(*arguments)
    assert ran.returncode == 1
    assert ran.stderr.startswith(message)


def test_an_encoder_has_no_cache_to_plan(tmp_path: Path) -> None:
    write_tiny_encoder("bert", tmp_path / "bert.gguf")
    with pytest.raises(weft.NotSupportedError, match="is an encoder"):
        planned("-m", str(tmp_path / "bert.gguf"))


def test_a_model_without_weights_does_not_run(model_path: Path) -> None:
    model = _native.Model.load_sizes(model_path)
    assert model.size_bytes == weft.Model.load(model_path).size_bytes
    with pytest.raises(weft.ModelLoadError, match="its weights were not loaded"):
        _native.Engine(model, weft.EngineConfig())
    with pytest.raises(weft.ModelLoadError, match="without its weights"):
        _native.plan_memory(weft.Model.load(model_path), weft.EngineConfig())
