"""`weft bench` measures what it states: every prompt token once, and decodes of all streams."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

import weft
from tests.engine.tiny_models import write_tiny_model
from weft.cli.bench import measure

N_PROMPT, N_DECODE = 40, 8


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weft", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("n_streams", [1, 4])
@pytest.mark.parametrize("prompts", ["own", "shared"])
async def test_own_prompts_are_computed_each_and_a_shared_one_once(n_streams: int, prompts: Literal["own", "shared"]) -> None:
    async with weft.Engine(n_ctx=1024, n_slots=4, kv_unified=True) as engine:
        result = await measure(engine, n_streams, prompts, n_prompt=N_PROMPT, n_decode=N_DECODE)
    assert result.n_prompt == n_streams * N_PROMPT
    assert result.n_computed == (n_streams if prompts == "own" else 1) * N_PROMPT
    assert 0 < result.n_decoded <= n_streams * N_DECODE
    assert result.prefill_tokens_per_s > 0
    assert result.decode_tokens_per_s > 0


@pytest.mark.parametrize("kind", ["window", "recurrent"])
def test_every_kind_of_model_can_be_measured(kind: Literal["window", "recurrent"], tmp_path: Path) -> None:
    write_tiny_model(kind, tmp_path / "tiny.gguf")
    flags = ["--streams", "2", "--prompt-tokens", "32", "--decode-tokens", "4"]
    ran = run(str(tmp_path / "tiny.gguf"), *flags)
    assert ran.returncode == 0, ran.stderr
    assert [line.split()[:2] for line in ran.stdout.splitlines()[-2:]] == [["2", "own"], ["2", "shared"]]


def test_json_has_rates_and_the_settings_that_were_measured() -> None:
    ran = run("--json", "--streams", "1,2", "--prompt-tokens", str(N_PROMPT), "--decode-tokens", str(N_DECODE))
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert (report["prompt_tokens"], report["decode_tokens"]) == (N_PROMPT, N_DECODE)
    assert [(each["streams"], each["prompts"]) for each in report["results"]] == [(1, "own"), (2, "own"), (2, "shared")]
    assert all(each["prefill_tokens_per_s"] > 0 and each["decode_tokens_per_s"] > 0 for each in report["results"])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        pytest.param(["nowhere.gguf"], 1, "bench: cannot load the model nowhere.gguf", id="no model"),
        pytest.param(["-c", "256", "--prompt-tokens", "9999"], 1, "bench: ", id="a prompt that does not fit"),
        pytest.param(["--streams", "0"], 2, "argument --streams", id="no streams"),
        pytest.param(["--port", "80"], 2, "unknown argument --port", id="a flag of another command"),
    ],
)
def test_an_error_is_one_line_with_an_exit_code(arguments: list[str], code: int, message: str) -> None:
    ran = run(*arguments)
    assert ran.returncode == code
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr
