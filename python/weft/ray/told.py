"""Plain copies of the compiled engine's objects, and their sums over replicas."""

from collections.abc import Sequence
from datetime import timedelta
from types import GetSetDescriptorType, MemberDescriptorType, SimpleNamespace
from typing import Any

from weft._native import CachedNode, Prefix

__all__ = ["ToldNode", "ToldPrefix", "copied", "together"]

N_ENDS = 128
"""Number of tokens that are copied of the beginning and of the end of a long node."""

_OF_ONE = frozenset(("width", "max_tokens"))
"""Numbers that are equal for all replicas and are not added."""


def copied(told: Any) -> Any:  # noqa: ANN401 (any object of the engine, or a plain value)
    """Converts an object of the compiled engine to one with equal attributes that can be pickled; keeps plain values."""
    if isinstance(told, list):
        return [copied(one) for one in told]
    if not type(told).__module__.startswith("weft._native"):
        return told
    names = [name for name, kind in vars(type(told)).items() if isinstance(kind, GetSetDescriptorType | MemberDescriptorType)]
    return SimpleNamespace(**{name: copied(getattr(told, name)) for name in names})


def together(told: Sequence[Any]) -> Any:  # noqa: ANN401 (as above)
    """Combines copies of several replicas: adds numbers and times, and concatenates lists.

    The result is None (no limit) if any of the values is None.
    """
    first = told[0]
    if isinstance(first, SimpleNamespace):
        names = vars(first)
        return SimpleNamespace(
            **{name: names[name] if name in _OF_ONE else together([getattr(one, name) for one in told]) for name in names}
        )
    if any(one is None for one in told):
        return None
    if isinstance(first, list):
        return [item for one in told for item in one]
    if isinstance(first, timedelta):
        return sum(told, timedelta())
    return first if isinstance(first, bool | str) else sum(told)


class ToldPrefix:
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


class ToldNode:
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
        self.n_stored_bytes = node.n_stored_bytes
        self._ends = node.excerpt(N_ENDS)

    def excerpt(self, n: int) -> tuple[list[int], list[int]]:
        """Returns the first and the last 128 tokens; all tokens and an empty list if there are at most 256."""
        if n != N_ENDS:
            raise ValueError(f"{n} tokens are asked for; {N_ENDS} were told")
        return self._ends

    def moved(self, n_nodes: int, n_slots: int) -> "ToldNode":
        """Adds offsets to its indices, for a list with the nodes and slots of other replicas before; returns itself."""
        self.parent = None if self.parent is None else self.parent + n_nodes
        self.slots = [slot + n_slots for slot in self.slots]
        return self
