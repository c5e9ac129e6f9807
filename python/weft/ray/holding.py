"""Which blocks of tokens a prefix tree holds, as a digest names them."""

import struct
from collections.abc import Callable, Sequence
from hashlib import blake2b

from weft._native import CachedNode
from weft.ray.digest import BLOCK, MAX_HASHES

__all__ = ["holding"]

_START = bytes(8)

Salt = Callable[[Sequence[tuple[int, float]]], bytes]


def holding(nodes: Sequence[CachedNode], salt: Salt) -> tuple[list[int], list[int]]:
    """The hashes of the whole blocks that are in cells, and of those that are in the store alone.

    Args:
        nodes: The tree, parents before their children, the most recently used first: what is over `MAX_HASHES` is left out.
        salt: The key of the hashes of what is computed with these adapters.
    """
    pool: list[int] = []
    stored: list[int] = []
    ends: list[tuple[bytes, list[int]]] = []
    """The hash of the last whole block at the end of each node, and the tokens behind it."""
    for node in nodes:
        before, rest = (_START, []) if node.parent is None else ends[node.parent]
        tokens = rest + node.tokens
        key = salt(node.adapters)
        where = stored if node.tier == "store" else pool
        n_whole = len(tokens) // BLOCK * BLOCK
        text = struct.pack(f"<{n_whole}i", *tokens[:n_whole])
        for start in range(0, n_whole * 4, BLOCK * 4):
            before = blake2b(before + text[start : start + BLOCK * 4], digest_size=8, key=key).digest()
            where.append(int.from_bytes(before, "little"))
        ends.append((before, tokens[n_whole:]))
        if len(pool) + len(stored) >= MAX_HASHES:
            break
    return pool[:MAX_HASHES], stored[: MAX_HASHES - min(len(pool), MAX_HASHES)]
