"""How much memory there is."""

import os
from pathlib import Path

__all__ = ["free_bytes"]


def free_bytes() -> int:
    """Bytes of memory that a process could take without others being swapped out; as Linux estimates it, else what is unused."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
