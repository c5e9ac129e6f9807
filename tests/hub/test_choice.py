"""Which files of a repository are the model."""

import pytest

from weft.hub.choice import choose, projector_for, quant_of
from weft.hub.failure import Unavailable

FILES = ["README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-f16.gguf", "mmproj-m-Q4_K_M.gguf", "imatrix-Q8_0.gguf"]
SPLIT = [f"Q6_K/m-Q6_K-0000{index}-of-00003.gguf" for index in (3, 1, 2)]


@pytest.mark.parametrize(
    ("files", "quant", "file", "chosen"),
    [
        pytest.param(FILES, None, None, ["m-Q4_K_M.gguf"], id="Q4_K_M is the default"),
        pytest.param(["a-F16.gguf", "b-q8_0.gguf"], None, None, ["b-q8_0.gguf"], id="then Q8_0"),
        pytest.param(["b-Q2_K.gguf", "a-F16.gguf"], None, None, ["a-F16.gguf"], id="then the first"),
        pytest.param(FILES, "q8_0", None, ["m-Q8_0.gguf"], id="in any case"),
        pytest.param(FILES, "F16", None, ["m-f16.gguf"], id="in any case of the file too"),
        pytest.param(FILES, "Q8_0", "m-f16.gguf", ["m-f16.gguf"], id="a file wins"),
        pytest.param(FILES, None, "mmproj-m-Q4_K_M.gguf", ["mmproj-m-Q4_K_M.gguf"], id="whatever it is"),
        pytest.param([*FILES, *SPLIT], "Q6_K", None, sorted(SPLIT), id="all parts"),
        pytest.param([*FILES, *SPLIT], None, SPLIT[0], sorted(SPLIT), id="all parts of a named one"),
    ],
)
def test_the_model_is(files: list[str], quant: str | None, file: str | None, chosen: list[str]) -> None:
    assert list(choose(files, quant, file)) == chosen


@pytest.mark.parametrize(
    ("files", "quant", "file", "why"),
    [
        pytest.param(FILES, "Q5_K", None, "it has no Q5_K; available are Q4_K_M, Q8_0, F16", id="quant"),
        pytest.param(FILES, "Q4.K_M", None, "it has no Q4.K_M; available are", id="quant that would be an expression"),
        pytest.param(
            FILES, None, "m.gguf", "it has no file m.gguf; its GGUF files are imatrix-Q8_0.gguf, m-Q4_K_M.gguf", id="file"
        ),
        pytest.param(["a.bin"], None, "m.gguf", "it has no file m.gguf; it has no GGUF files", id="file of none"),
        pytest.param(["a.bin", "mmproj-F16.gguf"], None, None, "it has no GGUF file of a model", id="none"),
        pytest.param(SPLIT[:2], None, None, "Q6_K/m-Q6_K-00002-of-00003.gguf, a part of the model, is missing", id="part"),
    ],
)
def test_what_is_not_there_is_said(files: list[str], quant: str | None, file: str | None, why: str) -> None:
    with pytest.raises(Unavailable) as error:
        choose(files, quant, file)
    assert why in str(error.value)


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("m-Q4_K_M.gguf", "Q4_K_M"),
        ("x/m.q8_0.gguf", "Q8_0"),
        ("m-IQ2_XS-00001-of-00002.gguf", "IQ2_XS"),
        ("model.gguf", None),
    ],
)
def test_a_files_name_tells_its_quantisation(name: str, quant: str | None) -> None:
    assert quant_of(name) == quant


@pytest.mark.parametrize(
    ("model", "files", "chosen"),
    [
        pytest.param("m-Q4_K_M.gguf", FILES, "mmproj-m-Q4_K_M.gguf", id="the only one"),
        pytest.param(
            "m-Q8_0.gguf", ["mmproj-F16.gguf", "mmproj-F32.gguf", "mmproj-Q8_0.gguf"], "mmproj-Q8_0.gguf", id="as many bits"
        ),
        pytest.param("m-Q4_0.gguf", ["mmproj-BF16.gguf", "mmproj-F32.gguf"], "mmproj-BF16.gguf", id="the most similar bits"),
        pytest.param("m-F32.gguf", ["mmproj-BF16.gguf", "mmproj-F32.gguf"], "mmproj-F32.gguf", id="the most similar bits above"),
        pytest.param("a/m-Q8_0.gguf", ["a/mmproj-F32.gguf", "mmproj-Q8_0.gguf"], "a/mmproj-F32.gguf", id="in the same folder"),
        pytest.param(
            "a/b/m-Q8_0.gguf", ["mmproj-Q8_0.gguf", "a/mmproj-F32.gguf"], "a/mmproj-F32.gguf", id="in the nearest above"
        ),
        pytest.param("a/m.gguf", ["b/mmproj-F32.gguf", "mmproj.txt", "a/m.gguf"], None, id="none beside or above"),
        pytest.param("mmproj-F16.gguf", ["mmproj-F16.gguf"], None, id="none of its own"),
    ],
)
def test_the_projector_is(model: str, files: list[str], chosen: str | None) -> None:
    assert projector_for(model, files) == chosen
