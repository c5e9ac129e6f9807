"""Build number in the format of llama-server."""

import hashlib
import re
import subprocess
from functools import cache
from pathlib import Path

from weft.installed.distribution import installed, version

N_DIGITS = 9
"""Digits of an abbreviated commit hash."""

UNKNOWN = "0" * N_DIGITS


@cache
def build_info() -> str:
    """Returns `b<number>-<commit>`, with a number that grows with the version (0.1.0 is 100).

    The commit is the checked-out one if Weft runs from a checkout. For an installed wheel, it is the beginning of the SHA-256
    hash of its RECORD, which has the hashes of all files, including the compiled module. A package that was copied without its
    RECORD has zeros.
    """
    weft = installed()
    major, minor, patch = (int(part) for part in re.findall("[0-9]+", version())[:3])
    record = weft.read_text("RECORD") if weft else None
    return f"b{major * 10_000 + minor * 100 + patch}-{_checked_out() or _digest(record) or UNKNOWN}"


def _checked_out() -> str | None:
    root = Path(__file__).parents[3]
    # Another repository may contain the environment that Weft is installed in.
    if not (root / ".git").exists() or not (root / "python" / "weft").is_dir():
        return None
    command = ["git", "-C", str(root), "rev-parse", f"--short={N_DIGITS}", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _digest(record: str | None) -> str | None:
    return hashlib.sha256(record.encode()).hexdigest()[:N_DIGITS] if record else None
