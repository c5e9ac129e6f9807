"""What the README shows runs, what it counts is so, and the files that it names are there."""

import ast
import contextlib
import inspect
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import weft
from tests.adapters import write_adapter
from tests.engine.tiny_encoders import write_tiny_encoder
from tests.engine.tiny_projectors import png_of, write_tiny_projector
from tests.helpers import prompt_of
from tests.server.live import LiveServer
from weft import completion
from weft.chat import sandbox, template_terms
from weft.chat.answer.source import MAX_HELD
from weft.chat.answer.values import MAX_DEPTH
from weft.chat.request_options import MAX_TOOL_BYTES, MAX_TOOLS
from weft.cli.commands import TUNE
from weft.cli.main import parse
from weft.cli.tune import table
from weft.drawing import figure
from weft.errors import AnswerTooLargeError
from weft.fields.meta import field_meta
from weft.server import json_request, memory_budget
from weft.server.anthropic import translate as anthropic
from weft.server.compat import prompt_files
from weft.server.errors import (
    AnswersTooLargeError,
    BodiesTooLargeError,
    OffsetLostError,
    StreamsFullError,
    TextsWaitingError,
    describe,
)
from weft.server.media import fetching, reader
from weft.server.request_fields.branches import MAX_BRANCHES
from weft.server.request_fields.paths import MAX_NESTED, MAX_PATH_CHARACTERS, MAX_PATHS
from weft.server.requests_api import translate as requests_api
from weft.server.responses import items, store, translate
from weft.server.responses import service as responses_service
from weft.server.run import auto_pinner, embedding, executor, keyed_lock, request_builder
from weft.server.score_api import scoring
from weft.server.streaming import client_timeouts, fair_scheduler, recording
from weft.server.streaming import responses as streamed
from weft.serving import endpoint, handles
from weft.settings import volatile
from weft.settings.server import MAX_THREADS_HTTP
from weft.tree import tree
from weft.work.tuning import Measured

ROOT = Path(__file__).parent.parent
CPUS = field_meta(weft.EngineConfig)["cpus"]
README = (ROOT / "README.md").read_text(encoding="utf-8")


BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
"""All that the README shows, each with its language."""


def blocks(language: str) -> list[str]:
    """What the README shows in a language."""
    return [block for of, block in BLOCKS if of == language]


PROGRAMS = [block for block in blocks("python") if "asyncio.run(" in block]
CLIENTS = [block for block in blocks("python") if "OpenAI(" in block]
PIECES = [block for block in blocks("python") if block not in PROGRAMS + CLIENTS]
SESSIONS = blocks("pycon")
SHELL = [block for block in blocks("sh") if "curl " in block]
INSTALLING = [block for block in blocks("sh") if block.startswith(("make run\n", "make wheel\n"))]
DEVELOPING = [block for block in blocks("sh") if block.startswith("make ") and block not in INSTALLING]
TUNING = [block for block in blocks("console") if block.startswith("$ python -m weft tune ")]
LINES = [block for block in blocks("") if block.startswith("attention by ")]
"""What the log says."""


def test_every_snippet_is_run_or_checked() -> None:
    checked = [PROGRAMS, CLIENTS, PIECES, SESSIONS, SHELL, INSTALLING, DEVELOPING, TUNING, LINES]
    assert sorted(block for group in checked for block in group) == sorted(block for _, block in BLOCKS)
    assert [len(group) for group in checked] == [2, 1, 3, 1, 6, 2, 1, 1, 1]
    assert README.count("\n```") == 2 * len(BLOCKS), "each of them is found"


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_first_commands_work_in_a_checkout() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    name = PROJECT["name"].replace("-", "_")
    assert ["make run\n", f"make wheel\npip install dist/{name}-*.whl\npython -m weft\n"] == INSTALLING
    assert BLOCKS[0] == ("sh", "make run\n")
    recipes = {goal: re.search(rf"^{goal}:.*\n\t(.*)", makefile, re.MULTILINE) for goal in ("run", "wheel")}
    assert {goal: recipe[1] for goal, recipe in recipes.items() if recipe is not None} == {
        "run": "@exec python -m weft $(ARGS)",
        "wheel": "maturin build --release --locked --strip --compatibility linux --out dist",
    }
    settings, warnings = parse([], {})
    assert (settings.model, settings.source, warnings) == (None, None, ()), "the demo model is served"


SKIPPED = {".git", ".venv", "target", "dist", "node_modules", "__pycache__"}

FROM_AN_INDEX = re.compile(
    # A command that installs it.
    rf"\b(?:pip3?|uvx?|pipx|poetry|conda)\b(?! uninstall)[^\n]*?(?<![\w/.-]){PROJECT['name']}(?![\w.]*\*)"
    rf"|pypi\.org/\w+/{PROJECT['name']}"
    rf"|WEFT={PROJECT['name']}"
    rf"|{PROJECT['name']}(?:-\w+)?(?:\[|[=<>~]=)"  # A requirement: with extras, or of a version.
)
"""What makes a reader, or pip, look for the package on an index that does not have it."""

ONCE_PUBLISHED = f"<!-- check: commands -->\n```sh\n# once it is published\npip install {PROJECT['name']}\n```\n"


def texts_of_the_repository() -> Iterator[tuple[str, str]]:
    """Every text in the checkout but its tests, by its path."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in SKIPPED and not name.startswith(".mypy")]
        for name in names:
            path = Path(folder, name)
            if (
                path.suffix not in (".lock", ".gguf", ".so", ".pyc", ".png", ".svg")
                and "tests" not in path.relative_to(ROOT).parts
            ):
                with contextlib.suppress(UnicodeDecodeError):
                    yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_the_package_that_is_not_published_is_nowhere_to_be_installed_from_an_index() -> None:
    found = dict(texts_of_the_repository())
    assert found["README.md"].count(ONCE_PUBLISHED) == 1
    found["README.md"] = found["README.md"].replace(ONCE_PUBLISHED, "")
    assert found.keys() > {
        "docs/start/install.md",
        "Dockerfile",
        "deploy/weft.service",
        "scripts/build_backend.py",
        "python/weft/errors.py",
    }
    instructions = {(path, said[0]) for path, text in found.items() for said in FROM_AN_INDEX.finditer(text)}
    assert instructions == set()


@pytest.mark.parametrize(
    ("extra", "paths"),
    [
        ("hub", ["Dockerfile", "deploy/Dockerfile.cuda"]),
        ("ray", ["docs/start/install.md", "docs/guides/ray.md", "python/weft/ray/__init__.py"]),
    ],
)
def test_what_a_feature_needs_is_installed_by_its_own_name_in_the_tested_version(extra: str, paths: list[str]) -> None:
    [requirement] = PROJECT["optional-dependencies"][extra]
    for path in paths:
        assert f"'{requirement}'" in (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("block", DEVELOPING)
def test_what_can_be_made_is_in_the_makefile(block: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    goals = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    aliases = tomllib.loads((ROOT / ".cargo" / "config.toml").read_text(encoding="utf-8"))["alias"]
    lines = [line.partition("#") for line in block.splitlines()]
    commands = [words for command, _, _ in lines if (words := command.split())]
    assert {tuple(command[:1]) for command in commands} == {("make",), ("cargo",)}
    for program, name in commands:
        assert name in (goals if program == "make" else aliases), f"there is no {program} {name}"
    # Further goals are named in what is said of one: `bench-loads: what clients see`.
    assert set(re.findall(r"\b(\w+-\w+): ", " ".join(about for _, _, about in lines))) <= goals


@pytest.mark.parametrize("block", TUNING)
def test_tuning_prints_such_a_table(block: str) -> None:
    command, *shown, _, fastest = block.splitlines()
    assert command == "$ python -m weft tune -m model.gguf"
    assert parse(shlex.split(command)[5:], {}, TUNE)[0].model == "model.gguf"
    measured: list[Measured] = []
    for line in shown[1:]:
        title, attention, n_threads, seconds = re.fullmatch(r"(.*?) {2,}(\w+) +(\d+) +([\d.]+) +[\d.]+", line).groups()  # type: ignore[union-attr]
        work = {"a prompt of 1,000 tokens": "prompt", "8 branches of it, 128 tokens each": "branches"}.get(title)
        assert attention == "weft"
        measured.append(Measured(work or measured[-1].work, None, int(n_threads), float(seconds)))
    # What is shown are ratios of seconds that are not rounded.
    made, told = (re.sub(r"\d\.\d\d$", "", text, flags=re.MULTILINE) for text in (table(tuple(measured)), "\n".join(shown)))
    assert made == told
    assert re.fullmatch(r"fastest: \d threads, \d for prompts", fastest)


@pytest.mark.parametrize("line", LINES)
def test_the_log_has_such_a_line(line: str, engine_of_its_own: weft.Engine) -> None:
    kernels = r"(?:weft \(.*?\)[\w ]*|llama\.cpp.*?)"
    form = rf"attention by {kernels}, products by {kernels}, at most \d+ tokens per decode, \d+ threads \(.+\)\n?"
    assert re.fullmatch(form, line)
    assert re.fullmatch(form, engine_of_its_own.compute.summary)


def printed_by(program: str) -> str:
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize(("program", "shown"), list(zip(PROGRAMS, [r"\d \w*", r"The fox hid the bread\.\n$"], strict=True)))
def test_a_program_runs(program: str, shown: str) -> None:
    program, n_models = re.subn(r'"(?:model|embedder)\.gguf"', repr(weft.DEMO_MODEL), program)
    assert n_models == 1
    assert re.match(shown, printed_by(program))


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_runs(client: str, tmp_path: Path) -> None:
    with LiveServer(tmp_path / "log") as server:
        await server.ready()
        assert "http://127.0.0.1:8080/" in client
        # The server is another process: nothing here has to go on meanwhile.
        assert re.match("0 .+", printed_by(client.replace("http://127.0.0.1:8080", server.url)))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """What stands for the files that commands name."""
    write_tiny_encoder("bert", tmp_path / "embedder.gguf")
    write_tiny_encoder("reranker", tmp_path / "reranker.gguf")
    for seed, name in enumerate(["poet.gguf", "clerk.gguf"]):
        write_adapter(tmp_path / name, seed=seed)
    seeing, projector = write_tiny_projector("llava", tmp_path)
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    (pictures / "cat.png").write_bytes(png_of(1))
    made = {name: str(tmp_path / name) for name in ("poet.gguf", "clerk.gguf")}
    named = {
        "-hf ggml-org/embeddinggemma-300M-GGUF:Q8_0": f"-m {tmp_path / 'embedder.gguf'}",
        "-hf gpustack/bge-reranker-v2-m3-GGUF:Q8_0": f"-m {tmp_path / 'reranker.gguf'}",
        "-hf ggml-org/gemma-3-4b-it-GGUF": f"-m {seeing} --mmproj {projector}",
        "~/pictures": str(pictures),
    }
    return {"model.gguf": str(weft.DEMO_MODEL), **made, **named}


@pytest.mark.parametrize("block", SHELL, ids=lambda block: re.findall(r"8080(/\S+)", block)[0])
async def test_commands_run(block: str, files: dict[str, str], tmp_path: Path) -> None:
    for name, path in files.items():
        block = re.sub(rf"(?<![\w/]){re.escape(name)}", path, block)
    start, ask = re.fullmatch(r"(?:python -m weft ([^\n]*)\n)?(.*)", block, re.DOTALL).groups()  # type: ignore[union-attr]
    with LiveServer(tmp_path / "log", *shlex.split(start or ""), "-c", "1024") as server:
        await server.ready()
        # Each answer on a line of its own, and an error ends them.
        ask = ask.replace("curl ", r"curl --silent --show-error --fail-with-body --write-out '\n' ")
        printed = printed_by_shell(ask.replace("http://127.0.0.1:8080", server.url))
    answers = [line.removeprefix("data: ") for line in printed.splitlines() if line and line != "data: [DONE]"]
    # What is deleted is answered with nothing.
    assert len(answers) >= block.count("curl ") - block.count("DELETE")
    assert all(json.loads(told) for told in answers)


def printed_by_shell(commands: str) -> str:
    command = ["bash", "-e", "-o", "pipefail", "-c", commands]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    return ran.stdout


@pytest.fixture
async def engine_of_its_own() -> AsyncIterator[weft.Engine]:
    """Nothing is cached there yet."""
    async with weft.Engine(n_slots=8, n_ctx=4096, kv_unified=True, n_threads=1) as engine:
        yield engine


async def result_of(code: str, names: dict[str, Any]) -> object:
    """Runs a piece that may await; the value of one that is an expression."""
    mode = "eval" if re.match(r"\w+ = |class |print|async for ", code) is None else "exec"
    compiled = compile(code, "README.md", mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    made = eval(compiled, names)
    return await made if inspect.iscoroutine(made) else made


@pytest.mark.parametrize("piece", PIECES)
async def test_a_piece_runs(piece: str, engine_of_its_own: weft.Engine) -> None:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        names = {"engine": engine_of_its_own, "msgspec": msgspec, "weft": weft, "__name__": __name__}
        await result_of(piece, names | {"said": [{"role": "user", "content": "Is a whale kind?"}]})
    assert shown.getvalue().strip()


@pytest.mark.parametrize("session", SESSIONS)
async def test_a_session_shows_what_it_says(session: str, engine_of_its_own: weft.Engine) -> None:
    names = {"engine": engine_of_its_own, "prompt_of_200_tokens": prompt_of(200, "readme")}
    n_shown = 0
    for code, shown in re.findall(r"^>>> (.*)\n((?:(?!>>>).*\n)*)", session, re.MULTILINE):
        value = await result_of(code, names)
        if shown:
            n_shown += 1
            assert repr(value) == shown.strip()
    assert n_shown > 0


def test_every_file_that_is_named_is_there() -> None:
    trace = README[README.index("## How it works") : README.index("## What a start takes")]
    named = [*re.findall(r"`((?:[a-z_*]+/)+(?:[a-z_]+\.py)?)`", trace), *re.findall(r"\]\(([a-z_./]+)\)", README)]
    assert len(named) > 8
    for name in named:
        inside = {"server": "python/weft/server", "weft": "python/weft"}.get(name.split("/")[0])
        path = name if inside is None else f"{inside}/{name.split('/', 1)[1]}"
        assert list(ROOT.glob(path)), f"{name} is not there"


def constant(file: str, name: str) -> int:
    """The value of a constant of the crate."""
    source = (ROOT / "rust" / file).read_text(encoding="utf-8")
    found = re.search(rf"\bconst {name}: \w+ = ([^;]+);", source)
    assert found is not None, f"{file} has no {name}"
    expression = re.sub(r"Duration::from_(?:secs|millis)\((\d+)\)", r"\1", found[1])
    return int(eval(expression, {}))


def range_of(name: str) -> list[float]:
    """The least and the greatest value of a request's field, without their signs."""
    about = field_meta(weft.Request)[name]
    return [abs(about.low), about.high]


CONFIG, BACKLOG, VECTORS = "config/mod.rs", "engine/output/slow_consumers.rs", "embedding/queue.rs"
WAKES = "engine/output/wake_handle.rs"
REQUEST, SAMPLING = "request/mod.rs", "request/sampling.rs"
GRAMMAR, SCHEMA, KEPT = "grammar/mod.rs", "grammar/schema/mod.rs", "llama/vocabulary/grammar.rs"
DIVERSITY = "request/diversity.rs"
TRIGGERS, THOUGHT, STEERING = "grammar/lazy/triggers.rs", "request/reasoning.rs", "python/output_rules.rs"

BOUNDS: dict[str, Callable[[], list[float]]] = {
    "what is pinned for `cache_control` on `/v1/messages`": lambda: [
        auto_pinner.MAX_AUTO_PINS,
        *sorted(set(anthropic.TTLS_S.values())),
    ],
    "slots, `-np`": lambda: [constant(CONFIG, "DEFAULT_SLOTS")],
    "pool, `-c`": lambda: [constant("config/limits.rs", "DEFAULT_MAX_CELLS")],
    "completions of one request, `n`, and its `branches`": lambda: [field_meta(weft.Request)["n"].high],
    "branches that one look at a request, `GET /requests/{id}`, tells": lambda: [requests_api.MAX_REPORTED],
    "branches of one stream, with those that were forked from others": lambda: [constant(REQUEST, "MAX_COMPLETIONS")],
    "what is kept of branches that have ended, for forks while their streams are held; the oldest streams' go first": lambda: [
        constant("engine/output/fork.rs", "MAX_ENDED_BYTES") >> 20
    ],
    "what forks take over in one step; further ones wait for the next": lambda: [
        constant("engine/features/forks/request.rs", "MAX_COPIED_TOKENS"),
        constant("engine/features/forks/request.rs", "REPLAY_COST"),
    ],
    "stop strings of one request": lambda: [
        constant(REQUEST, "MAX_STOPS"),
        constant(REQUEST, "MAX_STOP_BYTES"),
    ],
    "adapters beside the model, `--lora`": lambda: [constant(CONFIG, "MAX_ADAPTERS")],
    "samplers of one request": lambda: [constant(SAMPLING, "MAX_SAMPLERS")],
    "sequence breakers of one request": lambda: [
        constant(SAMPLING, "MAX_BREAKERS"),
        constant(SAMPLING, "MAX_BREAKER_BYTES"),
    ],
    "a grammar": lambda: [
        constant(GRAMMAR, "MAX_BYTES") >> 20,
        constant(GRAMMAR, "MAX_ELEMENTS"),
        constant(GRAMMAR, "MAX_DEPTH"),
    ],
    "triggers of a lazy grammar": lambda: [
        constant(TRIGGERS, "MAX_TRIGGERS"),
        constant(TRIGGERS, "MAX_TRIGGER_BYTES"),
        constant(TRIGGERS, "MAX_COMPILED_BYTES") >> 10,
        constant("grammar/lazy/mod.rs", "MAX_REACH"),
    ],
    "`preserved_tokens`": lambda: [constant(REQUEST, "MAX_PRESERVED"), constant(STEERING, "MAX_PRESERVED_BYTES")],
    "texts that begin thoughts, and that end them": lambda: [
        constant(THOUGHT, "MAX_MARKERS"),
        constant(THOUGHT, "MAX_MARKER_BYTES"),
        constant(STEERING, "MAX_MESSAGE_BYTES"),
        constant(THOUGHT, "MAX_CLOSING"),
    ],
    "a JSON schema": lambda: [
        constant(SCHEMA, "MAX_SCHEMA_BYTES") >> 10,
        constant(SCHEMA, "MAX_SCHEMA_DEPTH"),
        constant(SCHEMA, "MAX_SCHEMA_PARTS"),
        constant(SCHEMA, "MAX_PROPERTIES"),
    ],
    "texts that wait for their vectors": lambda: [constant(VECTORS, "MAX_TOKENS")],
    "vectors of one request": lambda: [constant(VECTORS, "MAX_NUMBERS"), embedding.MAX_TEXTS],
    "one text that is to be a vector": lambda: [constant("embedding/shape.rs", "DEFAULT_LONGEST")],
    "the context for vectors": lambda: [constant("embedding/shape.rs", "FILL")],
    "what texts begin with that is kept for later vectors": lambda: [constant("embedding/prefix_cache.rs", "MAX_KEPT")],
    "grammars that are kept for later requests": lambda: [
        constant(KEPT, "MAX_GRAMMARS"),
        constant(KEPT, "MAX_CACHED_BYTES") >> 20,
    ],
    "a key or a text of `--override-kv`, and a pattern of `--override-tensor`": lambda: [
        constant("config/overrides.rs", "MAX_BYTES"),
        constant("config/overrides.rs", "MAX_PATTERN_BYTES"),
    ],
    "processors of `-C` and `-Cr`": lambda: [int(CPUS.low), int(CPUS.high)],
    "threads that read and write connections, `--threads-http`": lambda: [1, MAX_THREADS_HTTP],
    "prompts that `--compat stream` keeps in the user's cache folder": lambda: [
        prompt_files.MAX_FILES,
        prompt_files.MAX_BYTES >> 30,
    ],
    "snapshots at turn ends of one prompt": lambda: [constant(REQUEST, "MAX_CHECKPOINTS")],
    "snapshots along one prompt, `--ctx-checkpoints`": lambda: [
        weft.EngineConfig().ctx_checkpoints,
        1,
        constant("engine/scheduler/checkpoints.rs", "HOST_CACHE_PARTS"),
    ],
    "windows along one prompt, with a sliding window, `--ctx-checkpoints`": lambda: [
        weft.EngineConfig().ctx_checkpoints,
        constant("engine/scheduler/checkpoints.rs", "MIN_WINDOW_DISTANCE"),
        1,
        constant("engine/scheduler/checkpoints.rs", "HOST_CACHE_PARTS"),
    ],
    "a chat template": lambda: [sandbox.MAX_STEPS, int(sandbox.MAX_WORK_S), template_terms.MAX_SIZE >> 20],
    "texts that are tokenized, rendered or spelt beside the event loop": lambda: [
        *(executor.MAX_WAITING >> 20, executor.VERY_LONG_TEXT >> 10),
        describe(TextsWaitingError("much waits")).code,
    ],
    "requests that wait for a look at the cache, and those that wait for what is asked of slots": lambda: [
        keyed_lock.MAX_LOCK_REQUESTS,
        describe(TextsWaitingError("much waits")).code,
    ],
    "prompts and answers that are remembered for `explain_cache`, and what was lost of them": lambda: [
        constant("engine/features/explanations/history.rs", "MAX_HISTORY_TOKENS"),
        constant("engine/features/explanations/history.rs", "MAX_HISTORY_REQUESTS"),
        constant("cache/eviction_log.rs", "MAX_EVICTED_RUNS"),
    ],
    "answers of chats that are remembered in their tokens, with their prompts": lambda: [
        constant("engine/features/transcripts.rs", "MAX_TRANSCRIPT_TOKENS"),
        constant("engine/features/transcripts.rs", "MAX_TRANSCRIPTS"),
    ],
    "`--volatile-prompt-lines`": lambda: [volatile.MAX_RULES, volatile.MAX_PATTERN, volatile.MAX_WAYS],
    "host memory for what is cached, `--cache-ram`": lambda: [constant("config/limits.rs", "DEFAULT_HOST_CACHE_BYTES") >> 20],
    "a request's body, `--max-body`": lambda: [
        json_request.BASE_BYTES >> 20,
        json_request.BYTES_PER_TOKEN,
        json_request.BYTES_PER_BIAS,
        json_request.MEDIA_BYTES >> 20,
    ],
    "bodies of requests that are being sent, or wait to be read, all of them together": lambda: [
        *(json_request.MAX_TOGETHER_BYTES >> 20, json_request.LARGE_BODY >> 10, describe(BodiesTooLargeError(1)).code),
    ],
    "pictures and sounds of one request": lambda: [reader.MAX_FILES, reader.MAX_BYTES >> 20],
    "a picture, and one side of it against the other": lambda: [
        constant("llama/media/media_file.rs", "MAX_PIXELS"),
        constant("llama/media/media_file.rs", "MAX_RATIO"),
    ],
    "a sound": lambda: [constant("llama/media/media_file.rs", "MAX_SECONDS")],
    "pictures and sounds that are loaded for requests, with their vectors": lambda: [
        constant("llama/media/mod.rs", "MAX_LOADED_BYTES") >> 20,
        describe(weft.QueueFullError(1)).code,
    ],
    "vectors of pictures and sounds that are kept for later requests": lambda: [
        constant("llama/media/encoder.rs", "MAX_KEPT_BYTES") >> 20
    ],
    "places of a picture, `--image-min-tokens` and `--image-max-tokens`": lambda: [
        constant("config/model_config.rs", "MAX_IMAGE_TOKENS")
    ],
    "a file that is fetched from another host": lambda: [
        *(reader.MAX_FETCHED >> 20, int(reader.FETCH_S), fetching.MAX_REDIRECTS, reader.MAX_FETCHES),
        describe(TextsWaitingError("much waits")).code,
    ],
    "pictures and sounds that wait to be decoded": lambda: [
        *(executor.MAX_WAITING >> 20, executor.VERY_LONG_TEXT >> 10),
        describe(TextsWaitingError("much waits")).code,
    ],
    "what a body of more than 64 KiB holds beside lists of token ids and biases": lambda: [
        constant("python/body.rs", "MAX_VALUES"),
        constant("python/body.rs", "MAX_DEPTH"),
    ],
    "`tools` of a chat": lambda: [MAX_TOOLS, MAX_TOOL_BYTES >> 10],
    "a call of a tool that is held back until it is clear that it is one": lambda: [MAX_HELD],
    "values inside of each other in a call's arguments": lambda: [MAX_DEPTH],
    "`response_fields` of one request": lambda: [MAX_PATHS, MAX_PATH_CHARACTERS, MAX_NESTED],
    "log-probabilities of a request's prompts, `echo` with `logprobs`": lambda: [request_builder.MAX_PROMPT_LOGPROBS],
    "what `POST /score` tells": lambda: [scoring.MAX_CONTINUATIONS, scoring.MAX_SCORED],
    "log-probabilities of prompts that are remembered, with the likeliest token beside each": lambda: [
        constant("engine/features/prompt_logprobs/cache.rs", "MAX_CACHED_TOKENS"),
    ],
    "an answer that is not streamed, while it is collected, and all of them together": lambda: [
        *(memory_budget.MAX_ANSWER_BYTES >> 20, describe(AnswerTooLargeError(1)).code),
        *(memory_budget.MAX_TOGETHER_BYTES >> 20, memory_budget.SMALL_BYTES >> 20, describe(AnswersTooLargeError(1)).code),
    ],
    "a stream with a header `X-Conversation-Id`, or of a response in the background": lambda: [
        *(recording.MAX_BYTES >> 20, int(recording.KEPT_S), describe(OffsetLostError(0, 1)).code, int(recording.GRACE_S)),
    ],
    "all such streams together": lambda: [
        *(
            recording.MAX_STREAMS,
            describe(StreamsFullError(1)).code,
            recording.MAX_TOGETHER_BYTES >> 20,
            recording.OWN_BYTES >> 10,
        ),
    ],
    "responses and conversations that are kept": lambda: [
        *(store.MAX_KEPT, store.MAX_KEPT_BYTES >> 20, responses_service.MAX_ONE_BYTES >> 20),
    ],
    "items of one body, and `metadata` of a response or conversation": lambda: [items.MAX_ITEMS, *translate.MAX_METADATA],
    "an answer that `engine.complete` or `engine.chat` collects, `max_bytes`": lambda: [completion.MAX_BYTES >> 20],
    "a `weft.Tree`, `max_nodes` and `max_bytes`, and paths that are saved computed with one": lambda: [
        *(tree.MAX_NODES, tree.MAX_BYTES >> 20, tree.MAX_CACHE_FILES),
    ],
    "nodes that a picture shows, of `GET /cache` and of a `weft.Tree`": lambda: [figure.DEFAULT_DRAWN, figure.MAX_DRAWN],
    "one write to a client, and the work on it at once": lambda: [
        streamed.MAX_WRITE_BYTES >> 10,
        round(1000 * fair_scheduler.SLICE_S),
    ],
    "connections, and those of one address": lambda: [handles.MAX_CONNECTIONS],
    "the head of a request": lambda: [endpoint.HEAD_BYTES >> 10, endpoint.HEAD_S],
    "a body": lambda: [client_timeouts.BODY_BYTES_PER_S, client_timeouts.BODY_GRACE_S, client_timeouts.BODY_SAVED_S],
    "requests of one HTTP/2 connection at once": lambda: [endpoint.N_STREAMS],
    "queue, `--max-queue`": lambda: [weft.EngineConfig().max_queue],
    "stream": lambda: [
        constant(BACKLOG, "MAX_EVENTS_BEHIND"),
        constant(BACKLOG, "MAX_BYTES_BEHIND") >> 20,
        constant(CONFIG, "SLOW_CONSUMER_TIMEOUT"),
    ],
    "what a token waits at most, beside its step, to be read together with those after it": lambda: [
        constant(WAKES, "WAKE_INTERVAL"),
        constant(WAKES, "STREAMS_PER_INTERVAL"),
        constant(WAKES, "MAX_WAKE_INTERVAL"),
    ],
    "`beam_width` of a request, and `length_penalty`": lambda: [
        constant(DIVERSITY, "MIN_BEAMS"),
        *range_of("length_penalty"),
    ],
    "`priority` of a request": lambda: [
        *range_of("priority"),
        constant("engine/scheduler/scheduling_key.rs", "STARTS_PER_PRIORITY"),
    ],
    "`max_token_gap_ms` of a request": lambda: range_of("max_token_gap_ms"),
    "letters, digits, white space or other signs in a row, where a vocabulary's words are found by regular expressions "
    "(`tekken`, `gpt-4o`, `deepseek-v3` and others)": lambda: [
        constant("llama/vocabulary/splitter.rs", "MAX_RUN"),
        400,
        *(constant("llama/vocabulary/splitter.rs", name) for name in ("STACK_BYTES_PER_CHARACTER", "MAX_SLOW_RUN")),
    ],
    "one decode, `-ub`": lambda: [constant("config/compute.rs", "DEFAULT_UBATCH")],
    "99th percentile of a running stream's pauses beside a prompt, `--max-token-gap`": lambda: [
        constant("config/engine_config.rs", name) for name in ("IN_TOKENS", "LEAST", "USUAL")
    ],
}
"""What each row of the table of bounds counts, from where it is decided."""

NOT_COUNTED = {
    "attention scores, where llama.cpp's attention computes without flash",
    "scratch of Weft's kernels",
    "what Weft's attention knows of a decode's mask",
    "pinned prefixes",
    "a prompt, before it is tokenized",
}
"""Rows whose bound is a share of something, or what a data structure takes."""


def table_of_bounds() -> dict[str, str]:
    table = README[README.index("| bound | default | unit |") :].partition("\n\n")[0]
    return {row.split(" | ")[0].removeprefix("| "): row.split(" | ")[1] for row in table.splitlines()[2:]}


def test_every_row_of_the_table_of_bounds_is_held() -> None:
    assert table_of_bounds().keys() == BOUNDS.keys() | NOT_COUNTED


@pytest.mark.parametrize("row", BOUNDS)
def test_the_table_of_bounds_counts_as_the_code_does(row: str) -> None:
    told = re.findall(r"(?<![\w×])\d[\d,]*", table_of_bounds()[row])
    assert [int(count.replace(",", "")) for count in told] == BOUNDS[row]()


def test_the_bounds_of_a_request_are_the_engines() -> None:
    fields = field_meta(weft.Request)
    assert fields["n"].high == MAX_BRANCHES == constant(REQUEST, "MAX_COMPLETIONS")
    assert fields["priority"].high == -fields["priority"].low == constant(REQUEST, "MAX_PRIORITY")
    assert fields["beam_width"].low == constant(DIVERSITY, "MIN_BEAMS")
    assert fields["length_penalty"].high == -fields["length_penalty"].low == constant(DIVERSITY, "MAX_LENGTH_PENALTY")
    assert fields["max_token_gap_ms"].high == constant(REQUEST, "LONGEST_GAP") * 1_000
    assert fields["logprobs"].high == fields["prompt_logprobs"].high == constant(SAMPLING, "MAX_PROBS")
    settings = field_meta(weft.EngineConfig)
    assert settings["n_slots"].high == constant(CONFIG, "MAX_SLOTS")
    assert settings["cpus"].high + 1 == settings["cpus_batch"].high + 1 == constant(CONFIG, "MAX_THREADS")
    assert settings["poll"].high == settings["poll_batch"].high == constant("config/threads.rs", "MAX_POLL")
    assert settings["n_threads"].high == settings["n_threads_batch"].high == constant(CONFIG, "MAX_THREADS")
