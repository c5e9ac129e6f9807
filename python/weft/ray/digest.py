"""Digest of a replica: hashes of its cached prefixes, and its load.

A text is divided into blocks of `BLOCK` tokens. The hash of a block covers its tokens and the hash of the previous block, so it
identifies the whole text up to its end, and a replica that has it also has all previous blocks. Hashes are keyed (BLAKE2b, RFC
7693): texts cannot be recognized without the key, and texts that are computed differently, for which different keys are used,
have no hash in common.
"""

import struct
import sys
import time
from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec

from weft.engine import Engine

BLOCK = 64
"""Tokens per block."""

MAX_BLOCKS = 2_048
"""Maximum number of hashed blocks per text: routing considers the first 131,072 tokens."""

MAX_HASHES = 8_192
"""Maximum number of hashes in a digest, both tiers together: 64 KiB, for 524,288 tokens. A larger cache includes only every
second block, or every fourth, and so on."""

MAX_SALT = 64
"""Maximum bytes of a salt, BLAKE2b's limit of keys."""

_N_BYTES = 8


class Digest(msgspec.Struct, frozen=True, kw_only=True):
    """State of a replica at one time: cached prefixes and load."""

    made_at: float
    """Time in seconds since the epoch."""
    n_queued: int
    """Waiting requests."""
    n_running: int
    """Running sequences."""
    n_slots: int
    """Maximum number of running sequences."""
    n_free_cells: int
    """Device cache cells, in tokens, that are free or used by idle prefixes only."""
    n_pending: int | None = None
    """Prompt tokens that running sequences have yet to compute; `None` if unknown."""
    device: bytes = b""
    """Hashes of blocks in the device cache, encoded by `pack`."""
    host: bytes = b""
    """Hashes of blocks in the host cache only, encoded by `pack`."""


async def digest_of(engine: Engine, key: bytes) -> Digest:
    """Returns the current digest of an engine, with hashes for this key.

    Raises:
        InvalidRequestError: The key has more than `MAX_SALT` bytes.
        EngineStoppedError: The engine was closed, possibly during the call.
    """
    made_at = time.time()
    device, host = await engine.prefix_digest(key, n_max=MAX_HASHES)
    stats = engine.stats()
    return Digest(
        made_at=made_at,
        n_queued=stats.n_waiting,
        n_running=sum(slot.is_processing for slot in stats.slots),
        n_slots=len(stats.slots),
        n_free_cells=stats.n_cells - stats.n_cells_used + stats.n_cells_idle,
        n_pending=sum(max(slot.n_prompt - slot.n_cached - slot.n_computed, 0) for slot in stats.slots),
        device=device,
        host=host,
    )


def block_hashes(tokens: Sequence[int], *, salt: bytes = b"") -> list[int]:
    """Returns the hashes of the complete blocks of a text, in order: at most `MAX_BLOCKS`, each less than 2⁶⁴.

    Tokens after the last complete block are ignored.

    Args:
        tokens: Token ids of the text.
        salt: Key of the hashes, at most `MAX_SALT` bytes; see `salt_of`. Hashes with different keys are unrelated.

    Raises:
        ValueError: The salt is too long.
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
    """Returns the salt of texts that are computed with these adapters, 32 bytes.

    Args:
        key: Shared secret of the replicas and routers, at most `MAX_SALT` bytes. With it, known texts can be recognized in a
            digest.
        adapters: Pairs of adapter index and scale; a scale of 0 is off.

    Raises:
        ValueError: The key is too long.
    """
    on = sorted((adapter, struct.pack("<f", scale)) for adapter, scale in adapters if scale)
    text = b"".join(struct.pack("<I", adapter) + scale for adapter, scale in on)
    return blake2b(text, digest_size=32, key=key).digest()


def pack(hashes: Iterable[int]) -> bytes:
    """Encodes hashes, sorted, as 8 little-endian bytes each."""
    numbers = sorted(set(hashes))
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def unpack(packed: bytes) -> set[int]:
    """Decodes the result of `pack`.

    Raises:
        ValueError: The length is not a multiple of 8.
    """
    numbers = array("Q")
    numbers.frombytes(packed)
    if sys.byteorder == "big":
        numbers.byteswap()
    return set(numbers)
