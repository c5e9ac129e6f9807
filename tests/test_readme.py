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
from collections.abc import AsyncIterator, Iterator
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
from weft.cli.commands import TUNE
from weft.cli.main import parse
from weft.cli.tune import table
from weft.fields.meta import field_meta
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
