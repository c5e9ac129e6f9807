"""What replicas hold: whole engines without a model, or, for a quick look, blocks that are kept by when they were used."""

import json
import struct
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from weft.ray.digest import BLOCK, MAX_HASHES, block_hashes, pack, salt_of

__all__ = ["KEY", "SALT", "Blocks", "Engines", "Held", "built"]

KEY = b"a cluster"
SALT = salt_of(KEY)

FEATURES = ("--no-default-features", "--features", "fake-runner")
BUILD = ("cargo", "bench", "--locked", *FEATURES, "--no-run", "--message-format=json", "--bench", "replicas")


class Held(Protocol):
    """What each of some replicas has computed."""

    def serve(self, replica: int, prompt: Sequence[int], answer: Sequence[int]) -> int:
        """How many tokens of a prompt a replica had; now it has all of them, and what it answers."""

    def digest(self, replica: int) -> tuple[bytes, bytes]:
        """Returns the hashes of its device cache, and of its host cache."""

    def restart(self, replica: int) -> None:
        """It has nothing any more."""


def built() -> str:
    """The program that the engines are in, built where it is not."""
    told = subprocess.run(BUILD, stdout=subprocess.PIPE, text=True, check=True).stdout
    made = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    (executable,) = [one["executable"] for one in made if one.get("executable")]
    return str(executable)


class Engines:
    """Engines with a prefix tree, device cache and host cache each; their model computes nothing: `rust/benches/replicas.rs`.

    They are in a process of their own, so that the extension which users install has nothing in it that only a simulation needs.

    Args:
        program: What `built` has built.
        n_replicas: How many.
        n_slots: Slots of each.
        n_cells: Size of the device cache of each, in tokens.
        n_stored: Approximate size of the host cache of each, in tokens.
    """

    def __init__(self, program: str, n_replicas: int, *, n_slots: int, n_cells: int, n_stored: int) -> None:
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._asked, self._answers = self._process.stdin, self._process.stdout
        self._ask(b"S" + struct.pack("<IIIQ", n_replicas, n_slots, n_cells, 8 * n_stored))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._asked.close()
        self._process.wait()
        self._answers.close()

    def serve(self, replica: int, prompt: Sequence[int], answer: Sequence[int]) -> int:
        """As `Held.serve`."""
        n = len(prompt) + len(answer)
        tokens = struct.pack(f"<{n}i", *prompt, *answer)
        self._ask(b"R" + struct.pack("<III", replica, len(prompt), n) + tokens)
        (n_cached,) = struct.unpack("<I", self._read(4))
        return int(n_cached)

    def digest(self, replica: int) -> tuple[bytes, bytes]:
        """As `Held.digest`."""
        self._ask(b"D" + struct.pack("<III", replica, MAX_HASHES, len(KEY)) + KEY)
        n_device, n_host = struct.unpack("<II", self._read(8))
        return self._read(8 * n_device), self._read(8 * n_host)

    def restart(self, replica: int) -> None:
        """As `Held.restart`."""
        self._ask(b"K" + struct.pack("<I", replica))

    def _ask(self, what: bytes) -> None:
        self._asked.write(what)
        self._asked.flush()

    def _read(self, n: int) -> bytes:
        told = self._answers.read(n)
        if len(told) < n:
            msg = "the engines have ended"
            raise EOFError(msg)
        return told


class Blocks:
    """Blocks of tokens; those that were not used for longest make room, the end of a text before its beginning."""

    def __init__(self, n_replicas: int, *, n_tokens: int) -> None:
        self._n_blocks = n_tokens // BLOCK
        self._held: list[dict[int, None]] = [{} for _ in range(n_replicas)]

    def serve(self, replica: int, prompt: Sequence[int], answer: Sequence[int]) -> int:
        """As `Held.serve`."""
        held = self._held[replica]
        hashes = block_hashes([*prompt, *answer], salt=SALT)
        n_held = next((n for n, block in enumerate(hashes) if block not in held), len(hashes))
        for block in reversed(hashes):
            held.pop(block, None)
            held[block] = None
        while len(held) > self._n_blocks:
            del held[next(iter(held))]
        return min(n_held * BLOCK, len(prompt))

    def digest(self, replica: int) -> tuple[bytes, bytes]:
        """As `Held.digest`."""
        return pack(self._held[replica]), b""

    def restart(self, replica: int) -> None:
        """As `Held.restart`."""
        self._held[replica].clear()
