"""Each exception, when it is raised and what it tells."""

import asyncio
import math
import pickle
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import weft
from tests.helpers import prompt_of, wait_until
from weft import _native
from weft.fields.meta import field_meta


@pytest.fixture
async def small() -> AsyncIterator[weft.Engine]:
    """One slot, and one request may wait."""
    async with weft.Engine(n_slots=1, n_ctx=512, max_queue=1, n_threads=1) as engine:
        yield engine


INVALID: list[tuple[str, object]] = [
    ("n", 0),
    ("n", 257),
    ("n", "two"),
    ("max_tokens", -1),
    ("stop", 5),
    ("stop", [""]),
    ("stop", [1]),
    ("seed", -1),
    ("seed", 2**32),
    ("temperature", math.nan),
    ("temperature", None),
    ("top_k", 1.5),
    ("top_p", math.inf),
    ("min_p", "0.1"),
    ("repeat_penalty", 0),
    ("repeat_last_n", -2),
    ("presence_penalty", 1e300),
    ("frequency_penalty", math.nan),
    ("logit_bias", [(2048, 1.0)]),
    ("logit_bias", [(1, math.inf)]),
    ("logit_bias", {2048: 1.0}),
    ("json_schema", object),
    ("json_schema", {"type": object}),
    ("json_schema", 5),
    ("ignore_eos", 1),
    ("logprobs", 1001),
    ("priority", 101),
    ("priority", -101),
    ("priority", -(2**31)),
    ("priority", 2**40),
    ("priority", 0.5),
    ("max_token_gap_ms", 0.5),
    ("max_token_gap_ms", 60_001),
    ("max_token_gap_ms", -1),
    ("max_token_gap_ms", 1e300),
    ("max_token_gap_ms", math.nan),
    ("max_token_gap_ms", "soon"),
    ("slot", -1),
    ("slot", 4),
    ("slot", 2**32),
    ("slot", "0"),
]


@pytest.mark.parametrize(("param", "value"), INVALID, ids=[f"{param}={value!r}" for param, value in INVALID])
async def test_an_invalid_field_is_named(engine: weft.Engine, param: str, value: object) -> None:
    options: Any = {param: value}
    with pytest.raises(weft.InvalidRequestError) as raised:
        engine.stream("A fox", **options)
    assert raised.value.param == param
    assert raised.value.message == str(raised.value) != ""


@pytest.mark.parametrize(
    "prompt",
    [[], [-1], [2048], [2**31], [1, "a", 2.5], b"bytes", 5, None, "\ud800"],
    ids=["no tokens", "negative", "outside of the vocabulary", "huge", "mixed", "bytes", "a number", "nothing", "lone surrogate"],
)
async def test_an_invalid_prompt_is_named(engine: weft.Engine, prompt: object) -> None:
    options: Any = {"prompt": prompt}
    with pytest.raises(weft.InvalidRequestError) as raised:
        engine.stream(**options)
    assert raised.value.param == "prompt"


async def test_an_unknown_option_is_a_type_error(engine: weft.Engine) -> None:
    options: Any = {"temprature": 1.0}
    with pytest.raises(TypeError, match="temprature"):
        engine.stream("A fox", **options)


async def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(small: weft.Engine) -> None:
    n_ctx = small.limits.n_ctx_slot
    with pytest.raises(weft.ContextOverflowError) as raised:
        small.stream(prompt_of(n_ctx, "full"))
    assert (raised.value.n_prompt, raised.value.n_ctx) == (n_ctx, n_ctx)
    assert (await small.complete(prompt_of(n_ctx - 1, "fits"))).n_prompt == n_ctx - 1


async def test_a_text_that_cannot_fit_is_refused_by_its_length(small: weft.Engine) -> None:
    longest, n_ctx = small.model.longest_piece, small.limits.n_ctx_slot
    assert longest is not None
    assert len(small.tokenize("a" * longest * n_ctx)) >= n_ctx
    with pytest.raises(weft.ContextOverflowError, match=f"the prompt of at least {n_ctx} tokens does not fit") as raised:
        small.stream("a" * longest * n_ctx)
    assert (raised.value.n_prompt, raised.value.is_least) == (n_ctx, True)
    with pytest.raises(weft.ContextOverflowError) as raised:
        small.stream("a" * (longest * (n_ctx - 1)))
    assert not raised.value.is_least


async def test_a_full_queue_refuses_and_recovers(small: weft.Engine) -> None:
    running = small.stream("A fox", ignore_eos=True)
    await anext(running)
    waiting = small.stream("A hedgehog", max_tokens=1)
    with pytest.raises(weft.QueueFullError) as raised:
        small.stream("An owl")
    assert raised.value.n_waiting == 1
    running.close()
    assert len([event async for event in waiting]) == 2


async def test_a_reader_that_is_too_far_behind_is_waited_for(engine: weft.Engine) -> None:
    before = engine.stats().n_predicted
    stream = engine.stream("A fox", n=4, max_tokens=500, ignore_eos=True, logprobs=1000)
    # Each token comes with about 72 kB, of which 32 MiB may wait.
    await wait_until(lambda: engine.stats().n_predicted - before > 32 * 2**20 // 72_100)
    events = [event async for event in stream]
    assert sum(isinstance(event, weft.Token) for event in events) == 4 * 500


async def test_open_streams_end_with_engine_stopped() -> None:
    engine = weft.Engine(n_slots=1, n_ctx=512, n_threads=1)
    await engine.start()
    running, waiting = engine.stream("A fox", ignore_eos=True), engine.stream("An owl", ignore_eos=True)
    await anext(running)
    waits = asyncio.create_task(waiting.next_batch())
    await asyncio.sleep(0)
    await engine.close()
    with pytest.raises(weft.EngineStoppedError):
        await asyncio.wait_for(waits, 2)
    with pytest.raises(weft.EngineStoppedError):
        async for _ in running:
            pass
    with pytest.raises(StopAsyncIteration):
        await anext(running)


async def test_a_closed_engine_says_so() -> None:
    engine = weft.Engine()
    await engine.close()
    await engine.close()
    with pytest.raises(weft.EngineStoppedError):
        engine.stream("A fox")
    with pytest.raises(weft.EngineStoppedError):
        await engine.start()


async def test_an_engine_that_was_not_started_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=re.escape("use `async with` or `await engine.start()`")):
        weft.Engine().stream("A fox")


async def test_an_engine_starts_once(engine: weft.Engine) -> None:
    with pytest.raises(RuntimeError, match="already started"):
        await engine.start()


SETTINGS: list[tuple[str, object, str]] = [
    ("n_slots", 0, "from 1 to 254, or None"),
    ("n_slots", 255, "from 1 to 254, or None"),
    ("n_slots", "8", "from 1 to 254, or None"),
    ("n_slots", True, "an integer from 1 to 254, or None"),
    ("n_ctx", -1, "from 0 to 2,147,483,392, or None"),
    ("n_batch", 0, "from 1 to 2,147,483,647"),
    ("n_ubatch", 1.5, "an integer"),
    ("n_threads", 0, "from 1 to 512, or None"),
    ("n_threads_batch", 10_000, "from 1 to 512, or None"),
    ("n_gpu_layers", -2, "an integer from 0"),
    ("max_queue", 0, "an integer from 1"),
    ("checkpoint_min_step", 0, "an integer from 1"),
    ("kernels", "ggml", "auto, weft or llama.cpp"),
    ("flash_attention", "maybe", "auto, on or off"),
    ("type_k", "q3", "f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0 or q5_1"),
    ("cache_ram", -2, "an integer from -1"),
    ("cache_ram", 2**44, "an integer from -1"),
    ("cache_ram", 1.5, "an integer from -1"),
    ("max_token_gap_ms", math.nan, "a finite number, 0 or more, or None"),
    ("max_token_gap_ms", -1.0, "a finite number, 0 or more, or None"),
    ("use_mmap", "yes", "True or False"),
    ("devices", "CUDA0", "a list, each element of which is a text, or None"),
    ("tensor_split", [-1.0], "a list, each element of which is a finite number, 0 or more"),
    ("split_mode", "columns", "layer, row or none"),
    ("rope_scaling_type", "longrope", "none, linear or yarn, or None"),
    ("rope_freq_base", 1.0, "a finite number from 2 to 1,000,000,000,000, or None"),
    ("rope_freq_scale", 0.0, "a finite number from 0.0001 to 10,000, or None"),
    ("yarn_ext_factor", math.inf, "a finite number from 0 to 1,000,000, or None"),
    ("yarn_orig_ctx", 0, "an integer from 1"),
    ("kv_overrides", {"a": [1]}, "a pair of a text and True or False or an integer or a finite number or a text"),
    ("kv_overrides", {"a": math.nan}, "a list, each element of which is a pair of a text and True or False"),
    ("tensor_overrides", ["ffn=CPU"], "a list, each element of which is a pair of a text and a text"),
    ("cpus", [0, 512], "a list, each element of which is an integer from 0 to 511"),
    ("prio", 4, "an integer from -1 to 3"),
    ("poll_batch", 101, "an integer from 0 to 100, or None"),
]


@pytest.mark.parametrize(("param", "value", "right"), SETTINGS, ids=[f"{param}={value!r}" for param, value, _ in SETTINGS])
def test_an_invalid_setting_is_refused_before_anything_is_loaded(param: str, value: object, right: str) -> None:
    settings: Any = {param: value}
    for make in (weft.Engine, weft.EngineConfig):
        with pytest.raises(weft.InvalidConfigError) as raised:
            make(**settings)
        assert raised.value.param == param
        assert re.match(f"{param} is .*; it must be .*{re.escape(right)}", str(raised.value))


def test_what_a_wrong_setting_was_is_cut_in_its_message() -> None:
    settings: Any = {"kernels": "k" * 10_000}
    with pytest.raises(weft.InvalidConfigError) as raised:
        weft.Engine(**settings)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("thread", "unknown setting 'thread'; did you mean n_threads?"),
        ("ctx_size", "did you mean n_ctx?"),
        ("slots", "did you mean n_slots?"),
        ("gpu_layers", "did you mean n_gpu_layers?"),
        ("cache_type_k", "did you mean type_k?"),
        ("xyzzy", "the settings are n_slots, n_ctx, "),
    ],
)
def test_an_unknown_setting_is_a_type_error_with_the_nearest_name(name: str, said: str) -> None:
    settings: Any = {name: 3}
    with pytest.raises(TypeError, match=re.escape(said)):
        weft.Engine(**settings)


def test_settings_are_given_one_by_one_or_whole_or_both() -> None:
    config = weft.EngineConfig(n_ctx=4096, devices=("CUDA0",))
    assert weft.Engine(n_ctx=4096, devices=["CUDA0"]).config == config
    assert weft.Engine(config=config).config is config
    assert weft.Engine(config=config, n_slots=2).config == weft.EngineConfig(n_ctx=4096, devices=("CUDA0",), n_slots=2)
    wrong: Any = {"n_ctx": 4096}
    with pytest.raises(TypeError, match="config is of the type dict; it must be an EngineConfig"):
        weft.Engine(config=wrong)


BOUNDS = [
    (name, value)
    for name, about in field_meta(weft.EngineConfig).items()
    for value in (about.low - 1, about.high + 1)
    # Where the greatest is that of the type, the compiled engine's type has one bit more.
    if math.isfinite(value) and value != 2**31
]


@pytest.mark.parametrize(("param", "value"), BOUNDS)
def test_the_compiled_engine_refuses_what_lies_beyond_a_settings_bounds(param: str, value: float) -> None:
    options = msgspec.structs.asdict(weft.EngineConfig())
    options[param] = [value] if isinstance(options[param], tuple) else int(value)
    # The class itself would refuse the value.
    config: Any = SimpleNamespace(**options)
    with pytest.raises((weft.InvalidConfigError, OverflowError)) as raised:
        _native.Engine(weft.Model.load(weft.DEMO_MODEL, config), config)
    assert param in str(raised.value)


def bad_file(kind: str, folder: Path, model_path: Path) -> Path:
    """A file that is no model, in one way or another."""
    path = folder / "bad.gguf"
    match kind:
        case "missing":
            pass
        case "a folder":
            path.mkdir()
        case "empty":
            path.touch()
        case "text":
            path.write_text("Once upon a time, there was a file that wanted to be a model.")
        case "cut in its header":
            path.write_bytes(model_path.read_bytes()[:100])
        case "cut in its tensors":
            path.write_bytes(model_path.read_bytes()[:-1000])
        case "nothing but a header":
            path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    return path


@pytest.mark.parametrize(
    "kind", ["missing", "a folder", "empty", "text", "cut in its header", "cut in its tensors", "nothing but a header"]
)
async def test_a_bad_file_says_what_is_wrong_with_it(kind: str, tmp_path: Path, model_path: Path) -> None:
    path = bad_file(kind, tmp_path, model_path)
    with pytest.raises(weft.ModelLoadError) as raised:
        await weft.Engine(path).start()
    assert raised.value.path == str(path)
    assert raised.value.reason != ""
    assert str(path) in str(raised.value)


async def test_progress_is_told_on_the_loop_and_ends_at_one() -> None:
    told: list[float] = []
    loop = asyncio.get_running_loop()

    def on_progress(fraction: float) -> None:
        assert asyncio.get_running_loop() is loop
        told.append(fraction)

    async with weft.Engine(n_slots=1, n_ctx=256, n_threads=1, on_progress=on_progress):
        assert told == sorted(told)
        assert told[-1] == 1


async def test_an_exception_in_a_progress_callback_is_raised() -> None:
    def on_progress(_: float) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(weft.Model.load, weft.DEMO_MODEL, on_progress=on_progress)


async def test_a_cancelled_start_closes_the_engine() -> None:
    engine = weft.Engine(n_slots=1, n_ctx=256)
    task = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(weft.EngineStoppedError):
        engine.stream("A fox")


async def test_an_engine_closed_while_it_loads_does_not_start() -> None:
    engine = weft.Engine(n_slots=1, n_ctx=256)
    task = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    await engine.close()
    with pytest.raises(weft.EngineStoppedError):
        await task


@pytest.mark.parametrize(
    "error",
    [
        weft.ModelLoadError("a.gguf", "it is empty"),
        weft.InvalidConfigError("n_slots", "n_slots is 0"),
        weft.InvalidRequestError("n", "n is 0"),
        weft.ContextOverflowError(600, 512),
        weft.ContextOverflowError(600, 512, is_least=True),
        weft.QueueFullError(8),
        weft.PrefixFileError("a.bin", "it is truncated"),
        weft.PrefixSaveError("its state is not known"),
        weft.PinBudgetError(3, 2, 4),
        weft.AnswerTooLargeError(2**20),
        weft.SlowConsumerError(10_001, 10_000),
        weft.SlowConsumerError(2**26 + 1, 2**26, "bytes"),
        weft.DecodeError("out of memory"),
        weft.EngineStoppedError(),
        weft.ForkedProcessError(1, 2),
    ],
    ids=lambda error: type(error).__name__,
)
def test_exceptions_travel_between_processes(error: weft.WeftError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert str(copy) == str(error) != ""


FORK = """
import asyncio, os, sys, warnings, weft

warnings.simplefilter("ignore", DeprecationWarning)  # Newer Pythons warn of every fork beside threads.

def error_of(call):
    try:
        call()
    except weft.ForkedProcessError as error:
        assert "spawn" in str(error) and error.used_in == os.getpid()
        return "ForkedProcessError"

async def begin():
    engine = weft.Engine(n_slots=1, n_ctx=256, n_threads=1)
    await engine.start()
    stream = engine.stream("A fox", ignore_eos=True)
    await anext(stream)
    return engine, stream

async def go_on():
    assert (await anext(stream)).n_predicted == 2
    print("parent", flush=True)
    await engine.close()

# Not within a loop: parent and child would share its epoll.
engine, stream = asyncio.run(begin())
if os.fork() == 0:
    native = engine._native
    calls = [lambda: engine.stream("An owl"), lambda: engine.tokenize("An owl"), engine.stats, stream.close, stream.aclose,
             lambda: stream.next_batch().send(None), lambda: anext(stream).send(None), lambda: native.pin("An owl"),
             lambda: native.save("An owl"), native.pinned, native.cached, lambda: native.unpin(0),
             lambda: native.slot_state(0), lambda: native.erase_slot(0), lambda: native.read_prefix("a.bin")]
    print(*map(error_of, calls), flush=True)
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
asyncio.run(go_on())
"""


def test_a_forked_child_is_told_to_spawn_and_ends() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=25, check=False)
    assert done.stdout.splitlines() == [" ".join(["ForkedProcessError"] * 15), "parent"], done.stderr
    assert (done.returncode, done.stderr) == (0, "")


EXIT = """
import asyncio, weft

async def main():
    global engine, stream  # Left behind, for the interpreter to clear away while the worker is busy.
    engine = weft.Engine(n_slots=1, n_ctx=1024, n_threads=1)
    await engine.start()
    stream = engine.stream("A fox", ignore_eos=True)
    await anext(stream)

asyncio.run(main())
"""


def test_an_engine_that_was_never_closed_does_not_disturb_the_exit() -> None:
    done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=25, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
