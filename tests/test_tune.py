"""What is measured once is used by later starts, unless a user says otherwise."""

import re
import subprocess
import sys
from pathlib import Path

import gguf
import msgspec
import pytest

import weft
from tests.engine.tiny_models import KINDS, Kind, write_tiny_model
from weft import _native
from weft._native import Hardware, tune
from weft.cli.tune import NOISE, table
from weft.config import Kernels
from weft.installed import distribution
from weft.work import tuning
from weft.work.tuning import Conditions, Measurement, TuningResult

SLOW = TuningResult(True, 1, 1, "a model", "a processor", ())
"""What the rule would never choose for llama.cpp's own kernels on a CPU."""


@pytest.fixture(autouse=True)
def _empty_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def model(model_path: Path) -> weft.Model:
    """The demo model."""
    return weft.Model.load(model_path)


def file_of(model: weft.Model, type_v: str = "f16", kernels: Kernels = "auto", *, repack: bool | None = None) -> Path:
    return tuning.tune_file(model, Conditions(None, "f16", type_v, kernels, repack))


async def chosen(**settings: object) -> weft.Compute:
    async with weft.Engine(n_ctx=1024, **settings) as engine:  # type: ignore[arg-type]
        return engine.compute


HAS_GPU = bool(Hardware.read().gpus)
on_a_cpu = pytest.mark.skipif(HAS_GPU, reason="on a GPU llama.cpp decides")


@pytest.fixture(scope="module")
def has_ours(model: weft.Model) -> bool:
    """Whether Weft's own attention computes every layer of the demo model here."""
    return _native.Engine(model, weft.EngineConfig(n_ctx=1024)).compute.attention == "weft" and not HAS_GPU


@on_a_cpu
async def test_on_a_cpu_attention_is_our_own_where_it_can_be(has_ours: bool) -> None:
    choice = await chosen()
    assert choice.n_threads == choice.n_threads_batch == Hardware.read().n_cores
    if has_ours:
        assert (choice.flash_attention, choice.attention) == ("on", "weft")
        assert re.match(r"attention by weft \(\w[\w-]*\), products by ", choice.summary)
    else:
        assert (choice.flash_attention, choice.attention) == ("off", "llama.cpp")
        assert " by weft: " in choice.summary


@on_a_cpu
async def test_with_llama_cpps_kernels_flash_attention_is_off() -> None:
    choice = await chosen(kernels="llama.cpp")
    assert (choice.flash_attention, choice.attention, choice.products) == ("off", "llama.cpp", "llama.cpp")
    assert choice.summary.startswith("attention by llama.cpp with flash off (default on a CPU, ")
    assert ", products by llama.cpp (configured), " in choice.summary


@pytest.mark.parametrize("flash", ["on", "off"])
async def test_flash_attention_that_is_asked_for_is_llama_cpps(flash: str, has_ours: bool) -> None:
    choice = await chosen(flash_attention=flash)
    assert (choice.flash_attention, choice.attention) == (flash, "llama.cpp")
    if has_ours:
        assert choice.products == "weft"


@on_a_cpu
async def test_formats_that_our_attention_lacks_are_left_to_llama_cpps() -> None:
    choice = await chosen(type_k="q4_0", type_v="q4_0")
    assert (choice.flash_attention, choice.attention) == ("on", "llama.cpp")
    assert "(required by a quantised V)" in choice.summary


@pytest.mark.parametrize("repack", [False, True])
async def test_weights_may_be_repacked_or_not(repack: bool, has_ours: bool) -> None:
    choice = await chosen(repack=repack)
    if has_ours:
        assert (" where weights are not " in choice.summary) == repack


async def test_a_later_start_uses_what_was_measured(model: weft.Model) -> None:
    tuning.write(file_of(model, kernels="llama.cpp"), SLOW)
    choice = await chosen(kernels="llama.cpp")
    assert (choice.flash_attention, choice.n_threads, choice.n_threads_batch) == ("on", 1, 1)
    expected = "attention by llama.cpp with flash on (tuned), products by llama.cpp (configured), "
    assert choice.summary == expected + "at most 512 tokens per decode, 1 threads (tuned)"


async def test_an_engine_of_a_package_without_metadata_uses_it_too(model: weft.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning.write(file_of(model, kernels="llama.cpp"), SLOW)
    monkeypatch.setattr(distribution, "NAMES", ())
    assert "tuned" in (await chosen(kernels="llama.cpp")).summary


@on_a_cpu
async def test_where_our_attention_computes_only_threads_are_read(model: weft.Model, has_ours: bool) -> None:
    tuning.write(file_of(model), msgspec.structs.replace(SLOW, flash_attention=None))
    choice = await chosen()
    assert (choice.n_threads, choice.n_threads_batch) == (1, 1)
    assert choice.flash_attention == ("on" if has_ours else "off")


async def test_a_user_wins_over_what_was_measured(model: weft.Model) -> None:
    tuning.write(file_of(model), SLOW)
    choice = await chosen(flash_attention="off", n_threads=2)
    assert (choice.flash_attention, choice.n_threads, choice.n_threads_batch) == ("off", 2, 2)
    assert "tuned" not in (await chosen(tuned=False)).summary


async def test_what_was_measured_under_other_conditions_is_not_used(model: weft.Model) -> None:
    tuning.write(file_of(model, type_v="q8_0"), SLOW)
    tuning.write(file_of(model, kernels="weft"), SLOW)
    tuning.write(file_of(model, repack=True), SLOW)
    assert "tuned" not in (await chosen()).summary
    assert "tuned" not in (await chosen(kernels="llama.cpp")).summary
    assert "tuned" in (await chosen(kernels="weft")).summary
    assert "tuned" in (await chosen(repack=True)).summary


@pytest.mark.parametrize("damage", [b"", b"{", b'{"flash_attention": "perhaps"}', b"\xff"])
async def test_a_damaged_file_is_as_none(model: weft.Model, damage: bytes) -> None:
    path = file_of(model)
    path.parent.mkdir(parents=True)
    path.write_bytes(damage)
    assert "tuned" not in (await chosen()).summary


@pytest.mark.parametrize("threads", [0, 513])
async def test_threads_that_no_engine_takes_are_refused(model: weft.Model, threads: int) -> None:
    tuning.write(file_of(model), msgspec.structs.replace(SLOW, threads=threads))
    assert "tuned" not in (await chosen()).summary
    with pytest.raises(weft.InvalidConfigError, match=f"tuned has 1 and {threads} threads; both must be 1 to 512"):
        _native.Engine(model, weft.EngineConfig(), tuned=(False, 1, threads))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_can_be_timed(tiny_models: dict[Kind, Path], kind: Kind) -> None:
    done: list[float] = []
    tuning = tune(weft.Model.load(tiny_models[kind]), budget_s=0.0, on_progress=done.append)
    n_cores = Hardware.read().n_cores
    assert {timing.work for timing in tuning.timings} == {"prompt", "branches"}
    # With no time at all, the rule's number of threads is timed with each attention, and nothing else.
    assert all((timing.seconds is not None) == (timing.n_threads == n_cores) for timing in tuning.timings)
    assert tuning.best[1:] == (n_cores, n_cores)
    assert done == sorted(done)
    assert done[-1] == 1


def test_where_our_attention_computes_only_threads_are_timed(model: weft.Model, has_ours: bool) -> None:
    attentions = {timing.flash_attention for timing in tune(model, budget_s=0.0).timings}
    assert attentions == ({None} if has_ours else {False, True})


def test_llama_cpps_two_attentions_are_timed_where_they_compute(model: weft.Model) -> None:
    tuning = tune(model, kernels="llama.cpp", budget_s=0.0)
    assert {timing.flash_attention for timing in tuning.timings} == {False, True}
    assert tuning.best[0] in (False, True)


def test_a_quantised_v_leaves_only_flash_attention(model: weft.Model) -> None:
    tuning = tune(model, type_v="q4_0", budget_s=0.0)
    assert all(timing.flash_attention for timing in tuning.timings)
    assert tuning.best[0]


def test_kernels_that_nobody_has_are_refused(model: weft.Model) -> None:
    with pytest.raises(weft.InvalidConfigError, match=r"kernels is 'ggml'; it must be auto, weft or llama\.cpp"):
        tune(model, kernels="ggml", budget_s=0.0)  # type: ignore[arg-type]


def test_a_time_that_is_none_is_refused(model: weft.Model) -> None:
    with pytest.raises(weft.InvalidConfigError, match="budget_s is -1; it must be a number of seconds, 0 or more"):
        tune(model, budget_s=-1.0)


def test_a_progress_that_fails_ends_it(model: weft.Model) -> None:
    told: list[float] = []

    def fail(fraction: float) -> None:
        told.append(fraction)
        raise KeyError("progress")

    with pytest.raises(KeyError, match="progress"):
        tune(model, on_progress=fail)
    assert len(told) == 1


def test_a_model_with_few_positions_is_timed_within_them(tmp_path: Path) -> None:
    # llama.cpp ends the process at a position that the model has no weight for.
    write_tiny_model("positions", tmp_path / "short.gguf")
    tuning = tune(weft.Model.load(tmp_path / "short.gguf"), budget_s=0.0)
    assert all(timing.seconds for timing in tuning.timings if timing.n_threads == Hardware.read().n_cores)


def test_ctrl_c_ends_the_command_and_keeps_nothing(model: weft.Model) -> None:
    # The key is pressed after the first measurement. Where these tests run in the background, a shell has them ignore it.
    pressed = "lambda title: 'timing' in title and (lambda _: os.kill(os.getpid(), signal.SIGINT)) or None"
    restored = "signal.signal(signal.SIGINT, signal.default_int_handler)"
    script = f"import os, signal; {restored}; from weft.cli import main, tune; tune.bar = {pressed}; main.main()"
    command = [sys.executable, "-c", script, "tune"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (answer.returncode, answer.stdout) == (130, "")
    assert answer.stderr == "\ntune: interrupted; nothing was saved\n"
    assert tuning.read(file_of(model)) is None


def test_a_choice_that_cannot_be_kept_is_still_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    command = [
        sys.executable,
        "-c",
        "from weft.cli import main, tune; tune.BUDGET_S = 0.1; main.main()",
        "tune",
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert answer.returncode == 1
    fastest = r"^fastest: (flash (on|off), )?\d+ threads, \d+ for prompts(, weights .+)?$"
    assert re.search(fastest, answer.stdout, re.MULTILINE)
    flags = r"(-fa (on|off) )?-t \d+ -tb \d+( --(no-)?repack)?"
    assert re.search(rf"^tune: cannot save the result to .*: Not a directory; start with {flags}$", answer.stderr)


@pytest.mark.parametrize("kernels", ["auto", "llama.cpp"])
def test_the_command_prints_a_table_and_keeps_the_choice(model: weft.Model, kernels: Kernels) -> None:
    script = "from weft.cli import main, tune; tune.BUDGET_S = 1.0; main.main()"
    command = [sys.executable, "-c", script, "tune", "--kernels", kernels]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == "", "a bar is drawn on terminals only"
    kept = tuning.read(file_of(model, kernels=kernels))
    assert kept is not None
    # Timed as well where the layout of weights is open, as it is for this model where the processor has AMX.
    other = tuning.read(file_of(model, kernels=kernels, repack=not model.is_repacked))
    assert table(kept.measured + (() if other is None else other.measured)) in answer.stdout
    fastest = other if other is not None and other.seconds < NOISE * kept.seconds else kept
    flash = "" if fastest.flash_attention is None else f"flash {'on' if fastest.flash_attention else 'off'}, "
    assert f"\nfastest: {flash}{fastest.threads} threads, " in answer.stdout


def test_where_the_layout_of_weights_is_open_both_are_timed_and_kept(tmp_path: Path, has_ours: bool) -> None:
    path = tmp_path / "four-bits.gguf"
    write_tiny_model("attention", path, matrices=gguf.GGMLQuantizationType.Q4_0)
    model = weft.Model.load(path)
    assert model.is_layout_open == has_ours
    script = "from weft.cli import main, tune; tune.BUDGET_S = 1.0; main.main()"
    command = [sys.executable, "-c", script, "tune", "-m", str(path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert answer.returncode == 0, answer.stderr
    by_rule = tuning.read(file_of(model))
    assert by_rule is not None
    assert {timing.repacked for timing in by_rule.measured} == {model.is_repacked}
    other = tuning.read(file_of(model, repack=not model.is_repacked))
    if not has_ours:
        assert other is None
        assert "weights" not in answer.stdout
        return
    assert other is not None
    assert {timing.repacked for timing in other.measured} == {not model.is_repacked}
    assert table(by_rule.measured + other.measured) in answer.stdout
    fastest = other if other.seconds < NOISE * by_rule.seconds else by_rule
    lie = "repacked by llama.cpp" if fastest.measured[0].repacked else "in their on-disk layout"
    assert f"{fastest.threads_batch} for prompts, weights {lie}\n" in answer.stdout
    flag = "--no-repack" if model.is_repacked else "--repack"
    assert (f"\nstart with {flag}: " in answer.stdout) == (fastest is other)


@pytest.mark.parametrize("flag", ["--repack", "--no-repack"])
def test_a_layout_that_is_asked_for_is_the_only_one_timed(tmp_path: Path, flag: str) -> None:
    path = tmp_path / "four-bits.gguf"
    write_tiny_model("attention", path, matrices=gguf.GGMLQuantizationType.Q4_0)
    script = "from weft.cli import main, tune; tune.BUDGET_S = 0.2; main.main()"
    command = [sys.executable, "-c", script, "tune", "-m", str(path), flag]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert answer.returncode == 0, answer.stderr
    assert "weights" not in answer.stdout
    kept = tuning.read(file_of(weft.Model.load(path), repack=flag == "--repack"))
    assert kept is not None
    assert all(timing.repacked == (flag == "--repack") for timing in kept.measured)


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["-m", "nowhere.gguf"], 1, "tune: cannot load the model nowhere.gguf: there is no such file"),
        (["--port", "1"], 2, "unknown argument --port"),
        (["-ctv", "q9"], 2, "argument -ctv"),
    ],
)
def test_the_command_says_what_is_wrong(argv: list[str], code: int, words: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "weft", "tune", *argv], capture_output=True, text=True, check=False, timeout=60
    )
    assert answer.returncode == code
    assert words in answer.stderr


def test_the_table_names_what_there_was_no_time_for() -> None:
    measured = (
        Measurement("prompt", False, 2, 4.0),
        Measurement("prompt", True, 2, 2.0),
        Measurement("branches", None, 2, 3.0),
        Measurement("branches", None, 1, None),
    )
    assert table(measured).splitlines()[1:] == [
        "a prompt of 1,000 tokens           flash off        2     4.00            2.00",
        "                                   flash on         2     2.00            1.00",
        "8 branches of it, 128 tokens each  weft             2     3.00            1.00",
        "                                   weft             1  no time",
    ]


def test_the_table_says_how_weights_lay_where_that_differs() -> None:
    measured = (Measurement("prompt", None, 2, 4.0), Measurement("prompt", None, 2, 2.0, repacked=True))
    assert table(measured).splitlines() == [
        "                                   weights   attention  threads  seconds  times the best",
        "a prompt of 1,000 tokens           in file   weft             2     4.00            2.00",
        "                                   repacked  weft             2     2.00            1.00",
    ]


def test_what_a_layout_takes_is_the_sum_of_what_was_chosen() -> None:
    measured = (
        Measurement("prompt", False, 2, 4.0),
        Measurement("prompt", True, 2, 2.0),
        Measurement("prompt", True, 1, 8.0),
        Measurement("branches", True, 2, 3.0),
        Measurement("branches", True, 1, 16.0),
    )
    assert TuningResult(True, 1, 2, "a model", "a processor", measured).seconds == 18.0
