"""Tries replicas on a real Ray, which is installed into a folder of its own, outside of the repository.

python -m tests.ray.run              # the tests
python -m tests.ray.run --faults     # counts what comes of requests where processes die, and writes docs/scale-ray.md
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

__all__ = ["environment"]

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TESTS = ("served.py", "offline.py")
TIMEOUT_S = 1_200


def environment() -> dict[str, str]:
    """The environment of a process that finds Ray, as `weft-llm[ray]` has it; installs it first where it is not there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (wanted,) = project["optional-dependencies"]["ray"]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft"
    name = "".join(letter if letter.isalnum() else "-" for letter in wanted)
    folder = cache / f"{name}-{sys.version_info.major}.{sys.version_info.minor}"
    if not (done := folder / "installed").exists():
        uv = str(Path(sys.executable).with_name("uv"))
        command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", str(folder), wanted]
        subprocess.run(command, check=True, timeout=TIMEOUT_S)
        done.touch()
    # What is installed for development comes first, so that the tests see the packages that they know.
    site = Path(sys.executable).parent.parent / "lib" / folder.name.rpartition("-")[2].join(("python", "/site-packages"))
    paths = [str(ROOT / "python"), str(ROOT), str(site), str(folder)]
    quiet = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    # Ray looks every 10 s whether a proxy is well, and starts another after three times in which it is not.
    looks = {"RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1", "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30"}
    return {**os.environ, **quiet, **looks, "PYTHONPATH": os.pathsep.join(paths)}


def main() -> int:
    """Runs them; returns 0 where all went well."""
    asked = sys.argv[1:]
    if asked[:1] == ["--faults"]:
        command = [sys.executable, "-m", "tests.ray.faults", *asked[1:]]
    else:
        files = [str(HERE / name) for name in TESTS]
        options = ["-o", "timeout=240", "-o", "filterwarnings=ignore", "--quiet"]
        command = [sys.executable, "-m", "pytest", *options, *files, *asked]
    return subprocess.run(command, check=False, cwd=ROOT, env=environment()).returncode


if __name__ == "__main__":
    sys.exit(main())
