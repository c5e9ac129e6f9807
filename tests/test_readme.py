"""The README is short, its figures name commands that exist, and the first commands are those of the repository.

tests/test_pages.py runs its code fences.
"""

import contextlib
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from tests.pages import fences
from weft.cli.main import parse

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FENCES = list(fences(ROOT / "README.md"))


def test_it_has_at_most_150_lines_and_1200_words() -> None:
    assert len(README.splitlines()) <= 150
    assert len(README.split()) <= 1_200


def test_the_first_commands_work_in_a_checkout() -> None:
    name = PROJECT["name"].replace("-", "_")
    assert FENCES[0].code == "make run\n"
    assert f"make wheel\npip install dist/{name}-*-linux_*.whl\npython -m weft\n" in [fence.code for fence in FENCES]
    recipes = {goal: re.search(rf"^{goal}:.*\n\t(.*)", MAKEFILE, re.MULTILINE) for goal in ("run", "wheel")}
    assert {goal: recipe[1] for goal, recipe in recipes.items() if recipe is not None} == {
        "run": "@exec python -m weft $(ARGS)",
        "wheel": "maturin build --release --locked --strip --compatibility linux --out dist",
    }
    settings, warnings = parse([], {})
    assert (settings.model, settings.source, warnings) == (None, None, ()), "the demo model is served"


def test_each_figure_names_a_command_that_exists() -> None:
    bullets = re.findall(
        r"^- \*\*.*(?:\n  .*)*", README[README.index("## Why Weft") : README.index("## Quick start")], re.MULTILINE
    )
    assert len(bullets) == 5
    commands = re.findall(r"`(make [\w-]+|python [\w/.]+\.py|weft \w+)[^`]*`", README)
    assert len(commands) >= 4
    goals = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    for command in commands:
        program, name, *_ = command.split()
        assert name in goals if program == "make" else program == "weft" or (ROOT / name).exists(), command


async def test_its_count_of_shared_prompt_tokens_is_so() -> None:
    counts = re.search(r"Eight completions of a (\d+)-token prompt compute (\d+) prompt tokens and share (\d+)", README)
    assert counts is not None
    async with weft.Engine(n_slots=8, n_ctx=4096, kv_unified=True, n_threads=1) as engine:
        completion = await engine.complete(list(range(5, 5 + int(counts[1]))), n=8, max_tokens=1)
        assert (completion.n_computed, completion.n_cached) == (int(counts[2]), int(counts[3]))


def test_its_counts_of_flags_are_those_of_the_table() -> None:
    table = (ROOT / "tests" / "llama_server_flags.txt").read_text(encoding="utf-8")
    kinds = Counter(line.split()[0] for line in table.splitlines() if line and not line.startswith("#"))
    stated = re.search(
        r"Of llama-server's (\d+) \[flags\]\(.*?\), (\d+) work, (\d+) are accepted with a warning, and (\d+) stop the start",
        README,
    )
    assert stated is not None
    counts = (kinds.total(), kinds["works"] + kinds["always"], kinds["warned"], kinds["refused"])
    assert tuple(map(int, stated.groups())) == counts


SKIPPED = {".git", ".venv", "target", "dist", "site", "node_modules", "__pycache__"}

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


def test_the_log_has_the_line_of_the_page_on_kernels(engine: weft.Engine) -> None:
    page = (ROOT / "docs" / "explanation" / "kernels.md").read_text(encoding="utf-8")
    [line] = re.findall(r"^attention by .*$", page, re.MULTILINE)
    kernels = r"(?:weft \(.*?\)[\w ]*|llama\.cpp.*?)"
    form = rf"attention by {kernels}, products by {kernels}, at most \d+ tokens per decode, \d+ threads \(.+\)"
    assert re.fullmatch(form, line)
    assert re.fullmatch(form, engine.compute.summary.strip())


def test_the_contributing_page_names_goals_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    goals = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z][\w-]*\w)", text, re.MULTILINE)) <= goals
