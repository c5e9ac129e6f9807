"""What the programs beside it have in common: features, each of which passes or fails, and a status that says so.

Nothing but Python's own library is named here, because each program runs where its client is installed and nothing else.
"""

import base64
import struct
import sys
import traceback
import zlib
from collections.abc import Callable, Iterable

__all__ = ["MODEL", "TOOL", "feature", "picture", "run", "task", "url"]

MODEL = "weft"

TOOL = {
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}

_features: list[tuple[str, Callable[[], None]]] = []


def url() -> str:
    """Where the server is, from the command line: without a path."""
    return sys.argv[1].rstrip("/")


def feature(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Marks a function that fails where the client cannot do this."""

    def marked(check: Callable[[], None]) -> Callable[[], None]:
        _features.append((name, check))
        return check

    return marked


def task(calls: Iterable[str]) -> str:
    """A task of many steps, in each of which the model makes these calls."""
    return "\n".join(["This is to be done.", *(f"Step {nth}: {call}" for nth, call in enumerate(calls, 1))])


def picture() -> str:
    """A red square in PNG, in base64."""
    side = 32
    rows = b"".join(b"\0" + b"\xff\0\0" * side for _ in range(side))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    told = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + told).decode()


def run() -> None:
    """Tries every feature that was marked, says PASS or FAIL of each, and ends the program: 1 where any failed."""
    n_failed = 0
    for name, check in _features:
        try:
            check()
        except Exception as error:  # noqa: BLE001 (whatever a client raises)
            n_failed += 1
            traceback.print_exc()
            print(f"FAIL {name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
        else:
            print(f"PASS {name}", flush=True)
    sys.exit(1 if n_failed else 0)
