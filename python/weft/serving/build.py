"""Which build of weft runs, in the pattern that clients of llama-server know."""

import hashlib
import re
import subprocess
from functools import cache
from pathlib import Path

from weft.installed.distribution import installed, version

__all__ = ["build_info"]

N_DIGITS = 9
"""Digits of a commit, as git shortens them in a repository of some size."""

UNKNOWN = "0" * N_DIGITS


@cache
def build_info() -> str:
    """`b<number>-<commit>`: the number grows with the version (0.1.0 is 100), the commit says what exactly runs.

    Where weft runs from its repository, that is the commit checked out there. An installed wheel knows no commit: there it is the
    beginning of the SHA-256 of its record, which holds the digest of each of its files, the compiled module among them. A package
    that was copied without its record has zeros.
    """
    weft = installed()
    major, minor, patch = (int(part) for part in re.findall("[0-9]+", version())[:3])
    record = weft.read_text("RECORD") if weft else None
    return f"b{major * 10_000 + minor * 100 + patch}-{_checked_out() or _digest(record) or UNKNOWN}"


def _checked_out() -> str | None:
    root = Path(__file__).parents[3]
    # Some other repository may hold the environment that weft is installed in.
    if not (root / ".git").exists() or not (root / "python" / "weft").is_dir():
        return None
    command = ["git", "-C", str(root), "rev-parse", f"--short={N_DIGITS}", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _digest(record: str | None) -> str | None:
    return hashlib.sha256(record.encode()).hexdigest()[:N_DIGITS] if record else None
