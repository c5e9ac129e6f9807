"""What is said in place of a model's file: its metadata, and where its tensors and its cache go."""

import re
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.engine.tiny_bidirectional import write_tiny_bidirectional
from tests.helpers import wait_until
from weft.engine_options import EngineOptions

SMALL = weft.EngineConfig(n_slots=1, n_ctx=256, n_threads=1, tuned=False)
GREEDY: Any = {"temperature": 0, "max_tokens": 8, "logprobs": 3}


async def logprobs_of(**options: Any) -> list[weft.Logprobs]:  # noqa: ANN401 (fields of a configuration)
    async with weft.Engine(config=SMALL, **options) as engine:
        [branch] = (await engine.complete("Once upon a time,", **GREEDY)).choices
    return list(branch.logprobs)


async def test_metadata_is_as_a_user_says() -> None:
    overrides: dict[str, bool | int | float | str] = {
        "tokenizer.ggml.add_bos_token": False,
        "general.name": "Other",
        "llama.context_length": 128,
    }
    async with weft.Engine(config=SMALL, kv_overrides=overrides) as engine:
        assert engine.model.tokenize("cow", add_special=True)[0] != engine.model.bos_token
        assert (engine.model.name, engine.model.n_ctx_train, engine.limits.n_ctx_slot) == ("Other", 128, 128)
    async with weft.Engine(config=SMALL) as engine:
        assert engine.model.tokenize("cow", add_special=True)[0] == engine.model.bos_token


async def test_a_number_of_the_metadata_counts_in_what_is_computed() -> None:
    pairs = [["llama.rope.freq_base", 50_000.0]]
    given: Any = {"kv_overrides": pairs}
    assert await logprobs_of(**given) == await logprobs_of(rope_freq_base=50_000.0) != await logprobs_of()


async def test_a_saved_prefix_is_loaded_with_the_same_metadata_alone(tmp_path: Path) -> None:
    path, overrides = tmp_path / "prompt.weft", {"llama.rope.freq_base": 50_000.0}
    async with weft.Engine(config=SMALL, kv_overrides=overrides) as engine:
        await engine.save_prefix("Once upon a time,", path)
        await engine.load_prefix(path)
    async with weft.Engine(config=SMALL) as engine:
        with pytest.raises(weft.PrefixFileError, match="and metadata"):
            await engine.load_prefix(path)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"k" * 128: 1}, "has 128 bytes; it must have 1 to 127, none of them 0"),
        ({"general.name": "ü" * 64}, "the string for general.name has 128 bytes; it must have at most 127"),
        ({"a": 2**32}, "a is 4294967296; an integer must be"),
        ({"a": 2**80}, "a is 1208925819614629174706176; it must be True or False, an integer of 32 bits"),
        ({"llama.context_length": "many"}, "llama.context_length is given as str, but in the model file it is int"),
        ({"llama.block_count": 1000}, "llama.block_count is 1000; it must be 1 to 512"),
        ({"llama.rope.scaling.type": "none at all"}, "it must be none, linear, yarn or longrope"),
    ],
)
async def test_metadata_that_llama_cpp_could_not_take_is_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(weft.InvalidConfigError, match=message) as refused:
        await weft.Engine(config=SMALL, kv_overrides=overrides).start()
    assert refused.value.param == "kv_overrides"


TRACE = 5
"""The level of what llama.cpp says to who debugs it."""

_EXPERTS = ["blk.1.ffn_up_exps.weight", "blk.1.ffn_down_exps.weight"]
_FEED_FORWARD = ["blk.0.ffn_up.weight", "blk.0.ffn_down.weight", "blk.0.ffn_down.bias"]
_NORMS = [f"blk.{layer}.attn_output_norm.{half}" for layer in (0, 1) for half in ("weight", "bias")]

MOVES: list[EngineOptions] = [
    {"tensor_overrides": {r"blk\.[0-2]\.ffn_(up|down)": "CPU"}, "use_mmap": False},
    {"cpu_moe": True, "n_cpu_moe": 2, "n_cpu_ffn": 2},
    {"no_host": True, "offload_kqv": False, "op_offload": False},
]


@pytest.mark.parametrize("moved", MOVES, ids=["patterns", "layers", "cache"])
async def test_a_model_whose_tensors_are_moved_computes_the_same(moved: EngineOptions) -> None:
    assert await logprobs_of(**moved) == await logprobs_of()


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, []),
        ({"tensor_overrides": {r"blk\.1\.ffn_(up|down)": "CPU"}}, _EXPERTS),
        ({"cpu_moe": True}, _EXPERTS),
        ({"n_cpu_moe": 1}, []),
        ({"n_cpu_moe": 2}, _EXPERTS),
        ({"n_cpu_ffn": 2}, _FEED_FORWARD),
        (
            {"n_cpu_ffn": 1, "cpu_moe": True, "tensor_overrides": {"attn_output_norm": "CPU"}},
            [*_FEED_FORWARD, *_EXPERTS, *_NORMS],
        ),
    ],
    ids=["nothing", "a pattern", "experts", "of one layer", "of two layers", "all else of layers", "together"],
)
async def test_llama_cpp_moves_the_tensors_that_are_named_and_no_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, asked: EngineOptions, expected: list[str]
) -> None:
    # The first of its two layers has one feed-forward network, the second has experts.
    write_tiny_bidirectional("nomic-bert-moe", tmp_path / "experts.gguf")
    with caplog.at_level(TRACE, logger="weft"):
        async with weft.Engine(tmp_path / "experts.gguf", config=SMALL, **asked):
            await wait_until(lambda: "model buffer size" in caplog.text)
    assert set(re.findall(r"tensor (\S+) .* buffer type overridden to CPU", caplog.text)) == set(expected)


async def test_a_pattern_that_moves_nothing_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    await logprobs_of(tensor_overrides={"ffn_down": "CPU"})
    assert "matches no tensor" not in caplog.text
    await logprobs_of(cpu_moe=True)
    await wait_until(lambda: r'the pattern "\\.ffn_(up|down|gate|gate_up)_(ch|)exps" matches no tensor' in caplog.text)


@pytest.mark.parametrize(
    ("pattern", "memory", "message"),
    [
        ("ffn", "Abacus0", 'there is no buffer type "Abacus0"; available are CPU'),
        ("ffn_(up", "CPU", r'"ffn_\(up" is not a valid regular expression: '),
        ("(" * 2000, "CPU", "a tensor name pattern has 2000 bytes; it must have 1 to 1024"),
    ],
)
async def test_a_pattern_and_a_memory_that_there_are_not_are_refused(pattern: str, memory: str, message: str) -> None:
    with pytest.raises(weft.InvalidConfigError, match=message) as refused:
        await weft.Engine(config=SMALL, tensor_overrides=[(pattern, memory)]).start()
    assert refused.value.param == "tensor_overrides"
