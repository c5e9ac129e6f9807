"""What is said in place of a model's file: its metadata, and where its tensors and its cache go."""

from pathlib import Path
from typing import Any

import pytest

import weft
from weft.config import EngineOptions

SMALL = weft.EngineConfig(n_slots=1, n_ctx=256, n_threads=1, tuned=False)
GREEDY: Any = {"temperature": 0, "max_tokens": 8, "n_probs": 3}


async def logprobs_of(**options: Any) -> list[weft.Logprobs]:  # noqa: ANN401 (fields of a configuration)
    async with weft.Engine(config=SMALL, **options) as engine:
        [branch] = (await engine.complete("Once upon a time,", **GREEDY)).branches
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
        with pytest.raises(weft.PrefixFileError, match="or metadata"):
            await engine.load_prefix(path)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"k" * 128: 1}, "has 128 bytes; it must be 1 to 127, none of them 0"),
        ({"general.name": "ü" * 64}, "the text of general.name has 128 bytes; it must be at most 127"),
        ({"a": 2**32}, "a is 4294967296; a whole number must be"),
        ({"a": 2**80}, "a is 1208925819614629174706176; it must be True or False, an integer of 32 bits"),
        ({"llama.context_length": "many"}, "llama.context_length is given as str, but in the file it is int"),
        ({"llama.block_count": 1000}, "llama.block_count is 1000; it must be 1 to 512"),
        ({"llama.rope.scaling.type": "none at all"}, "it must be none, linear, yarn or longrope"),
    ],
)
async def test_metadata_that_llama_cpp_could_not_take_is_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(weft.InvalidConfig, match=message) as refused:
        await weft.Engine(config=SMALL, kv_overrides=overrides).start()
    assert refused.value.param == "kv_overrides"


MOVES: list[EngineOptions] = [
    {"tensor_overrides": {r"blk\.[0-2]\.ffn_(up|down)": "CPU"}, "use_mmap": False},
    {"cpu_moe": True, "n_cpu_moe": 2, "n_cpu_ffn": 2},
    {"no_host": True, "offload_kqv": False, "op_offload": False},
]


@pytest.mark.parametrize("moved", MOVES, ids=["patterns", "layers", "cache"])
async def test_a_model_whose_tensors_are_moved_computes_the_same(moved: EngineOptions) -> None:
    assert await logprobs_of(**moved) == await logprobs_of()


async def test_a_pattern_that_moves_nothing_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    await logprobs_of(tensor_overrides={"ffn_down": "CPU"})
    assert "no tensor" not in caplog.text
    await logprobs_of(cpu_moe=True)
    assert r'no tensor of the model has a name with "\\.ffn_(up|down|gate|gate_up)_(ch|)exps"' in caplog.text


@pytest.mark.parametrize(
    ("pattern", "memory", "message"),
    [
        ("ffn", "Abacus0", 'there is no memory "Abacus0" for tensors; there is CPU'),
        ("ffn_(up", "CPU", r'"ffn_\(up" is no pattern of tensors: '),
        ("(" * 2000, "CPU", "a pattern of tensors has 2000 bytes; it must be 1 to 1024"),
    ],
)
async def test_a_pattern_and_a_memory_that_there_are_not_are_refused(pattern: str, memory: str, message: str) -> None:
    with pytest.raises(weft.InvalidConfig, match=message) as refused:
        await weft.Engine(config=SMALL, tensor_overrides=[(pattern, memory)]).start()
    assert refused.value.param == "tensor_overrides"
