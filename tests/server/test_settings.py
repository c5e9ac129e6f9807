import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest

import weft
from weft.cli.main import parse
from weft.sampling_fields import Sampling
from weft.settings import Settings, table
from weft.settings.flags import Flag
from weft.settings.volatile import LineRule

PARALLEL = {"n_slots": 1, "n_ctx": 512, "n_batch": 512, "temperature": 0.1, "timeout_s": 600}
STREAM = {
    "n_ctx": 2048,
    "n_batch": 8,
    "repeat_penalty": 1.3,
    "repeat_last_n": 64,
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
}
"""What `--compat` changes of the defaults."""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("-m a.gguf", {"model": "a.gguf"}),
        ("--model a.gguf", {"model": "a.gguf"}),
        ("-a name", {"alias": "name", "aliases": ("name",)}),
        ("-a one,two --alias one,,three", {"alias": "one", "aliases": ("one", "two", "three")}),
        (
            "--mmproj p.gguf --image-min-tokens 4 --image-max-tokens 9",
            {"mmproj": "p.gguf", "image_min_tokens": 4, "image_max_tokens": 9},
        ),
        ("--no-mmproj-offload", {"mmproj_offload": False}),
        ("-mmdev none", {"mmproj_offload": False}),
        ("--image-max-tokens -1", {}),
        ("--media-path /", {"media_path": "/"}),
        ("--allow-media-urls a.org,[::1]:8000 --allow-media-urls B.org", {"allow_media_urls": ("a.org", "[::1]:8000", "b.org")}),
        ("-c 512", {"n_ctx": 512}),
        ("-c512", {"n_ctx": 512}),
        ("--ctx-size=512", {"n_ctx": 512}),
        ("-c 0", {"n_ctx": None}),
        ("-n 16", {"n_predict": 16}),
        ("-n 0", {"n_predict": 0}),
        ("--predict -1", {"n_predict": None}),
        ("--n-predict 16", {"n_predict": 16}),
        ("-b 64 -ub 32", {"n_batch": 64, "n_ubatch": 32}),
        ("--batch-size 64 --ubatch-size 32", {"n_batch": 64, "n_ubatch": 32}),
        ("-t 3 -tb 4", {"n_threads": 3, "n_threads_batch": 4}),
        ("--threads -1 --threads-batch 4", {"n_threads": None, "n_threads_batch": 4}),
        ("-t 0 -tb 0", {"n_threads": None, "n_threads_batch": None}),
        ("-t -5 -tb -2", {"n_threads": None, "n_threads_batch": None}),
        ("-gan 4 -gaw 256", {"grp_attn_n": 4, "grp_attn_w": 256}),
        ("--grp-attn-n 1 --grp-attn-w 512", {}),
        ("-np 4", {"n_slots": 4}),
        ("-np 254", {"n_slots": 254}),
        ("--parallel -1", {"n_slots": None}),
        ("-ngl 7", {"n_gpu_layers": 7}),
        ("-ngl 0", {"n_gpu_layers": 0}),
        ("--gpu-layers all", {"n_gpu_layers": None}),
        ("--n-gpu-layers auto", {"n_gpu_layers": None}),
        ("-fa on", {"flash_attention": "on"}),
        ("--flash-attn 0", {"flash_attention": "off"}),
        ("--kernels llama.cpp", {"kernels": "llama.cpp"}),
        ("--kernels weft --kernels auto", {}),
        ("--repack", {"repack": True}),
        ("--no-repack", {"repack": False}),
        ("--repack -nr", {"repack": False}),
        ("-ctk q8_0 -ctv q4_0", {"type_k": "q8_0", "type_v": "q4_0"}),
        ("--cache-type-k bf16 --cache-type-v f32", {"type_k": "bf16", "type_v": "f32"}),
        ("--pooling last --embd-normalize -1", {"pooling": "last", "embd_normalize": -1}),
        ("--embeddings", {"embeddings": True}),
        ("--rerank", {"reranking": True, "pooling": "rank"}),
        ("-kvu", {"kv_unified": True}),
        ("--kv-unified", {"kv_unified": True}),
        ("--no-kv-unified", {"kv_unified": False}),
        ("-no-kvu", {"kv_unified": False}),
        ("--host 0.0.0.0 --port 99", {"hosts": ("0.0.0.0",), "port": 99}),
        ("--host ::1,/run/weft.sock --port 0", {"hosts": ("::1", "/run/weft.sock"), "port": 0}),
        ("-s 7", {"seed": 7}),
        ("--seed -1", {"seed": None}),
        ("--temp 0.5", {"temperature": 0.5}),
        ("--temperature 0", {"temperature": 0}),
        ("--top-k 0 --top-p 1.0 --min-p 0.0", {"top_k": 0, "top_p": 1, "min_p": 0}),
        ("--repeat-penalty 1.1 --repeat-last-n -1", {"repeat_penalty": 1.1, "repeat_last_n": -1}),
        ("--presence-penalty -0.5 --frequency-penalty 0.5", {"presence_penalty": -0.5, "frequency_penalty": 0.5}),
        ("--ignore-eos", {"ignore_eos": True}),
        ("--ctx_size 512", {"n_ctx": 512}),
        ("--num-ctx-tokens 512 --num-threads 3", {"n_ctx": 512, "n_threads": 3}),
        ("--ctx_size=512", {"n_ctx": 512}),
        ("-np4", {"n_slots": 4}),
        ("-n-1", {"n_predict": None}),
        ("-c 5 -c 6 --ctx-size 7", {"n_ctx": 7}),
        ("-fa", {"flash_attention": "on"}),
        ("-fa -np 4", {"flash_attention": "on", "n_slots": 4}),
        ("--memory-f32", {"type_k": "f32", "type_v": "f32"}),
        ("--memory_f32 -ctk q8_0", {"type_k": "q8_0", "type_v": "f32"}),
        ("-ctk q8_0 -ctv q4_0 -f16", {}),
        ("--mlock --no-mmap", {"use_mlock": True, "use_mmap": False}),
        ("--no-mmap --mmap", {}),
        ("-lm auto", {}),
        ("-lm none", {"use_mmap": False}),
        ("-lm mmap", {}),
        ("-lm mlock", {"use_mlock": True, "use_mmap": False}),
        ("--load-mode mmap+mlock", {"use_mlock": True}),
        ("--mlock -lm none", {"use_mmap": False}),
        ("-lm dio", {"direct_io": True, "use_mmap": False}),
        ("-dio", {"direct_io": True}),
        ("-dio --no-direct-io", {}),
        ("--check-tensors", {"check_tensors": True}),
        ("-dev CUDA0,CUDA1", {"devices": ("CUDA0", "CUDA1")}),
        ("--device none", {"devices": ()}),
        ("-sm row -mg 1 -ts 3,1", {"split_mode": "row", "main_gpu": 1, "tensor_split": (3.0, 1.0)}),
        (
            "--split-mode none --main-gpu 2 --tensor-split 1/0/2",
            {
                "split_mode": "none",
                "main_gpu": 2,
                "tensor_split": (1.0, 0.0, 2.0),
            },
        ),
        ("--numa isolate", {"numa": "isolate"}),
        ("--numa", {"numa": "distribute"}),
        ("--numa -np 2", {"numa": "distribute", "n_slots": 2}),
        (
            "--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 2048",
            {"rope_scaling_type": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 2048},
        ),
        ("--rope-freq-scale 0.5 --rope-scale 4", {"rope_freq_scale": 0.25}),
        ("--rope-freq-base 1e6 --rope-freq-scale 0", {"rope_freq_base": 1e6}),
        (
            "--yarn-ext-factor 0 --yarn-attn-factor 1.5 --yarn-beta-slow 2 --yarn-beta-fast 16",
            {"yarn_ext_factor": 0, "yarn_attn_factor": 1.5, "yarn_beta_slow": 2, "yarn_beta_fast": 16},
        ),
        ("--yarn-ext-factor -1 --yarn-beta-fast -0.5 --yarn-orig-ctx 0", {}),
        (
            "--override-kv a.b=int:-1,c=bool:false --override-kv d=float:0.5 --override-kv e=str:x:y=z",
            {"kv_overrides": (("a.b", -1), ("c", False), ("d", 0.5), ("e", "x:y=z"))},
        ),
        (
            r"-ot ffn_.*=CPU,blk\.(1|2)=CUDA0 --override-tensor x=y=CPU",
            {"tensor_overrides": (("ffn_.*", "CPU"), (r"blk\.(1|2)", "CUDA0"), ("x=y", "CPU"))},
        ),
        ("-cmoe -ncmoe 3 -ncffn 2", {"cpu_moe": True, "n_cpu_moe": 3, "n_cpu_ffn": 2}),
        ("-nkvo --no-op-offload --no-host", {"offload_kqv": False, "op_offload": False, "no_host": True}),
        ("-nkvo -kvo --no-op-offload --op-offload", {}),
        ("-C 0x5 -Cr 4-5 --cpu-mask 1", {"cpus": (0, 2, 4, 5)}),
        ("-Cr -2", {"cpus": (0, 1, 2)}),
        ("--cpu-range 510-", {"cpus": (510, 511)}),
        ("-Cb f0 -Crb 0-0", {"cpus_batch": (0, 4, 5, 6, 7)}),
        ("--cpu-strict 1 --cpu-strict-batch 0", {"strict_cpu": True, "strict_cpu_batch": False}),
        ("--prio -1 --prio-batch 3 --poll 0 --poll-batch 100", {"prio": -1, "prio_batch": 3, "poll": 0, "poll_batch": 100}),
        ("--threads-http 3", {"threads_http": 3}),
        ("--tags fast,small,,fast --tags own", {"tags": ("fast", "own", "small")}),
        ("--no-cache-prompt", {"cache_prompt": False}),
        ("--context-shift --keep -1", {"context_shift": True, "n_keep": None}),
        ("--keep 16", {"n_keep": 16}),
        ("-r User: -r Assistant:", {"stop": ("User:", "Assistant:")}),
        (r"-r \nUser: --reverse-prompt \x41\q", {"stop": ("\nUser:", r"A\q")}),
        (r"-r \n --no-escape", {"stop": (r"\n",), "escape": False}),
        ("--samplers top-k;temp;typical;MINP", {"samplers": ("top_k", "temperature", "typ_p", "min_p")}),
        (
            "--sampling-seq edskypmxt",
            {
                "samplers": (
                    *("penalties", "dry", "top_n_sigma", "top_k", "tfs_z"),
                    *("typ_p", "top_p", "min_p", "xtc", "temperature"),
                )
            },
        ),
        ("--sampler-seq kfa", {"samplers": ("top_k", "tfs_z", "adaptive_p")}),
        ("--typical 0.5 --top-nsigma 1.5 --tfs 0.9", {"typical_p": 0.5, "top_n_sigma": 1.5, "tfs_z": 0.9}),
        ("--xtc-probability 0.5 --xtc-threshold 0.2", {"xtc_probability": 0.5, "xtc_threshold": 0.2}),
        ("--dynatemp-range 0.5 --dynatemp-exp 2", {"dynatemp_range": 0.5, "dynatemp_exponent": 2}),
        ("--dry-multiplier 0.8 --dry-base 2", {"dry_multiplier": 0.8, "dry_base": 2}),
        ("--dry-allowed-length 3 --dry-penalty-last-n -1", {"dry_allowed_length": 3, "dry_penalty_last_n": -1}),
        (r"--dry-sequence-breaker \n --dry-sequence-breaker ;", {"dry_sequence_breakers": ("\n", ";")}),
        ("--dry-sequence-breaker none", {"dry_sequence_breakers": ()}),
        ("--dry-sequence-breaker a --dry-sequence-breaker none", {"dry_sequence_breakers": ()}),
        ("--mirostat 2 --mirostat-ent 3 --mirostat-lr 0.2", {"mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.2}),
        ("--adaptive-target 0.4 --adaptive-decay 0.5", {"adaptive_target": 0.4, "adaptive_decay": 0.5}),
        ("--no-penalize-nl --min-keep 2", {"penalize_nl": False, "min_keep": 2}),
        ("-l 15043+1 --logit-bias 7-inf", {"logit_bias": ((15043, 1.0), (7, float("-inf")))}),
        ("--grammar root::=[a-z]", {"grammar": "root::=[a-z]"}),
        ("""-j {"type":"object"}""", {"json_schema": '{"type":"object"}'}),
        ("""-j {} --grammar root::=[a-z]""", {"grammar": "root::=[a-z]"}),
        ("""--grammar root::=[a-z] --json-schema {}""", {"json_schema": "{}"}),
        ("--no-keep-answers", {"keep_chat_answers": False}),
        (
            "--volatile-prompt-lines drop:x --volatile-prompt-lines y.*",
            {"volatile_prompt_lines": (LineRule("x", drops=True), LineRule("y.*"))},
        ),
        ("--chat-template chatml --no-prefill-assistant", {"chat_template": "chatml", "prefill_assistant": False}),
        (
            """--chat-template-kwargs {"a":1,"b":2} --chat-template-kwargs {"b":3}""",
            {"chat_template_kwargs": {"a": 1, "b": 3}},
        ),
        ("--reasoning off", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("-rea auto --reasoning-effort default", {}),
        ("--reasoning-format deepseek-legacy", {"reasoning_format": "deepseek-legacy"}),
        ("--skip-chat-parsing", {"skip_chat_parsing": True}),
        (
            "--reasoning-effort high --reasoning-preserve",
            {"chat_template_kwargs": {"reasoning_effort": "high", "preserve_reasoning": True}},
        ),
        ("--api-key one,two --api-key three", {"api_keys": ("one", "two", "three")}),
        ('--api-key "one,two",three', {"api_keys": ("one,two", "three")}),
        ("--cors-origins https://a,https://b", {"cors_origins": ("https://a", "https://b")}),
        (
            "--cors-methods GET --cors-headers X-A --no-cors-credentials",
            {
                "cors_methods": "GET",
                "cors_headers": "X-A",
                "cors_credentials": False,
            },
        ),
        ("--api-prefix /llm/", {"api_prefix": "/llm"}),
        ("--path /", {"static_path": "/"}),
        ("-to 5 --reuse-port", {"timeout_s": 5, "reuse_port": True}),
        ("--no-webui", {"ui": False}),
        ("--no-slots --props", {"slots_endpoint": False, "props_endpoint": True}),
        ("--slots-endpoint-disable", {"slots_endpoint": False}),
        ("--n 4", {"n": 4}),
        ("--compat srb", {"compat": "srb", "port": 9090}),
        ("--compat parallel -r Human:", {"compat": "parallel", "stop": ("Human:",), **PARALLEL}),
        ("--compat parallel -np 3 -to 5", {"compat": "parallel", **PARALLEL, "n_slots": 3, "timeout_s": 5}),
        ("--compat stream", {"compat": "stream", **STREAM}),
        (
            "-P 81 --compat=stream -n 512 -r 32 -p 1.1 -k 10 -T 0.5 -t 1 -b 16 -f",
            {
                "compat": "stream",
                **STREAM,
                "port": 81,
                "n_ctx": 512,
                "repeat_last_n": 32,
                "repeat_penalty": 1.1,
                "top_k": 10,
                "temperature": 0.5,
                "n_threads": 1,
                "n_batch": 16,
                "type_k": "f16",
                "type_v": "f16",
            },
        ),
        (f"--compat stream -R {__file__}", {"compat": "stream", "restore_prompt": __file__, **STREAM}),
        ("--compat srb --n 2 --port 80", {"compat": "srb", "n": 2, "port": 80}),
        ("--log-format json --log-file log", {"log_format": "json", "log_file": "log"}),
        ("--log-jsonl --log-disable", {"log_format": "json", "log_disable": True}),
        (
            "--log-colors --no-log-prefix --no-log-timestamps",
            {
                "log_colors": "on",
                "log_prefix": False,
                "log_timestamps": False,
            },
        ),
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
    assert parse(arguments.split(), {}) == (Settings.of(expected), ())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--args", "-c 512 --mlock"], {"n_ctx": 512, "use_mlock": True}),
        (["--args", "--mlock"], {"use_mlock": True}),
        (["--args=-c 512", "-c", "256"], {"n_ctx": 256}),
        (["-c", "256", "--args", "-c 512"], {"n_ctx": 512}),
        (["--args", "-a 'two words' --args '-np 2'"], {"alias": "two words", "aliases": ("two words",), "n_slots": 2}),
        (["--args", ""], {}),
        (["--args", "--compat stream -k 10"], {"compat": "stream", **STREAM, "top_k": 10}),
        (
            ["-k", "10", "-f", "--args=--compat=stream"],
            {"compat": "stream", **STREAM, "top_k": 10, "type_k": "f16", "type_v": "f16"},
        ),
        (["--numa", "--args", "-np 2"], {"numa": "distribute", "n_slots": 2}),
        (["--numa", "--args=-np 2"], {"numa": "distribute", "n_slots": 2}),
        (["--numa", "--parallel=2"], {"numa": "distribute", "n_slots": 2}),
        # What is the value of another flag is none of these.
        (["-a", "--args=-c 512"], {"alias": "--args=-c 512", "aliases": ("--args=-c 512",)}),
        (["-a", "--compat=stream", "-n", "10"], {"alias": "--compat=stream", "aliases": ("--compat=stream",), "n_predict": 10}),
    ],
    ids=str,
)
def test_further_flags_are_given_in_one_text(arguments: list[str], expected: dict[str, Any]) -> None:
    assert parse(arguments, {}) == (Settings.of(expected), ())


@pytest.mark.parametrize(
    ("environ", "arguments", "expected"),
    [
        ({"LLAMA_ARG_CTX_SIZE": "512"}, "", {"n_ctx": 512}),
        ({"LLAMA_ARG_CTX_SIZE": "512"}, "-c 0", {"n_ctx": None}),
        ({"LLAMA_ARG_PORT": "81"}, "--port 82", {"port": 82}),
        ({"LLAMA_ARG_MMAP": "off"}, "", {"use_mmap": False}),
        ({"LLAMA_ARG_NO_MMAP": "anything"}, "", {"use_mmap": False}),
        ({"LLAMA_ARG_NO_MMAP": "anything"}, "--mmap", {"use_mmap": True}),
        ({"LLAMA_ARG_KV_UNIFIED": "1"}, "", {"kv_unified": True}),
        ({"LLAMA_ARG_MODEL": ""}, "", {"model": None}),
        ({"LLAMA_ARG_CACHE_RAM": "128"}, "", {"cache_ram": 128}),
        ({"WEFT_KERNELS": "llama.cpp"}, "", {"kernels": "llama.cpp"}),
        ({"WEFT_KERNELS": "llama.cpp"}, "--kernels weft", {"kernels": "weft"}),
        ({"LLAMA_ARG_REPACK": "on"}, "", {"repack": True}),
        ({"LLAMA_ARG_NO_REPACK": ""}, "", {"repack": False}),
        ({"LLAMA_ARG_REPACK": "off"}, "--repack", {"repack": True}),
        ({"LLAMA_ARG_ENDPOINT_METRICS": "1"}, "", {"metrics": True}),
        ({"LLAMA_ARG_ENDPOINT_METRICS": "off"}, "", {}),
        ({"LLAMA_ARG_LOAD_MODE": "mlock"}, "", {"use_mmap": False, "use_mlock": True}),
        ({"LLAMA_ARG_LOAD_MODE": "mlock"}, "--mmap", {"use_mlock": True}),
        ({"LLAMA_ARG_ROPE_SCALE": "4"}, "", {"rope_freq_scale": 0.25}),
        ({"LLAMA_ARG_ROPE_SCALE": "4"}, "--rope-freq-scale 0.5", {"rope_freq_scale": 0.5}),
        ({"LLAMA_ARG_NO_KV_OFFLOAD": ""}, "", {"offload_kqv": False}),
        ({"LLAMA_ARG_OVERRIDE_TENSOR": "a=CPU"}, "-ot b=CPU", {"tensor_overrides": (("b", "CPU"),)}),
        ({"LLAMA_API_KEY": "one,two"}, "", {"api_keys": ("one", "two")}),
        ({"LLAMA_API_KEY": "one"}, "--api-key two", {"api_keys": ("two",)}),
        ({"LLAMA_ARG_NO_UI": ""}, "", {"ui": False}),
        ({"LLAMA_ARG_LOG_JSONL": "1"}, "", {"log_format": "json"}),
        ({"LLAMA_ARG_COMPAT": "srb"}, "--port 80", {"compat": "srb", "port": 80}),
        ({"LLAMA_ARG_REASONING_PRESERVE": "0"}, "", {"chat_template_kwargs": {"preserve_reasoning": False}}),
    ],
)
def test_a_variable_wins_over_the_default_and_a_flag_over_its_variable(
    environ: dict[str, str], arguments: str, expected: dict[str, Any]
) -> None:
    assert parse(arguments.split(), environ) == (Settings.of(expected), ())


def unset_number(flag: Flag) -> str | None:
    """The number that leaves a setting unset, where there is one."""
    for number in ("-1", "0"):
        with suppress(ValueError):
            if flag.names and flag.parse(number) is None:
                return number
    return None


def refusals(flag: Flag) -> Iterator[str]:
    """What is said of numbers that are too small or too large."""
    for text in ("-2", "0", str(2**40)):
        try:
            flag.parse(text)
        except ValueError as error:
            yield str(error)


@pytest.mark.parametrize("name", [name for name, flag in table().items() if unset_number(flag) is not None])
def test_a_number_that_leaves_a_setting_unset_is_named_where_another_one_is_refused(name: str) -> None:
    flag = table()[name]
    number = unset_number(flag)
    for message in refusals(flag):
        assert re.search(rf"(?<![\d.]){number}(?![\d.])|a negative number|0 or less", message.partition(" and ")[2]), message


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        ("--port 65536", {}, "argument --port: 65536 is not between 0 and 65535"),
        ("-c many", {}, "argument -c/--ctx-size: 'many' is not a whole number"),
        ("--temp nan", {}, "argument --temp/--temperature: 'nan' is not a finite number"),
        ("--max-token-gap 0", {}, "argument --max-token-gap: 0.0 is not above 0"),
        ("-ctk q9", {}, "argument -ctk/--cache-type-k: 'q9' is not one of f32, f16"),
        ("-fa maybe", {}, "argument -fa/--flash-attn: 'maybe' is not one of on, off, auto"),
        ("--kernels ggml", {}, "argument --kernels: 'ggml' is not one of auto, weft, llama.cpp"),
        ("", {"WEFT_KERNELS": "ggml"}, "variable WEFT_KERNELS: 'ggml' is not one of auto, weft, llama.cpp"),
        ("-np 255", {}, "argument -np/--parallel: 255 is not between 1 and 254"),
        ("-cram -2", {}, "argument -cram/--cache-ram: -2 is not between -1 and"),
        ("--slot-save-path /no/such", {}, "argument --slot-save-path: '/no/such' is not a folder"),
        ("-np 0", {}, "argument -np/--parallel: 0 is not"),
        (
            "-n -2",
            {},
            "-n/--predict/--n-predict: -2 is not between 0 and 2147483647; -1 (the default) sets no limit but the context",
        ),
        (
            "-s -2",
            {},
            "argument -s/--seed: -2 is not between 0 and 4294967295; -1 (the default) draws a new one for each request",
        ),
        ("-ngl -2", {}, "is not between 0 and 2147483647; auto, all and -1 select all layers"),
        ("-t half", {}, "argument -t/--threads: 'half' is not a whole number"),
        ("-t 513", {}, "argument -t/--threads: 513 is not between 1 and 512"),
        ("-lv -1", {}, "argument -lv/--verbosity/--log-verbosity: -1 is not between 0 and"),
        ("-lm fast", {}, "argument -lm/--load-mode: 'fast' is not one of auto, none, mmap, mlock, mmap+mlock, dio"),
        ("-sm tensor", {}, "argument -sm/--split-mode: 'tensor' is not one of layer, row, none"),
        ("-ts 0,0", {}, "argument -ts/--tensor-split: '0,0' has no number above 0"),
        ("-ts 1,-1", {}, "argument -ts/--tensor-split: -1.0 is below 0"),
        ("-dev ,", {}, "argument -dev/--device: there must be at least one device, or 'none'"),
        ("--numa evenly", {}, "argument --numa: 'evenly' is not one of distribute, isolate, numactl"),
        ("--rope-scaling longrope", {}, "argument --rope-scaling: 'longrope' is not one of none, linear, yarn"),
        ("--rope-scale 0", {}, "argument --rope-scale: 0.0 is not between 0.0001 and 10000"),
        ("--rope-freq-scale -1", {}, "argument --rope-freq-scale: -1.0 is not between 0.0001 and 10000"),
        ("--rope-freq-base inf", {}, "argument --rope-freq-base: 'inf' is not a finite number"),
        ("--yarn-beta-fast 1e7", {}, "argument --yarn-beta-fast: 10000000.0 is not between 0 and 1e+06"),
        ("--override-kv a=long:1", {}, "argument --override-kv: 'a=long:1' is not KEY=TYPE:VALUE, for example KEY=int:1"),
        ("--override-kv a=int:one", {}, "argument --override-kv: 'one' is not a whole number"),
        ("--override-kv a=int:4294967296", {}, "argument --override-kv: 4294967296 is not between -2147483648 and 4294967295"),
        ("--override-kv a=bool:1", {}, "argument --override-kv: '1' is not true or false"),
        ("--override-kv =int:1", {}, "argument --override-kv: '=int:1' is not KEY=TYPE:VALUE"),
        ("-ot ffn", {}, "argument -ot/--override-tensor: 'ffn' is not PATTERN=BUFFER, for example PATTERN=CPU"),
        ("-C 0xg", {}, "argument -C/--cpu-mask: '0xg' is not a mask of at most 128 hexadecimal digits"),
        ("-C 0", {}, "argument -C/--cpu-mask: '0' selects no processor"),
        ("-Cr 3", {}, "argument -Cr/--cpu-range: '3' is not a range of processors such as 0-3"),
        ("-Cr 3-1", {}, "argument -Cr/--cpu-range: '3-1' is reversed: its first number is the larger one"),
        ("-Crb 0-512", {}, "argument -Crb/--cpu-range-batch: 512 is not between 0 and 511"),
        ("--prio 4", {}, "argument --prio: 4 is not between -1 and 3"),
        ("--poll-batch 101", {}, "argument --poll-batch: 101 is not between 0 and 100"),
        ("--samplers top_k;nonsense", {}, "argument --samplers: 'nonsense' is not one of penalties, dry"),
        ("--sampler-seq kz", {}, "argument --sampler-seq/--sampling-seq: 'z' in 'kz' is not one of e d s"),
        ("-l 15043", {}, "argument -l/--logit-bias: '15043' is not TOKEN+BIAS or TOKEN-BIAS"),
        ("-l 5+nan", {}, "argument -l/--logit-bias: 'nan' in '5+nan' is not a number"),
        ("-j {", {}, "argument -j/--json-schema: '{' is not JSON: "),
        ("-jf /no/such", {}, "argument -jf/--json-schema-file: cannot read '/no/such': No such file"),
        ("--chat-template-kwargs []", {}, "argument --chat-template-kwargs: '[]' is not a JSON object"),
        ("--host ,", {}, "argument --host: there must be at least one address"),
        ("--api-prefix llm", {}, "argument --api-prefix: 'llm' does not begin with '/'"),
        ("--ssl-key-file /no/such", {}, "argument --ssl-key-file: '/no/such' is not a file"),
        ("--adaptive-target 1.5", {}, "argument --adaptive-target: 1.5 is above 1"),
        ("--adaptive-decay 1", {}, "argument --adaptive-decay: 1.0 is not between 0 and 0.99"),
        ("--mirostat 3", {}, "argument --mirostat: 3 is not between 0 and 2"),
        ("--metrics=1", {}, "argument --metrics: it takes no value"),
        ("--args", {}, "argument --args: expects a string of flags"),
        ("--args '", {}, 'argument --args: "\'" cannot be split like a shell command: no closing quotation'),
        ("--args --xyzzy", {}, "unknown argument --xyzzy; "),
        ("-m", {}, "argument -m/--model: expects a value"),
        ("-m --port 80", {}, "argument -m/--model: expects a value, but --port is a flag"),
        ("model.gguf", {}, "unexpected argument 'model.gguf'; name the model with -m"),
        ("--api-key=", {}, "argument --api-key: it has no key; omit it for a server without keys"),
        ("", {"LLAMA_API_KEY": ","}, "variable LLAMA_API_KEY: it has no key"),
        ("--no-such-flag", {}, "unknown argument --no-such-flag; "),
        ("--ctx-sise 5", {}, "unknown argument --ctx-sise; did you mean --ctx-size?"),
        ("--n_predikt=5", {}, "unknown argument --n_predikt=5; did you mean --n-predict?"),
        ("--prot 5", {}, "unknown argument --prot; did you mean --port?"),
        ("-npp 5", {}, "unknown argument -npp; did you mean -np?"),
        ("--xyzzy", {}, "unknown argument --xyzzy; --help-all lists all of them"),
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


def test_what_a_request_leaves_unsaid_is_the_same_over_http_and_in_process() -> None:
    settings, request = Settings(), weft.Request(prompt="")
    shared = {field.name for field in fields(Settings)} & {field.name for field in msgspec.structs.fields(weft.Request)}
    assert {"stop", "n", "n_keep", "grammar"} < shared
    assert msgspec.structs.asdict(settings.sampling).items() <= msgspec.structs.asdict(request).items()
    assert settings.n is None, "single-request batching has another default"
    shared -= {"n"}
    assert {name: getattr(settings, name) for name in shared} == {name: getattr(request, name) for name in shared}
    assert settings.n_predict == request.max_tokens
    assert settings.cache_prompt == request.use_cache


def test_every_setting_has_its_flags_and_none_of_the_engine_and_the_samplers_is_the_servers_too() -> None:
    parts = {field.name for part in (weft.EngineConfig, Sampling) for field in msgspec.structs.fields(part)}
    own = {field.name for field in fields(Settings)} - {"engine", "sampling"}
    assert table().keys() == parts | own
    assert not parts & own


def test_a_grammar_and_a_schema_are_read_from_files(tmp_path: Path) -> None:
    grammar, schema = tmp_path / "grammar", tmp_path / "schema"
    grammar.write_text('root ::= "é"\n')
    schema.write_text('{"type": "object"}')
    assert parse(["--grammar-file", str(grammar)], {}).settings.grammar == 'root ::= "é"\n'
    assert parse(["-jf", str(schema)], {}).settings.json_schema == '{"type": "object"}'
