"""`--config`: a file of settings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weft.cli.commands import TUNE
from weft.cli.main import parse
from weft.settings import Settings

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file of settings and returns its path."""

    def write(text: str) -> str:
        path = tmp_path / "weft.toml"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", {}, id="an empty file"),
        pytest.param(
            'model = "a.gguf"\nctx-size = 512\ntemp = 0.5', {"model": "a.gguf", "n_ctx": 512, "temperature": 0.5}, id="values"
        ),
        pytest.param("ctx_size = 512\nn_predict = -1", {"n_ctx": 512}, id="underscores"),
        pytest.param('port = "81"', {"port": 81}, id="a number as text"),
        pytest.param("metrics = true\nslots = false", {"metrics": True, "slots_endpoint": False}, id="switches"),
        pytest.param("metrics = false\nno-slots = false", {}, id="switches of the default"),
        pytest.param("no-mmap = true", {"use_mmap": False}, id="a switch that turns off"),
        pytest.param(
            "flash-attn = true\nreasoning = false",
            {"flash_attention": "on", "chat_template_kwargs": {"enable_thinking": False}},
            id="on and off",
        ),
        pytest.param('api-key = ["one", "two,three"]', {"api_keys": ("one", "two", "three")}, id="a flag that may be repeated"),
        pytest.param(
            'host = ["::1", "localhost"]\nsamplers = ["top_k", "temp"]',
            {"hosts": ("::1", "localhost"), "samplers": ("top_k", "temperature")},
            id="a flag with a list",
        ),
        pytest.param('host = "::1,localhost"', {"hosts": ("::1", "localhost")}, id="a list as text"),
        pytest.param('logit-bias = ["5+1", "6-1"]', {"logit_bias": ((5, 1.0), (6, -1.0))}, id="biases"),
        pytest.param("[chat-template-kwargs]\na = 1\nb = [true]", {"chat_template_kwargs": {"a": 1, "b": [True]}}, id="a table"),
        pytest.param('json-schema = { type = "object" }', {"json_schema": '{"type": "object"}'}, id="a schema"),
        pytest.param('compat = "srb"\nn = 3', {"compat": "srb", "n": 3, "port": 9090}, id="a preset"),
        pytest.param("verbose = true", {"verbosity": 5}, id="verbose"),
        pytest.param("verbose = false", {}, id="not verbose"),
        pytest.param('reverse-prompt = ["User:"]', {"stop": ("User:",)}, id="stop strings"),
    ],
)
def test_a_key_is_a_flag(write: Write, text: str, expected: dict[str, Any]) -> None:
    assert parse(["--config", write(text)], {}) == (Settings.of(expected), ())


def test_a_flag_wins_over_its_variable_and_a_variable_over_the_file(write: Write) -> None:
    path = write('port = 1\nctx-size = 1\ntop-k = 1\napi-key = ["file"]\ncompat = "srb"')
    environ = {"LLAMA_ARG_CONFIG": path, "LLAMA_ARG_PORT": "2", "LLAMA_ARG_CTX_SIZE": "2", "LLAMA_API_KEY": "variable"}
    settings, _ = parse(["--port", "3"], environ)
    assert (settings.port, settings.engine.n_ctx, settings.sampling.top_k, settings.api_keys) == (3, 2, 1, ("variable",))
    assert settings.compat == "srb"


def test_a_flag_that_names_a_file_wins_over_the_variable_that_does(write: Write) -> None:
    assert parse([f"--config={write('port = 1')}"], {"LLAMA_ARG_CONFIG": "/no/such/file"}).settings.port == 1


def test_a_flag_without_a_meaning_is_warned_about_from_a_file_too(write: Write) -> None:
    path = write("defrag-thold = 0.1\ncont-batching = false\nwarmup = true")
    assert parse(["--config", path], {}).warnings == (
        f"{path}: defrag-thold has no meaning here: the cache is compacted automatically",
        f"{path}: cont-batching has no meaning here: requests are always batched continuously",
    )


def test_one_file_serves_both_commands(write: Write) -> None:
    path = write('ctx-size = 512\ncache-type-k = "q8_0"')
    assert parse(["--config", path], {}, TUNE).settings.engine.type_k == "q8_0"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("ctx-sise = 1", "unknown key 'ctx-sise'; did you mean 'ctx-size'?", id="an unknown key"),
        pytest.param("prot = 1", "unknown key 'prot'; did you mean 'port'?", id="letters that have changed places"),
        pytest.param("xyzzy = 1", "unknown key 'xyzzy'", id="a key like no other"),
        pytest.param("c = 1", "unknown key 'c'", id="a short flag"),
        pytest.param('config = "a"', "unknown key 'config'", id="a file in a file"),
        pytest.param("[server]\nport = 1", "unknown section [server]; settings are outside of sections", id="a section"),
        pytest.param('ctx-size = "many"', "ctx-size: 'many' is not a whole number", id="a wrong value"),
        pytest.param("ctx-size = 1.5", "ctx-size: '1.5' is not a whole number", id="a fraction"),
        pytest.param("port = true", "port: must be text or a number (got true)", id="true for a number"),
        pytest.param("alias = false", "alias: must be text, a number or a list of them (got false)", id="false for a text"),
        pytest.param("port = [1, 2]", "port: must be text or a number (got [1, 2])", id="a list"),
        pytest.param("port = { a = 1 }", 'port: must be text or a number (got {"a": 1})', id="a table"),
        pytest.param("api-key = [true]", "api-key: must be text, a number or a list of them (got [true])", id="listed switches"),
        pytest.param("model = 2026-01-31", 'model: must be text or a number (got "2026-01-31")', id="a date"),
        pytest.param('metrics = "on"', "metrics: must be true or false (got 'on')", id="a text for a switch"),
        pytest.param("mlock = 1", "mlock: must be true or false (got 1)", id="a number for a switch"),
        pytest.param("ctx-size = 1\nctx_size = 2", "ctx_size repeats the key ctx-size", id="a key twice"),
        pytest.param(
            'lora-base = "a.gguf"',
            "lora-base is not supported: GGUF adapters need no separate base model; pass the adapter with --lora and its base"
            " model with -m",
            id="what is missing",
        ),
        pytest.param("port = ", "it is not TOML: Invalid value (at ", id="no TOML"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_file_and_key(
    write: Write, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(text)
    with pytest.raises(SystemExit) as ended:
        parse(["--config", path], {})
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"python -m weft: error: {path}: {said}")


@pytest.mark.parametrize(("content", "said"), [(None, "cannot read it: No such file or directory"), (b"\xff", "it is not UTF-8")])
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, content: bytes | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "weft.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        parse(["--config", str(path)], {})
    assert ended.value.code == 2
    assert f"{path}: {said}" in capsys.readouterr().err
