"""What a replica tells of itself: which prefixes it holds, as hashes of blocks, and how busy it is.

A text is cut into blocks of `BLOCK` tokens from its beginning on. The hash of a block is one of its tokens and of the hash of the
block before it, so that it names the whole text up to its end: whoever holds it holds all before it. It is keyed (BLAKE2b, RFC
7693): without the key nobody can tell from a digest which texts are in it, and texts that are computed in different ways, which
are given keys of their own, have no hash in common.
"""

import struct
import sys
import time
from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec

from weft.engine import Engine

__all__ = ["BLOCK", "MAX_BLOCKS", "MAX_HASHES", "MAX_SALT", "Digest", "block_hashes", "digest_of", "pack", "salt_of", "unpack"]

BLOCK = 64
"""Tokens of a block."""

MAX_BLOCKS = 2_048
"""Most blocks of one text that are hashed: the first 131,072 tokens decide where it goes."""

MAX_HASHES = 8_192
"""Most hashes of a digest, both tiers together: 64 KiB, which tell of 524,288 tokens. Who holds more tells of every second block,
or every fourth."""

MAX_SALT = 64
"""Most bytes of a salt: BLAKE2b takes no longer key."""

_N_BYTES = 8


class Digest(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica held, and how busy it was, at one time."""

    made_at: float
    """When, in seconds since the epoch."""
    n_queued: int
    """Requests that waited."""
    n_running: int
    """Sequences that ran."""
    n_slots: int
    """Sequences that can run at a time."""
    n_free_cells: int
    """Tokens that its pool had room for: cells that were free, or held by nobody who runs."""
    n_pending: int | None = None
    """Tokens of prompts that those who ran had yet to compute; `None` where nobody counts them."""
    pool: bytes = b""
    """Hashes of blocks whose keys and values were in cells, as `pack` writes them."""
    stored: bytes = b""
    """Hashes of blocks that were only in the store, as `pack` writes them."""


async def digest_of(engine: Engine, key: bytes) -> Digest:
    """What an engine holds now, hashed with this key, and how busy it is.

    Raises:
        InvalidRequest: The key has more than `MAX_SALT` bytes.
        EngineStopped: The engine was closed, before or meanwhile.
    """
    made_at = time.time()
    pool, stored = await engine.prefix_digest(key, n_max=MAX_HASHES)
    stats = engine.stats()
    return Digest(
        made_at=made_at,
        n_queued=stats.n_waiting,
        n_running=sum(slot.is_processing for slot in stats.slots),
        n_slots=len(stats.slots),
        n_free_cells=stats.n_cells - stats.n_cells_used + stats.n_cells_idle,
        n_pending=sum(max(slot.n_prompt - slot.n_cached - slot.n_computed, 0) for slot in stats.slots),
        pool=pool,
        stored=stored,
    )


def block_hashes(tokens: Sequence[int], *, salt: bytes = b"") -> list[int]:
    """The hashes of the whole blocks of a text, in their order: at most `MAX_BLOCKS`, each below 2⁶⁴.

    What follows the last whole block has no hash.

    Args:
        tokens: The text, as the model's tokens.
        salt: The key, at most `MAX_SALT` bytes: see `salt_of`. Hashes of one text with two keys have nothing in common.

    Raises:
        ValueError: The salt is longer.
        struct.error: A token is not a 32-bit number.
    """
    n_blocks = min(len(tokens) // BLOCK, MAX_BLOCKS)
    n_bytes = BLOCK * 4
    text = struct.pack(f"<{n_blocks * BLOCK}i", *tokens[: n_blocks * BLOCK])
    hashes: list[int] = []
    before = bytes(_N_BYTES)
    for start in range(0, n_blocks * n_bytes, n_bytes):
        before = blake2b(before + text[start : start + n_bytes], digest_size=_N_BYTES, key=salt).digest()
        hashes.append(int.from_bytes(before, "little"))
    return hashes


def salt_of(key: bytes, adapters: Iterable[tuple[int, float]] = ()) -> bytes:
    """The salt of texts that are computed with these adapters, of 32 bytes.

    Args:
        key: The secret of those who tell each other of their texts, at most `MAX_SALT` bytes: whoever knows it can tell whether a
            digest holds a text that they know.
        adapters: Each adapter that is on, by its number, with its scale; one whose scale is 0 is off.

    Raises:
        ValueError: The key is longer.
    """
    on = sorted((adapter, struct.pack("<f", scale)) for adapter, scale in adapters if scale)
    text = b"".join(struct.pack("<I", adapter) + scale for adapter, scale in on)
    return blake2b(text, digest_size=32, key=key).digest()


def pack(hashes: Iterable[int]) -> bytes:
    """Hashes in the order of their numbers, each as 8 bytes, the least first."""
    numbers = sorted(set(hashes))
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def unpack(packed: bytes) -> frozenset[int]:
    """The hashes that `pack` wrote.

    Raises:
        ValueError: There are bytes over.
    """
    numbers = array("Q")
    numbers.frombytes(packed)
    if sys.byteorder == "big":
        numbers.byteswap()
    return frozenset(numbers)
