"""Where a model's weights go: what this machine can show of it."""

from pathlib import Path

import pytest

import weft
from weft.engine_options import EngineOptions

SMALL = weft.EngineConfig(n_slots=1, n_ctx=256, n_threads=1, tuned=False)
SHARES = "it must be numbers of 0 or more, not all of them 0"


@pytest.mark.parametrize(
    "placement",
    [
        pytest.param({"devices": ()}, id="no device"),
        pytest.param({"direct_io": True, "check_tensors": True}, id="past the cache, checked"),
        pytest.param({"split_mode": "none"}, id="one GPU"),
    ],
)
async def test_a_model_that_is_placed_completes_as_before(placement: EngineOptions) -> None:
    async with weft.Engine(config=SMALL, **placement) as engine:
        answer = await engine.complete("Once upon a time,", max_tokens=8, temperature=0)
    async with weft.Engine(config=SMALL) as engine:
        assert (await engine.complete("Once upon a time,", max_tokens=8, temperature=0)).choices[0].text == answer.choices[0].text


@pytest.mark.parametrize(
    ("placement", "param", "message"),
    [
        ({"tensor_split": (0.0,)}, "tensor_split", f"tensor_split is [0.0]; {SHARES}"),
        ({"numa": "evenly"}, "numa", "numa is 'evenly'; it must be distribute, isolate or numactl, or None"),
    ],
)  # fmt: skip
async def test_a_placement_out_of_range_names_its_setting(placement: EngineOptions, param: str, message: str) -> None:
    with pytest.raises(weft.InvalidConfigError) as refused:
        await weft.Engine(**placement).start()
    assert (refused.value.param, refused.value.message) == (param, message)


async def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(weft.ModelLoadError, match='there is no device "Abacus0" other than the CPU'):
        await weft.Engine(devices=["Abacus0"]).start()


@pytest.fixture
def broken(tmp_path: Path, model_path: Path) -> Path:
    """The demo model with weights that are no numbers.

    The end of the file is weights, in blocks that begin with a scale of 16 bits: all ones are no number.
    """
    path = tmp_path / "model.gguf"
    path.write_bytes(model_path.read_bytes()[:-4096] + b"\xff" * 4096)
    return path


async def test_weights_that_are_no_numbers_are_found_where_they_are_looked_for(broken: Path) -> None:
    async with weft.Engine(broken, n_slots=1, n_ctx=256, n_threads=1):
        pass
    with pytest.raises(weft.ModelLoadError, match="invalid data"):
        await weft.Engine(broken, check_tensors=True).start()
