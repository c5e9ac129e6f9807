"""Every flag of llama-server is known: it works, is accepted with one warning, or is refused with the reason."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from weft.cli.flags_without_setting import ACCEPTED, Meaning
from weft.cli.main import parse
from weft.cli.spellings import all_spellings
from weft.settings import Settings, table

VALUES = {
    "--hf-repo": "user/model",
    "--model-url": "https://example.org/model.gguf",
    "--docker-repo": "smollm2:135M-Q4_0",
    "--load-mode": "none",
    "--mmproj-url": "https://example.org/mmproj.gguf",
    "--mmproj-device": "none",
    "--media-path": "/",
    "--split-mode": "row",
    "--numa": "isolate",
    "--rope-scaling": "yarn",
    "--rope-scale": "4",
    "--override-kv": "general.name=str:x",
    "--override-tensor": "ffn=CPU",
    "--cpu-range": "0-1",
    "--cpu-range-batch": "0-1",
    "--cpu-strict": "1",
    "--cpu-strict-batch": "1",
    "--lora-scaled": "a.gguf:2",
    "--flash-attn": "on",
    "--samplers": "top_k",
    "--sampler-seq": "k",
    "--logit-bias": "7+1",
    "--grammar-file": __file__,
    "--json-schema": "{}",
    "--json-schema-file": str(Path(__file__).parent / "schema.json"),
    "--cache-type-k": "f32",
    "--cache-type-v": "f32",
    "--cache-type-k-draft": "f32",
    "--cache-type-v-draft": "f32",
    "--draft-p-min": "0.5",
    "--override-tensor-draft": "a=CPU",
    "--hf-repo-draft": "user/model",
    "--path": "/",
    "--pooling": "cls",
    "--embd-normalize": "3",
    "--slot-save-path": "/",
    "--api-key-file": __file__,
    "--ssl-key-file": __file__,
    "--ssl-cert-file": __file__,
    "--chat-template-file": __file__,
    "--chat-template-kwargs": '{"a": 1}',
    "--reasoning": "on",
    "--reasoning-format": "deepseek",
    "--log-colors": "on",
    "--api-prefix": "/llm",
    "--temp": "0.5",
    "--cors-origins": "https://chat.example",
    "--dry-allowed-length": "3",
    "--adaptive-target": "0.5",
    "--adaptive-decay": "0.5",
    "--spec-type": "ngram-mod",
}
"""What follows a flag that does not take the number 2; by the last of its spellings that this names."""

BESIDE = {"-hff": ("-hf", "user/model"), "--hf-file": ("-hf", "user/model")}
"""What a flag is nothing without."""

OPPOSITES = {
    "--no-skip-chat-parsing": "--skip-chat-parsing",
    "-kvu": "-no-kvu",
    "--kv-unified": "--no-kv-unified",
    "-kvo": "-nkvo",
    "--kv-offload": "--no-kv-offload",
    "--op-offload": "--no-op-offload",
    "--mmproj-auto": "--no-mmproj",
    "--mmproj-offload": "--no-mmproj-offload",
    "--slots": "--no-slots",
    "--ui": "--no-ui",
    "--webui": "--no-webui",
    "--cache-prompt": "--no-cache-prompt",
    "--no-context-shift": "--context-shift",
    "-e": "--no-escape",
    "--escape": "--no-escape",
    "--prefill-assistant": "--no-prefill-assistant",
    "--cors-credentials": "--no-cors-credentials",
    "--no-log-jsonl": "--log-jsonl",
    "--log-prefix": "--no-log-prefix",
    "--log-timestamps": "--no-log-timestamps",
}
"""Switches that ask for the default, with what they undo."""


class Line(NamedTuple):
    """One line of the list."""

    verdict: str
    n_values: int
    env: str | None
    names: tuple[str, ...]

    def value(self) -> str:
        """One that asks for something."""
        return next((VALUES[name] for name in self.names if name in VALUES), "2")


def _lines() -> Iterator[Line]:
    for line in (Path(__file__).parent / "llama_server_flags.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            verdict, n_values, env, *names = line.split()
            yield Line(verdict, int(n_values), None if env == "-" else env, tuple(names))


LINES = list(_lines())
KNOWN = all_spellings()
FLAGS = [pytest.param(line, name, id=name) for line in LINES for name in line.names]
ASKING = {"-h", "--help", "--usage", "--help-all", "--version", "--completion-bash", "-cl", "--cache-list", "--list-devices"}
"""These are answered at once."""


def _verdict(arguments: list[str], environ: dict[str, str], capsys: pytest.CaptureFixture[str]) -> str:
    try:
        _, warnings = parse(arguments, environ)
    except SystemExit as exit_:
        ended, said = exit_.code, capsys.readouterr()
    else:
        assert len(warnings) <= 1
        assert all(" has no meaning here: " in warning for warning in warnings)
        return "warned" if warnings else "works"
    # Help and the like are printed; what is missing is named.
    assert said.out if ended == 0 else ended == 2 and " is not supported: " in said.err
    return "works" if ended == 0 else "refused"


@pytest.mark.parametrize(("line", "name"), FLAGS)
def test_each_spelling_works_or_is_warned_about_or_is_refused(line: Line, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    spelt = [name, name.replace("-", "_").replace("__", "--", 1)] if name.startswith("--") else [name]
    expected = "works" if line.verdict == "always" else line.verdict
    for spelling in spelt:
        assert _verdict([*BESIDE.get(name, ()), spelling, *[line.value()] * line.n_values], {}, capsys) == expected


def test_no_flag_is_a_setting_and_without_a_meaning() -> None:
    set_by = {name for flag in table().values() for alias in flag.aliases() for name in alias.names}
    accepted = [name for accepted in ACCEPTED for name in accepted.names]
    assert len(accepted) == len(set(accepted))
    assert not set_by & set(accepted)


@pytest.mark.parametrize(("line", "name"), FLAGS)
def test_each_spelling_that_works_sets_something(line: Line, name: str) -> None:
    if line.verdict == "always":
        accepted = KNOWN[name].accepted
        assert accepted is not None
        assert accepted.meaning is Meaning.ALWAYS
    elif line.verdict == "works" and name not in ASKING:
        before = [OPPOSITES[name]] if name in OPPOSITES else [*BESIDE.get(name, ())]
        given = parse([*before, name, *[line.value()] * line.n_values], {}).settings
        assert given != parse(before, {}).settings


@pytest.mark.parametrize("line", [pytest.param(line, id=line.env) for line in LINES if line.env is not None])
def test_each_variable_does_what_its_flag_does(line: Line, capsys: pytest.CaptureFixture[str]) -> None:
    assert line.env is not None
    name = line.names[-1]
    is_off = name.startswith("--no-") and name != "--no-host"
    text = line.value() if line.n_values else "off" if is_off else "on"
    by_flag = [*BESIDE.get(name, ()), name, *[text] * line.n_values]
    by_variable = {line.env: text} | ({"LLAMA_ARG_HF_REPO": "user/model"} if name in BESIDE else {})
    verdict = _verdict(by_flag, {}, capsys)
    assert _verdict([], by_variable, capsys) == verdict
    if verdict != "refused":
        assert parse([], by_variable).settings == parse(by_flag, {}).settings


@pytest.mark.parametrize(
    "arguments",
    [
        "--spec-type auto", "--spec-draft-sampling greedy", "--rope-freq-base 0.0", "--yarn-ext-factor -1.00",
        "--cache-reuse 0",
        "--threads-http -1", "--fit on", "--reasoning-budget -1", "--n-cpu-moe 0", "--prio 0",
    ],
)  # fmt: skip
def test_a_value_that_asks_for_nothing_is_fine(arguments: str) -> None:
    assert parse(arguments.split(), {}) == (Settings(), ())


def test_a_warning_is_said_once_and_names_the_flag_as_it_was_written() -> None:
    _, warnings = parse(["-sps", "0.5", "-sps", "0.5", "-nocb"], {"LLAMA_ARG_NO_JINJA": "", "HF_TOKEN": "x"})
    assert warnings == (
        "argument -sps has no meaning here: a prompt reuses the longest cached prefix, whichever slot computed it",
        "argument -nocb has no meaning here: requests are always batched continuously",
        "variable LLAMA_ARG_NO_JINJA has no meaning here: templates are always Jinja",
    )


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        ("--rpc localhost:50052", {}, "argument --rpc is not supported: llama.cpp is built without RPC"),
        ("--lora-base", {}, "argument --lora-base is not supported: GGUF adapters need no separate base model"),
        ("--lora-base --port 80", {}, "argument --lora-base is not supported: GGUF adapters need no separate base model"),
        ("--engine a", {}, "argument --engine is not supported: the engine runs in this process"),
        ("--spec-synth-len 2", {}, "argument --spec-synth-len is not supported: it changes the text that is generated"),
        (
            "--spec-type draft-mtp,draft-simple",
            {},
            "argument --spec-type: draft-mtp and draft-simple cannot be combined: there is one draft model",
        ),
        ("", {"LLAMA_ARG_AGENT": "1"}, "variable LLAMA_ARG_AGENT is not supported: there are no built-in tools"),
        ("", {"LLAMA_ARG_SWA_FULL": "maybe"}, "variable LLAMA_ARG_SWA_FULL: 'maybe' is not one of on, enabled"),
        ("--control-vector a.gguf", {}, "argument --control-vector is not supported: control vectors are not supported"),
        (
            "--control-vector-scaled a.gguf:2",
            {},
            "argument --control-vector-scaled is not supported: control vectors are not supported",
        ),
        ("--control-vector-layer-range 1", {}, "argument --control-vector-layer-range: expects a value"),
    ],
)
def test_what_is_missing_ends_it_and_is_named(
    arguments: str, environ: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments.split(), environ)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("-m a.gguf -hf a/b", "-m/--model and -hf/-hfr/--hf-repo each name a model; give one of them"),
        ("-hf a/b -mu http://a/b", "-hf/-hfr/--hf-repo and -mu/--model-url each name a model; give one of them"),
        ("-dr a -mu http://a/b", "-mu/--model-url and -dr/--docker-repo each name a model; give one of them"),
        ("-dr A", "argument -dr/--docker-repo: 'A' is not [REPO/]MODEL[:TAG] in lowercase"),
        ("-m a --gpt-oss-20b-default", "-m/--model and a preset such as --gpt-oss-20b-default each name a model"),
        ("-hff a.gguf", "-hff/--hf-file names a file of a repository; name the repository with -hf/-hfr/--hf-repo"),
        ("-hf model", "argument -hf/-hfr/--hf-repo: 'model' is not USER/MODEL or USER/MODEL:QUANT"),
        ("-mm a.gguf -mmu http://a/b", "-mm/--mmproj and -mmu/--mmproj-url each name a projector; give one of them"),
        (
            "-md a.gguf -hfd a/b",
            "-md/--model-draft/--spec-draft-model and -hfd/-hfrd/--hf-repo-draft/--spec-draft-hf each name a draft model",
        ),
        ("-mmdev CUDA1", "argument -mmdev/--mmproj-device: 'CUDA1' is not supported; use 'none' for the CPU"),
        (
            "--allow-media-urls http://a/",
            "argument --allow-media-urls: 'http://a/' is not a host such as example.org or 10.0.0.7:8000",
        ),
        ("-mu model.gguf", "argument -mu/--model-url: 'model.gguf' is not the URL of a file"),
        (
            "--rerank --pooling mean",
            "--rerank/--reranking restricts the server to ranking, and --pooling mean computes no ranking; give only one of them",
        ),
        (
            "--context-shift -gan 4",
            "--context-shift and -gan/--grp-attn-n exclude each other: both determine what happens to a text that is too long",
        ),
    ],
)
def test_two_models_and_half_a_name_are_refused(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments.split(), {})
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "environ", "named"),
    [
        ("-hf a/b", {"LLAMA_ARG_MODEL": "m.gguf"}, (None, "a/b", None, None)),
        ("-m m.gguf", {"LLAMA_ARG_HF_REPO": "a/b", "LLAMA_ARG_HF_FILE": "c"}, ("m.gguf", None, None, None)),
        ("-hff c", {"LLAMA_ARG_HF_REPO": "a/b"}, (None, "a/b", "c", None)),
        ("-mu http://a/b", {"LLAMA_ARG_HF_REPO": "a/b"}, (None, None, None, "http://a/b")),
    ],
)
def test_a_model_that_a_flag_names_is_served_in_place_of_a_variables(
    arguments: str, environ: dict[str, str], named: tuple[str | None, ...]
) -> None:
    settings = parse(arguments.split(), environ).settings
    assert (settings.model, settings.hf_repo, settings.hf_file, settings.model_url) == named


@pytest.mark.parametrize(
    ("arguments", "environ", "wanted", "address", "file"),
    [
        ("-hf a/b", {}, True, None, None),
        ("-hf a/b --no-mmproj", {}, False, None, None),
        ("-hf a/b --mmproj-auto", {"LLAMA_ARG_MMPROJ_AUTO": "off"}, True, None, None),
        ("-hf a/b -mm m.gguf", {}, False, None, "m.gguf"),
        ("-hf a/b -mmu http://a/b", {"LLAMA_ARG_MMPROJ": "m.gguf"}, False, "http://a/b", None),
        ("--vision-gemma-12b-default", {}, True, None, None),
    ],
)
def test_a_repositorys_projector_is_wanted_unless_another_is_named_or_none(
    arguments: str, environ: dict[str, str], wanted: bool, address: str | None, file: str | None
) -> None:
    settings = parse(arguments.split(), environ).settings
    assert settings.source is not None
    assert settings.source.wants_projector == wanted
    assert (settings.projector_source and settings.projector_source.url, settings.engine.mmproj) == (address, file)


@pytest.mark.parametrize(
    ("preset", "repo", "file"),
    [
        ("1.5b", "Qwen2.5-Coder-1.5B-Q8_0-GGUF", "qwen2.5-coder-1.5b-q8_0.gguf"),
        ("3b", "Qwen2.5-Coder-3B-Q8_0-GGUF", "qwen2.5-coder-3b-q8_0.gguf"),
        ("7b", "Qwen2.5-Coder-7B-Q8_0-GGUF", "qwen2.5-coder-7b-q8_0.gguf"),
        ("30b", "Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF", "qwen3-coder-30b-a3b-instruct-q8_0.gguf"),
    ],
)
def test_a_preset_of_a_model_that_fills_gaps_sets(preset: str, repo: str, file: str) -> None:
    settings = parse([f"--fim-qwen-{preset}-default"], {}).settings
    assert (settings.hf_repo, settings.hf_file, settings.port) == (f"ggml-org/{repo}", file, 8012)
    engine = settings.engine
    assert (engine.n_batch, engine.n_ubatch, engine.n_ctx, engine.n_slots) == (1024, 1024, None, None)


@pytest.mark.parametrize("size", ["20b", "120b"])
def test_a_preset_of_an_open_model_sets(size: str) -> None:
    settings = parse([f"--gpt-oss-{size}-default"], {}).settings
    file = "gpt-oss-20b-mxfp4.gguf" if size == "20b" else None
    assert (settings.hf_repo, settings.hf_file, settings.port) == (f"ggml-org/gpt-oss-{size}-GGUF", file, 8013)
    engine, sampling = settings.engine, settings.sampling
    assert (engine.n_batch, engine.n_ubatch, engine.n_ctx, engine.n_slots) == (32_768, 2048, 262_144, 2)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 1.0, 0, 0.01)


@pytest.mark.parametrize("size", ["4b", "12b"])
def test_a_preset_of_a_model_that_sees_sets(size: str) -> None:
    settings = parse([f"--vision-gemma-{size}-default"], {}).settings
    assert (settings.hf_repo, settings.hf_file) == (f"ggml-org/gemma-3-{size}-it-qat-GGUF", None)
    assert (settings.port, settings.engine.n_ctx) == (8014, None)


def test_a_preset_names_a_model_and_settings_of_which_each_can_be_given() -> None:
    settings = parse(["--gpt-oss-20b-default", "-np", "4"], {"LLAMA_ARG_PORT": "80"}).settings
    assert (settings.hf_repo, settings.hf_file) == ("ggml-org/gpt-oss-20b-GGUF", "gpt-oss-20b-mxfp4.gguf")
    assert (settings.port, settings.engine.n_slots, settings.engine.n_ctx, settings.sampling.min_p) == (80, 4, 262_144, 0.01)
    code = parse(["--fim-qwen-1.5b-default"], {}).settings
    assert (code.hf_repo, code.hf_file) == ("ggml-org/Qwen2.5-Coder-1.5B-Q8_0-GGUF", "qwen2.5-coder-1.5b-q8_0.gguf")
    assert (code.port, code.engine.n_batch, code.engine.n_ubatch) == (8012, 1024, 1024)
    vision = parse(["--vision-gemma-4b-default"], {}).settings
    assert (vision.hf_repo, vision.hf_file, vision.port) == ("ggml-org/gemma-3-4b-it-qat-GGUF", None, 8014)
    vectors = parse(["--embd-gemma-default"], {}).settings
    assert (vectors.hf_repo, vectors.hf_file) == (
        "ggml-org/embeddinggemma-300M-qat-q4_0-GGUF",
        "embeddinggemma-300M-qat-Q4_0.gguf",
    )
    assert (vectors.port, vectors.embeddings) == (8011, True)
    engine = vectors.engine
    assert (engine.n_batch, engine.n_ubatch, engine.n_slots, engine.n_ctx) == (2048, 2048, 32, 65_536)
