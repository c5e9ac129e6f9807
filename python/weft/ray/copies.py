"""Plain copies of the compiled engine's objects, and their sums over replicas."""

from collections.abc import Sequence
from datetime import timedelta
from types import GetSetDescriptorType, MemberDescriptorType, SimpleNamespace
from typing import Any

from weft._native import CachedNode, Prefix

N_ENDS = 128
"""Number of tokens that are copied of the beginning and of the end of a long node."""

_OF_ONE = frozenset(("width", "max_tokens"))
"""Numbers that are equal for all replicas and are not added."""


def plain_copy(value: Any) -> Any:  # noqa: ANN401 (any object of the engine, or a plain value)
    """Converts an object of the compiled engine to one with equal attributes that can be pickled; keeps plain values."""
    if isinstance(value, list):
        return [plain_copy(one) for one in value]
    if not type(value).__module__.startswith("weft._native"):
        return value
    names = [name for name, kind in vars(type(value)).items() if isinstance(kind, GetSetDescriptorType | MemberDescriptorType)]
    return SimpleNamespace(**{name: plain_copy(getattr(value, name)) for name in names})


def combined(copies: Sequence[Any]) -> Any:  # noqa: ANN401 (as above)
    """Combines copies of several replicas: adds numbers and times, and concatenates lists.

    The result is None (no limit) if any of the values is None.
    """
    first = copies[0]
    if isinstance(first, SimpleNamespace):
        names = vars(first)
        return SimpleNamespace(
            **{name: names[name] if name in _OF_ONE else combined([getattr(one, name) for one in copies]) for name in names}
        )
    if any(one is None for one in copies):
        return None
    if isinstance(first, list):
        return [item for one in copies for item in one]
    if isinstance(first, timedelta):
        return sum(copies, timedelta())
    return first if isinstance(first, bool | str) else sum(copies)


class PrefixCopy:
    """A pinned prefix of replicas, with the interface of the compiled engine's `Prefix`."""

    def __init__(self, prefix: Prefix) -> None:
        self.id = prefix.id
        self.tokens = prefix.tokens
        self.n_tokens = prefix.n_tokens
        self.n_bytes = prefix.n_bytes
        self.adapters = prefix.adapters
        self.invoked_at = prefix.invoked_at

    def excerpt(self, n: int) -> tuple[list[int], list[int]]:
        """Returns the first `n` and the last `n` tokens; all tokens and an empty list if there are at most `2 * n`."""
        return (self.tokens, []) if self.n_tokens <= 2 * n else (self.tokens[:n], self.tokens[-n:])


class NodeCopy:
    """A node of a replica's prefix tree, with the interface of `CachedNode`, without the middle of its tokens."""

    def __init__(self, node: CachedNode) -> None:
        self.parent = node.parent
        self.n_tokens = node.n_tokens
        self.start = node.start
        self.adapters = node.adapters
        self.tier = node.tier
        self.slots = node.slots
        self.owner = node.owner
        self.is_pinned = node.is_pinned
        self.n_hits = node.n_hits
        self.last_used = node.last_used
        self.n_host_bytes = node.n_host_bytes
        self._ends = node.excerpt(N_ENDS)

    def excerpt(self, n: int) -> tuple[list[int], list[int]]:
        """Returns the first and the last 128 tokens; all tokens and an empty list if there are at most 256."""
        if n != N_ENDS:
            raise ValueError(f"{n} tokens are requested; {N_ENDS} were copied")
        return self._ends

    def moved(self, n_nodes: int, n_slots: int) -> "NodeCopy":
        """Adds offsets to its indices, for a list with the nodes and slots of other replicas before; returns itself."""
        self.parent = None if self.parent is None else self.parent + n_nodes
        self.slots = [slot + n_slots for slot in self.slots]
        return self
