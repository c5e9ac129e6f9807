"""The committed page is what its sources build, keeps its limits, and is shipped."""

import fnmatch
import gzip
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from scripts import page
from weft.server.built_page import MEDIA_TYPES

pytestmark = pytest.mark.timeout(600)  # Svelte's type check takes half a minute on two cores that nobody else uses.

ROOT = Path(__file__).resolve().parent.parent.parent

MAX_BYTES = 300_000
"""Maximum size of all files, each compressed."""


def files(folder: Path) -> Mapping[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


BUILT = files(page.BUILT)


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    """`make test` installs them; pytest alone does not."""
    assert (page.WEB / "node_modules").is_dir(), "run `make page` once"


def test_the_committed_page_is_what_the_sources_build(tmp_path: Path) -> None:
    done = page.build(tmp_path / "web")
    assert done.returncode == 0, done.stdout
    built = files(tmp_path / "web")
    assert list(built) == list(BUILT), "the sources have changed; run `make page` and commit python/weft/server/web"
    assert [name for name in built if built[name] != BUILT[name]] == []


def test_the_types_of_all_sources_fit() -> None:
    done = page.check()
    assert done.returncode == 0, done.stdout


def test_the_unit_tests_pass() -> None:
    done = page.test()
    assert done.returncode == 0, done.stdout
    assert re.search(r"Tests +\d+ passed", done.stdout)
    assert "skipped" not in done.stdout


def test_the_page_has_its_size_and_no_other_files() -> None:
    assert sum(len(gzip.compress(content)) for content in BUILT.values()) <= MAX_BYTES
    assert {Path(name).suffix for name in BUILT} <= set(MEDIA_TYPES)
    assert all(name == "index.html" or re.fullmatch(r"assets/[\w.-]+-[\w-]{8}\.\w+", name) for name in BUILT)


HARMLESS = {
    "http://www.w3.org",  # Names of XML's namespaces.
    "https://svelte.dev",  # In messages of Svelte's errors.
}


def test_no_file_names_another_host() -> None:
    texts = {name: content.decode() for name, content in BUILT.items() if Path(name).suffix in (".html", ".js", ".css", ".svg")}
    for name, text in texts.items():
        assert set(re.findall(r"(?:https?|wss?)://[\w.-]+", text)) <= HARMLESS, name
    for name, text in texts.items():
        if name.endswith(".css"):
            assert re.findall(r"@import|url\((?!#)", text) == [], name
    assert re.findall(r'(?:src|href)="(?!\./assets/|data:,")[^"]*"', texts["index.html"]) == []
    # The policy would switch these off.
    assert re.findall(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", texts["index.html"]) == []


def test_wheel_and_source_distribution_have_the_page() -> None:
    project, crate = (tomllib.loads((ROOT / name).read_text(encoding="utf-8")) for name in ("pyproject.toml", "Cargo.toml"))
    built = [f"python/weft/server/web/{name}" for name in BUILT]
    # Maturin packs the folder of Python's sources, and Cargo's list of files into the source distribution.
    excluded = project["tool"]["maturin"]["exclude"]
    assert project["tool"]["maturin"]["python-source"] == "python"
    assert [name for name in built if any(fnmatch.fnmatch(name, pattern) for pattern in excluded)] == []
    included = [pattern.lstrip("/") for pattern in crate["package"]["include"]]
    sources = [*built, "scripts/page.py", *(f"web/{name}" for name in files(page.WEB) if not name.startswith("node_modules/"))]
    assert len(sources) > 50
    assert [name for name in sources if not any(name == each or name.startswith(f"{each}/") for each in included)] == []
    assert not any("web/node_modules/x".startswith(f"{each}/") for each in included)
