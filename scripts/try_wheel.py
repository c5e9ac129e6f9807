"""Installs a wheel into an environment of its own, serves the demo model with it in an empty folder, and asks for a completion.

One for a GPU may be tried where there is none: then it has to say what is missing.

usage: python scripts/try_wheel.py [WHEEL]; without one, the only wheel in dist/
"""

# ruff: noqa: T201  (it prints what it found)

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
PATIENCE_S = 120.0
PROMPT = {"prompt": "Once upon a time,", "n": 2, "n_predict": 16, "temperature": 0}


def main() -> int:
    """Prints times and sizes; 1 where the wheel does not do what the README shows."""
    [wheel] = map(Path, sys.argv[1:]) if sys.argv[1:] else (ROOT / "dist").glob("*.whl")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        began = time.monotonic()
        venv.create(Path(folder, "venv"), with_pip=True)
        python = Path(folder, "venv", "Scripts" if os.name == "nt" else "bin", "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", wheel.resolve()], check=True)
        print(f"installed {wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB) in {time.monotonic() - began:.1f} s")
        subprocess.run([python, "-m", "weft", "--version"], cwd=folder, check=True)
        imported = subprocess.run(
            [python, "-c", "import weft; weft.Engine"], cwd=folder, stderr=subprocess.PIPE, text=True, check=False
        )
        if imported.returncode:
            print(imported.stderr, file=sys.stderr)
            return 0 if "weft.errors.DriverMissingError: " in imported.stderr else 1
        return serve(python, folder)


def serve(python: Path, folder: str) -> int:
    """Starts it, asks once, and stops it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    began = time.monotonic()
    server = subprocess.Popen([python, "-m", "weft", "--port", str(port)], cwd=folder)
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", json.dumps(PROMPT).encode())
        while True:
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                    told = json.load(response)
                break
            except OSError as error:
                if server.poll() is not None or time.monotonic() - began > PATIENCE_S:
                    print(f"there is no answer: {error}", file=sys.stderr)
                    return 1
                time.sleep(0.05)
        print(f"answered {time.monotonic() - began:.1f} s after the command:", json.dumps(told)[:120])
    finally:
        server.terminate()
        server.wait(20)
    return 0


if __name__ == "__main__":
    sys.exit(main())
