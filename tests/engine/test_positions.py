"""Positions that a user encodes otherwise than the model's file says."""

import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import weft
from tests.engine.tiny_models import write_tiny_model
from tests.helpers import wait_until
from weft.engine_options import EngineOptions

PROMPT = [random.Random(5).randrange(3, 259) for _ in range(100)]
GREEDY: Any = {"temperature": 0, "max_tokens": 16, "logprobs": 3, "ignore_eos": True}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose positions are not scaled."""
    path = tmp_path_factory.mktemp("positions") / "plain.gguf"
    write_tiny_model("attention", path)
    return path


def engine_of(path: Path, **options: Any) -> weft.Engine:  # noqa: ANN401 (fields of a configuration)
    return weft.Engine(path, n_slots=1, n_ctx=512, n_threads=1, tuned=False, **options)


async def logprobs_of(path: Path, **options: Any) -> list[weft.Logprobs]:  # noqa: ANN401 (fields of a configuration)
    """What is written greedily, with how likely it was."""
    async with engine_of(path, **options) as engine:
        [branch] = (await engine.complete(PROMPT, **GREEDY)).choices
    return list(branch.logprobs)


@pytest.mark.parametrize(
    ("options", "scaling"),
    [
        pytest.param({"rope_freq_scale": 0.5}, (gguf.RopeScalingType.LINEAR, 2.0), id="linear"),
        pytest.param(
            {"rope_scaling_type": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 4096},
            (gguf.RopeScalingType.YARN, 4.0),
            id="yarn",
        ),
    ],
)
async def test_they_are_as_those_of_a_file_that_says_so(
    plain: Path, tmp_path: Path, options: EngineOptions, scaling: tuple[gguf.RopeScalingType, float]
) -> None:
    scaled = tmp_path / "scaled.gguf"
    write_tiny_model("attention", scaled, scaling=scaling)
    asked = await logprobs_of(plain, **options)
    assert asked == await logprobs_of(scaled)
    assert asked != await logprobs_of(plain)
    assert await logprobs_of(scaled, rope_scaling_type="none") == await logprobs_of(plain)


YARN: EngineOptions = {"rope_scaling_type": "yarn", "rope_freq_scale": 0.25}


@pytest.mark.parametrize(
    ("options", "beside"),
    [
        ({"rope_freq_base": 50_000.0}, {}),
        ({"yarn_orig_ctx": 64}, YARN),
        ({"yarn_ext_factor": 0.25}, YARN),
        ({"yarn_ext_factor": 0.0, "yarn_attn_factor": 1.5}, YARN | {"yarn_ext_factor": 0.0}),
        ({"yarn_beta_slow": 20.0}, YARN),
        ({"yarn_beta_fast": 1000.0}, YARN),
    ],
)
async def test_each_number_counts(plain: Path, options: EngineOptions, beside: EngineOptions) -> None:
    assert await logprobs_of(plain, **(beside | options)) != await logprobs_of(plain, **beside)


async def test_a_scale_lets_texts_be_longer_than_those_of_the_training(plain: Path) -> None:
    async with weft.Engine(plain, n_slots=1, n_ctx=16_384, n_threads=1, rope_freq_scale=0.5) as engine:
        assert (engine.limits.n_ctx_slot, engine.model.n_ctx_train) == (8192, 4096)
        prompt = PROMPT * 45
        assert (await engine.complete(prompt, max_tokens=2, ignore_eos=True)).n_predicted == 2
    async with weft.Engine(plain, n_slots=1, n_ctx=16_384, n_threads=1) as engine:
        with pytest.raises(weft.ContextOverflowError):
            await engine.complete(prompt, max_tokens=2)


async def test_vectors_have_them_too(plain: Path) -> None:
    async def vector(**options: Any) -> np.ndarray:  # noqa: ANN401 (fields of a configuration)
        async with engine_of(plain, **options) as engine:
            return np.asarray((await engine.embed([PROMPT])).vectors)

    assert np.array_equal(await vector(), await vector())
    assert not np.allclose(await vector(), await vector(rope_freq_base=100.0))


async def test_a_saved_prefix_is_loaded_with_the_same_positions_alone(plain: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompt.weft"
    async with engine_of(plain, rope_freq_scale=0.5) as engine:
        await engine.save_prefix(PROMPT, path)
    for other in ({}, {"rope_freq_scale": 0.25}, {"rope_freq_scale": 0.5, "rope_freq_base": 50_000.0}):
        async with engine_of(plain, **other) as engine:
            with pytest.raises(weft.PrefixFileError, match="the same position encoding"):
                await engine.load_prefix(path)
    async with engine_of(plain, rope_freq_scale=0.5) as engine:
        await engine.load_prefix(path)
        assert (await engine.complete([*PROMPT, 40, 41], max_tokens=1)).n_computed == 2


async def test_a_model_without_rotations_says_that_nothing_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "learned.gguf"
    write_tiny_model("positions", path)
    async with weft.Engine(path, n_slots=1, n_threads=1, rope_freq_scale=0.5) as engine:
        assert engine.limits.n_ctx_slot == engine.model.n_ctx_train
    await wait_until(lambda: "rope_freq_scale 0.5 has no effect" in caplog.text)
