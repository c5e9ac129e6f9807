"""Whose kernels compute, and how the weights lie for them, changes how fast a text is written and not what it says."""

import logging
import re
from pathlib import Path

import gguf
import pytest

import weft
from tests.engine.tiny_models import N_VOCAB, write_tiny_model
from tests.helpers import wait_until
from weft import _native
from weft._native import Hardware
from weft.config import Kernels

REARRANGED = re.compile(r"(CPU_REPACK|AMX) model buffer size")
"""What llama.cpp logs where it has laid weights out for its own products."""

PROMPT = list(b"What is computed by others is the same.")


@pytest.fixture(scope="module")
def can_rearrange() -> bool:
    """Whether llama.cpp rearranges weights of four bits here.

    It multiplies them so where it was compiled for one of a few instruction sets (`ggml_repack_get_optimal_repack_type` in
    repack.cpp), of which every processor of the last ten years has one.
    """
    compiled_for = set(Hardware.read().instructions.split())
    assert "REPACK" in compiled_for
    return not compiled_for.isdisjoint({"AVX2", "DOTPROD", "MATMUL_INT8"})


@pytest.fixture(scope="module")
def four_bits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights llama.cpp can rearrange, if it can any."""
    path = tmp_path_factory.mktemp("models") / "four-bits.gguf"
    write_tiny_model("attention", path, matrices=gguf.GGMLQuantizationType.Q4_0)
    return path


@pytest.fixture(scope="module")
def has_own_products(model_path: Path) -> bool:
    """Whether Weft's own products are usable here and are the faster ones."""
    model = weft.Model.load(model_path)
    choice = _native.Engine(model, weft.EngineConfig(n_ctx=512)).compute
    return choice.products == "weft" and "AMX" not in choice.summary


async def is_rearranged(
    path: Path, caplog: pytest.LogCaptureFixture, kernels: Kernels = "auto", *, repack: bool | None = None
) -> bool:
    """Whether llama.cpp rearranges weights of this model."""
    caplog.set_level(logging.DEBUG, "weft")
    caplog.clear()
    model = weft.Model.load(path, weft.EngineConfig(kernels=kernels, repack=repack))
    # Lines come on a thread of their own, in order, and this is one of the engine's.
    _native.Engine(model, weft.EngineConfig(n_ctx=512, n_threads=1, kernels=kernels)).stop()
    await wait_until(lambda: "tokens per decode" in caplog.text)
    return REARRANGED.search(caplog.text) is not None


@pytest.mark.parametrize("kernels", ["auto", "weft", "llama.cpp"])
@pytest.mark.parametrize("repack", [False, True])
async def test_weights_are_repacked_as_a_user_says(
    four_bits: Path, caplog: pytest.LogCaptureFixture, kernels: Kernels, repack: bool, can_rearrange: bool
) -> None:
    assert await is_rearranged(four_bits, caplog, kernels, repack=repack) == (repack and can_rearrange)


async def test_what_llama_cpp_computes_is_repacked(
    four_bits: Path, caplog: pytest.LogCaptureFixture, can_rearrange: bool
) -> None:
    assert await is_rearranged(four_bits, caplog, "llama.cpp") == can_rearrange


async def test_what_weft_computes_is_not(
    four_bits: Path, caplog: pytest.LogCaptureFixture, has_own_products: bool, can_rearrange: bool
) -> None:
    assert await is_rearranged(four_bits, caplog) == (not has_own_products and can_rearrange)


async def distribution(path: Path, kernels: Kernels, *, repack: bool | None) -> dict[int, float]:
    """The log-probability of every token after the prompt, with llama.cpp's attention.

    Activations are rounded to 8 bits before each product. That makes differences of 0.1 out of the last bits of an attention,
    also between llama.cpp's own two.
    """
    async with weft.Engine(
        path, n_slots=1, n_ctx=512, n_threads=2, kernels=kernels, repack=repack, flash_attention="off", tuned=False
    ) as engine:
        completion = await engine.complete(PROMPT, max_tokens=1, temperature=0, logprobs=N_VOCAB)
    [logprobs] = completion.choices[0].logprobs
    return {top.token: top.logprob for top in logprobs.top}


@pytest.mark.parametrize(("kernels", "repack"), [("auto", None), ("auto", True), ("weft", False), ("llama.cpp", False)])
async def test_all_products_are_the_same(four_bits: Path, kernels: Kernels, repack: bool | None) -> None:
    expected = await distribution(four_bits, "llama.cpp", repack=None)
    found = await distribution(four_bits, kernels, repack=repack)
    # Measured: 1e-6.
    assert found == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("repack", [False, True])
def test_equal_texts_are_promised_where_weft_computes_every_product(four_bits: Path, repack: bool) -> None:
    model = weft.Model.load(four_bits, weft.EngineConfig(kernels="weft", repack=repack))
    engine = _native.Engine(model, weft.EngineConfig(n_ctx=512, n_threads=1, kernels="weft"))
    computes = engine.compute.attention == engine.compute.products == "weft"
    assert engine.is_repeatable == (computes and not repack)
    engine.stop()
