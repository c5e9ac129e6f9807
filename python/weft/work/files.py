"""Atomic writing of files."""

from pathlib import Path
from secrets import token_hex


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file, which replaces an existing one when it is complete.

    Raises:
        OSError: The file cannot be written.
    """
    # In the same folder, so that it can be renamed over the old file.
    partial = path.with_name(f".{path.name}.{token_hex(4)}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
