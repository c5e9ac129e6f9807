"""Programs in JavaScript, run by Node.js."""

import subprocess
from pathlib import Path

__all__ = ["node"]


def node(*arguments: str | Path, typed: str = "", deadline_s: float = 20) -> str:
    """What a program prints; `typed` is what it reads."""
    command = ["node", *map(str, arguments)]
    ran = subprocess.run(command, input=typed, capture_output=True, text=True, check=False, timeout=deadline_s)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
