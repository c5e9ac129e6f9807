from dataclasses import fields
from typing import Any

import pytest

import weft
from weft.cli import parse
from weft.settings import Settings


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("-m a.gguf", {"model": "a.gguf"}),
        ("--model a.gguf", {"model": "a.gguf"}),
        ("-a name", {"alias": "name"}),
        ("-c 512", {"ctx_size": 512}),
        ("-c512", {"ctx_size": 512}),
        ("--ctx-size=512", {"ctx_size": 512}),
        ("-c 0", {"ctx_size": None}),
        ("-n 16", {"n_predict": 16}),
        ("-n 0", {"n_predict": 0}),
        ("--predict -1", {"n_predict": None}),
        ("--n-predict 16", {"n_predict": 16}),
        ("-b 64 -ub 32", {"batch_size": 64, "ubatch_size": 32}),
        ("--batch-size 64 --ubatch-size 32", {"batch_size": 64, "ubatch_size": 32}),
        ("-t 3 -tb 4", {"threads": 3, "threads_batch": 4}),
        ("--threads -1 --threads-batch 4", {"threads": None, "threads_batch": 4}),
        ("-t 0 -tb 0", {"threads": None, "threads_batch": None}),
        ("-t -5 -tb -2", {"threads": None, "threads_batch": None}),
        ("-np 4", {"slots": 4}),
        ("-np 254", {"slots": 254}),
        ("--parallel -1", {"slots": None}),
        ("-ngl 7", {"gpu_layers": 7}),
        ("-ngl 0", {"gpu_layers": 0}),
        ("--gpu-layers all", {"gpu_layers": None}),
        ("--n-gpu-layers auto", {"gpu_layers": None}),
        ("-fa on", {"flash_attention": "on"}),
        ("--flash-attn 0", {"flash_attention": "off"}),
        ("-ctk q8_0 -ctv q4_0", {"cache_type_k": "q8_0", "cache_type_v": "q4_0"}),
        ("--cache-type-k bf16 --cache-type-v f32", {"cache_type_k": "bf16", "cache_type_v": "f32"}),
        ("-kvu", {"kv_unified": True}),
        ("--kv-unified", {"kv_unified": True}),
        ("--no-kv-unified", {"kv_unified": False}),
        ("-no-kvu", {"kv_unified": False}),
        ("--host 0.0.0.0 --port 99", {"host": "0.0.0.0", "port": 99}),
        ("-s 7", {"seed": 7}),
        ("--seed -1", {"seed": None}),
        ("--temp 0.5", {"temperature": 0.5}),
        ("--temperature 0", {"temperature": 0}),
        ("--top-k 0 --top-p 1.0 --min-p 0.0", {"top_k": 0, "top_p": 1, "min_p": 0}),
        ("--repeat-penalty 1.1 --repeat-last-n -1", {"repeat_penalty": 1.1, "repeat_last_n": -1}),
        ("--presence-penalty -0.5 --frequency-penalty 0.5", {"presence_penalty": -0.5, "frequency_penalty": 0.5}),
        ("--ignore-eos", {"ignore_eos": True}),
        ("--mlock --no-mmap", {"mlock": True, "mmap": False}),
        ("--max-token-gap 50", {"max_token_gap_ms": 50}),
        ("--max-queue 3", {"max_queue": 3}),
        ("-cram 64", {"cache_ram": 64}),
        ("--cache-ram 0", {"cache_ram": 0}),
        ("--cache-ram -1", {"cache_ram": -1}),
        ("--slot-save-path /", {"slot_save_path": "/"}),
        ("--metrics", {"metrics": True}),
        ("--sse-ping-interval -1", {"ping_s": None}),
        ("-lv 1", {"verbosity": 1}),
        ("-lv 9", {"verbosity": 5}),
        ("-v", {"verbosity": 5}),
        ("--verbose", {"verbosity": 5}),
    ],
)
def test_a_flag_sets_its_setting_and_no_other(arguments: str, expected: dict[str, Any]) -> None:
    assert parse(arguments.split(), {}) == Settings(**expected)


@pytest.mark.parametrize(
    ("environ", "arguments", "expected"),
    [
        ({"LLAMA_ARG_CTX_SIZE": "512"}, "", {"ctx_size": 512}),
        ({"LLAMA_ARG_CTX_SIZE": "512"}, "-c 0", {"ctx_size": None}),
        ({"LLAMA_ARG_PORT": "81"}, "--port 82", {"port": 82}),
        ({"LLAMA_ARG_MMAP": "off"}, "", {"mmap": False}),
        ({"LLAMA_ARG_NO_MMAP": "anything"}, "", {"mmap": False}),
        ({"LLAMA_ARG_NO_MMAP": "anything"}, "--mmap", {"mmap": True}),
        ({"LLAMA_ARG_KV_UNIFIED": "1"}, "", {"kv_unified": True}),
        ({"LLAMA_ARG_MODEL": ""}, "", {"model": None}),
        ({"LLAMA_ARG_CACHE_RAM": "128"}, "", {"cache_ram": 128}),
        ({"LLAMA_ARG_ENDPOINT_METRICS": "1"}, "", {"metrics": True}),
    ],
)
def test_a_variable_wins_over_the_default_and_a_flag_over_its_variable(
    environ: dict[str, str], arguments: str, expected: dict[str, Any]
) -> None:
    assert parse(arguments.split(), environ) == Settings(**expected)


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        ("--port 65536", {}, "argument --port: 65536 is not in 1 to 65535"),
        ("-c many", {}, "argument -c/--ctx-size: 'many' is not a whole number"),
        ("--temp nan", {}, "argument --temp/--temperature: 'nan' is not a finite number"),
        ("--max-token-gap 0", {}, "argument --max-token-gap: 0.0 is not above 0"),
        ("-ctk q9", {}, "argument -ctk/--cache-type-k: 'q9' is not one of f32, f16"),
        ("-fa maybe", {}, "argument -fa/--flash-attn: 'maybe' is not one of on, off, auto"),
        ("-np 255", {}, "argument -np/--parallel: 255 is not in 1 to 254"),
        ("-cram -2", {}, "argument -cram/--cache-ram: -2 is not in -1 to"),
        ("--slot-save-path /no/such", {}, "argument --slot-save-path: '/no/such' is not a folder"),
        ("-np 0", {}, "argument -np/--parallel: 0 is not"),
        ("-t half", {}, "argument -t/--threads: 'half' is not a whole number"),
        ("-t 513", {}, "argument -t/--threads: 513 is not in 1 to 512"),
        ("-lv -1", {}, "argument -lv/--verbosity/--log-verbosity: -1 is not in 0 to"),
        ("--no-such-flag", {}, "unrecognized arguments: --no-such-flag"),
        ("--ctx 5", {}, "unrecognized arguments: --ctx 5"),
        ("", {"LLAMA_ARG_PORT": "http"}, "variable LLAMA_ARG_PORT: 'http' is not a whole number"),
    ],
)
def test_a_wrong_value_ends_with_2_and_names_its_flag(
    arguments: str, environ: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments.split(), environ)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_help_shows_every_spelling_and_every_variable_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--help"], {})
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    spelt = [name for line in shown.splitlines() if line.startswith("  -") for name in line[2:].split("  ")[0].split(", ")]
    spelt = [name.split(" ")[0] for name in spelt]
    for field in fields(Settings):
        flag = field.metadata["flag"]
        assert [spelt.count(name) for name in (*flag.names, *flag.constants)] == [1] * (len(flag.names) + len(flag.constants))
        assert shown.count(f"[{flag.env}]") == 1


def test_help_is_shown_also_where_a_variable_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--help"], {"LLAMA_ARG_PORT": "http"})
    assert ended.value.code == 0


def test_what_a_request_leaves_unsaid_is_the_same_over_http_and_in_process() -> None:
    settings, request = Settings(), weft.Request(prompt="")
    names = [
        "seed", "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "presence_penalty",
        "frequency_penalty", "ignore_eos",
    ]  # fmt: skip
    assert [getattr(settings, name) for name in names] == [getattr(request, name) for name in names]
    assert settings.n_predict == request.max_tokens
