"""Programs that are no tests' own, as a shell runs them."""

import os
import subprocess
from pathlib import Path

__all__ = ["printed"]


def printed(*command: str | Path, typed: str = "", **environ: str) -> str:
    """What a program prints; `typed` is what it reads, and `environ` are variables that it has beside this process's."""
    ran = subprocess.run(command, input=typed, capture_output=True, text=True, check=False, timeout=20, env=os.environ | environ)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
