"""Plain copies of the compiled engine's objects, and their sums over replicas."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import chain, zip_longest
from types import GetSetDescriptorType, MemberDescriptorType, SimpleNamespace
from typing import Any

N_ENDS = 128
"""Number of tokens that are copied of the beginning and of the end of a long node."""

_OF_ONE = frozenset(("width", "max_tokens"))
"""Numbers that are equal for all replicas and are not added."""


def plain_copy(value: Any) -> Any:  # noqa: ANN401 (any object of the engine, or a plain value)
    """Converts an object of the compiled engine to one with equal attributes that can be pickled; keeps plain values."""
    if isinstance(value, list):
        return [plain_copy(one) for one in value]
    if isinstance(value, dict):
        return {name: plain_copy(one) for name, one in value.items()}
    if not type(value).__module__.startswith("weft._native"):
        return value
    return SimpleNamespace(**attributes(value))


def attributes(value: object, without: str = "") -> dict[str, Any]:
    """Returns plain copies of the attributes of an object of the compiled engine, by name, except `without`."""
    kinds = GetSetDescriptorType | MemberDescriptorType
    names = [name for name, kind in vars(type(value)).items() if isinstance(kind, kinds) and name != without]
    return {name: plain_copy(getattr(value, name)) for name in names}


def changed(copy: SimpleNamespace, **changes: object) -> Any:  # noqa: ANN401 (stands for an object of the engine)
    """Returns a copy with other values of some attributes."""
    return SimpleNamespace(**{**vars(copy), **changes})


def combined(copies: Sequence[Any]) -> Any:  # noqa: ANN401 (as above)
    """Combines copies of several replicas: adds numbers and times, and concatenates lists.

    The result is None (no limit) if any of the values is None.
    """
    first = copies[0]
    if isinstance(first, SimpleNamespace):
        sums = {name: combined([getattr(one, name) for one in copies]) for name in vars(first).keys() - _OF_ONE}
        if "n_accepted_at" in sums:  # Counts by position, not a list of items.
            sums["n_accepted_at"] = list(map(sum, zip_longest(*(one.n_accepted_at for one in copies), fillvalue=0)))
        if "buckets" in sums:  # Counts by bound.
            sums["buckets"] = [(of[0][0], sum(n for _, n in of)) for of in zip(*(one.buckets for one in copies), strict=True)]
        return changed(first, **sums)
    if any(one is None for one in copies):
        return None
    if isinstance(first, dict):
        return {name: combined([one[name] for one in copies if name in one]) for name in dict.fromkeys(chain(*copies))}
    if isinstance(first, list):
        return [item for one in copies for item in one]
    if isinstance(first, timedelta):
        return sum(copies, timedelta())
    return first if isinstance(first, bool | str) else sum(copies)


class PrefixCopy(SimpleNamespace):
    """The attributes of a pinned prefix, with the interface of the compiled engine's `Prefix`."""

    def excerpt(self, n: int) -> tuple[list[int], list[int]]:
        """Returns the first `n` and the last `n` tokens; all tokens and an empty list if there are at most `2 * n`."""
        return (self.tokens, []) if self.n_tokens <= 2 * n else (self.tokens[:n], self.tokens[-n:])


class NodeCopy(SimpleNamespace):
    """The attributes of a node of a replica's prefix tree and, in place of its tokens, both `ends` of them.

    Has the interface of `CachedNode`.
    """

    parent: int | None
    slots: list[int]

    def excerpt(self, n: int) -> tuple[list[int], list[int]]:
        """Returns the first and the last 128 tokens; all tokens and an empty list if there are at most 256."""
        if n != N_ENDS:
            raise ValueError(f"{n} tokens are requested; {N_ENDS} were copied")
        ends: tuple[list[int], list[int]] = self.ends
        return ends

    def move(self, n_nodes: int, n_slots: int) -> None:
        """Adds offsets to its indices, for a list with the nodes and slots of other replicas before."""
        self.parent = None if self.parent is None else self.parent + n_nodes
        self.slots = [slot + n_slots for slot in self.slots]
