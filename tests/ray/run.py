"""Tries replicas on a real Ray, which is installed into a folder of its own, outside of the repository.

python -m tests.ray.run                    # the tests
python -m tests.ray.run --faults           # counts what comes of requests where processes die, and writes docs/guides/ray.md
python -m tests.ray.run --python 3.13 ...  # the same by another Python, of that version or path
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

__all__ = ["environment", "other_python"]

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TESTS = ("served.py", "offline.py")
TIMEOUT_S = 1_200

NEEDED = ("gguf", "httpx", "numpy", "openai", "pytest", "pytest-asyncio", "pytest-timeout")
"""What is installed for development that these tests, and what all tests have in common, import."""


def environment() -> dict[str, str]:
    """The environment of a process of this Python that finds Ray, as `weft-llm[ray]` has it; installs it first."""
    wanted = _project()["project"]["optional-dependencies"]["ray"]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = _folder(wanted, version)
    if not (done := folder / "installed").exists():
        _uv("pip", "install", "--quiet", "--python", sys.executable, "--target", str(folder), *wanted)
        done.touch()
    # What is installed for development comes first, so that the tests see the packages that they know.
    site = Path(sys.executable).parent.parent / "lib" / f"python{version}" / "site-packages"
    return _with_paths(ROOT / "python", ROOT, site, folder)


def other_python(version: str) -> tuple[str, dict[str, str]]:
    """Another interpreter, by its version or path, with all that the tests need, and the environment of its processes.

    What it needs is installed first. The extension is the same: it is built for the oldest Python, and all that came after.
    """
    project = _project()
    wanted = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["ray"]]
    wanted += [one for one in project["dependency-groups"]["dev"] if re.split(r"[\[<>=]", one)[0] in NEEDED]
    folder = _folder(project["project"]["optional-dependencies"]["ray"], f"{version}-alone")
    python = str(folder / "bin" / "python")
    if not (done := folder / "installed").exists():
        _uv("venv", "--quiet", "--clear", "--python", version, str(folder))
        _uv("pip", "install", "--quiet", "--compile-bytecode", "--python", python, *wanted)
        done.touch()
    return python, _with_paths(ROOT / "python", ROOT)


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _folder(wanted: list[str], version: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft"
    return cache / f"{_plain(' '.join(wanted))}-{_plain(version, '.')}"


def _plain(name: str, kept: str = "") -> str:
    return "".join(letter if letter.isalnum() or letter in kept else "-" for letter in name)


def _uv(*command: str) -> None:
    subprocess.run([str(Path(sys.executable).with_name("uv")), *command], check=True, timeout=TIMEOUT_S)


def _with_paths(*paths: Path) -> dict[str, str]:
    quiet = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    # Ray looks every 10 s whether a proxy is well, and starts another after three times in which it is not.
    looks = {"RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1", "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30"}
    return {**os.environ, **quiet, **looks, "PYTHONPATH": os.pathsep.join(map(str, paths))}


def main() -> int:
    """Runs them; returns 0 where all went well."""
    asked = sys.argv[1:]
    if asked[:1] == ["--python"]:
        (python, variables), asked = other_python(asked[1]), asked[2:]
    else:
        python, variables = sys.executable, environment()
    if asked[:1] == ["--faults"]:
        command = [python, "-m", "tests.ray.faults", *asked[1:]]
    else:
        files = [str(HERE / name) for name in TESTS]
        options = ["-o", "timeout=240", "-o", "filterwarnings=ignore", "--quiet"]
        command = [python, "-m", "pytest", *options, *files, *asked]
    return subprocess.run(command, check=False, cwd=ROOT, env=variables).returncode


if __name__ == "__main__":
    sys.exit(main())
