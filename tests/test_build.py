"""What `build_info` says of a build: the number follows the version, the commit what runs."""

import hashlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from weft import _native
from weft.installed import distribution
from weft.serving import build


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What was said before, or is said here, counts for nobody else."""
    build.build_info.cache_clear()
    yield
    build.build_info.cache_clear()


def installed(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str, record: str | None) -> None:
    """Weft as it is installed in a folder of its own."""
    package = SimpleNamespace(version=version, read_text=lambda name: record if name == "RECORD" else None)
    monkeypatch.setattr(build, "installed", lambda: package)
    monkeypatch.setattr(build, "version", lambda: version)
    monkeypatch.setattr(build, "__file__", str(folder / "lib" / "weft" / "serving" / "build.py"))


@pytest.mark.parametrize(
    ("version", "number"), [("0.1.0", 100), ("0.12.3", 1203), ("1.0.0", 10_000), ("2.3.4rc1", 20_304), ("0.2.0.dev5", 200)]
)
def test_the_number_grows_with_the_version(version: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, tmp_path, version, None)
    assert build.build_info() == f"b{number}-000000000"


def test_an_installed_wheel_is_told_by_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The folder may lie in a repository of somebody else's.
    (tmp_path / ".git").mkdir()
    installed(monkeypatch, tmp_path, "0.1.0", "weft/__init__.py,sha256=abc,12\n")
    digest = hashlib.sha256(b"weft/__init__.py,sha256=abc,12\n").hexdigest()
    assert build.build_info() == f"b100-{digest[:9]}"


@pytest.mark.parametrize("content", [None, "gitdir: /nowhere"], ids=["a folder that is none", "a worktree that is gone"])
def test_a_broken_repository_is_none(content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python" / "weft" / "serving").mkdir(parents=True)
    if content is None:
        (tmp_path / ".git").mkdir()
    else:
        (tmp_path / ".git").write_text(content)
    installed(monkeypatch, tmp_path, "0.1.0", None)
    monkeypatch.setattr(build, "__file__", str(tmp_path / "python" / "weft" / "serving" / "build.py"))
    assert build.build_info() == "b100-000000000"


def test_a_repository_is_told_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout

    (tmp_path / "python" / "weft" / "serving").mkdir(parents=True)
    git("init")
    git("commit", "--allow-empty", "-m", "first")
    installed(monkeypatch, tmp_path, "0.1.0", "a record")
    monkeypatch.setattr(build, "__file__", str(tmp_path / "python" / "weft" / "serving" / "build.py"))
    assert build.build_info() == f"b100-{git('rev-parse', 'HEAD')[:9]}"


def test_what_runs_here_is_told() -> None:
    assert re.fullmatch("b[0-9]+-[0-9a-f]{9,}", build.build_info())


def test_the_compiled_version_is_that_of_the_metadata() -> None:
    assert (weft := distribution.installed()) is not None
    assert weft.version == _native.VERSION == distribution.version()


def test_a_package_without_metadata_has_the_version_that_was_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "NAMES", ())
    monkeypatch.setattr(build, "__file__", str(tmp_path / "lib" / "weft" / "serving" / "build.py"))
    major, minor, patch = map(int, _native.VERSION.split("."))
    assert distribution.version() == _native.VERSION
    assert build.build_info() == f"b{major * 10_000 + minor * 100 + patch}-000000000"
