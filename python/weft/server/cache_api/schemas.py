"""The fields of Weft's own routes to its cache."""

from typing import Literal

import msgspec

__all__ = ["CacheReport", "Cells", "PinBody", "PinnedPrefix", "PinnedPrefixes", "SequenceIds", "Store", "Stretch", "UsedAdapter"]


class PinBody(msgspec.Struct):
    """`POST /prefixes`. A list is one prompt, of tokens and texts."""

    prompt: str | list[int | str] | None = None


class UsedAdapter(msgspec.Struct):
    """An adapter that tokens were computed with."""

    id: int
    scale: float


class PinnedPrefix(msgspec.Struct):
    """A prefix that stays computed; `n_bytes` is what it takes, shared with others or not.

    In the list of all, of a long text only its beginning and its end are told, and none of
    what another key's clients have marked. `adapters` are there where some are on at its
    end, and `invoked_at` where an activated one of them counts only from that token on.
    """

    id: int
    n_tokens: int
    n_bytes: int
    adapters: list[UsedAdapter] | msgspec.UnsetType = msgspec.UNSET
    invoked_at: int | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    is_text_cut: bool | msgspec.UnsetType = msgspec.UNSET


class PinnedPrefixes(msgspec.Struct):
    """Every pinned prefix, in the order of their pinning."""

    prefixes: list[PinnedPrefix]


class Cells(msgspec.Struct):
    """The KV cache: `idle` cells are held by nothing that runs, and `reached` is the highest used one, plus one."""

    total: int
    used: int
    idle: int
    reached: int


class SequenceIds(msgspec.Struct):
    """llama.cpp's numbers for what owns cells."""

    total: int
    used: int


class Store(msgspec.Struct):
    """The host memory beside the cells; a limit of null is none."""

    n_bytes: int
    max_bytes: int | None
    n_pieces: int


class Stretch(msgspec.Struct):
    """A stretch of cached tokens after those of its parent.

    `parent` and `children` are places in the list of nodes; what is not shown is not among them. Of a long text only its
    beginning and its end are told, and of what a request with another key used last nothing: `text` is null. `adapters` are there
    where the stretch was computed with some.
    """

    parent: int | None
    children: list[int]
    start: int
    n_tokens: int
    text: str | None
    is_text_cut: bool
    tier: Literal["pool", "both", "store", "computing", "nowhere"]
    slots: list[int]
    is_pinned: bool
    is_evictable: bool
    n_hits: int
    n_stored_bytes: int
    adapters: list[UsedAdapter] | msgspec.UnsetType = msgspec.UNSET


class CacheReport(msgspec.Struct):
    """What is cached: of `n_nodes` nodes of the tree the `n_shown` that were used most recently, the last used first.

    A node counts as used when something below it was. So the tree is a list, parents before their children: every branch point
    makes a path one deeper, and parsers of JSON end at a depth that a long conversation can reach.
    """

    cells: Cells
    sequence_ids: SequenceIds
    store: Store
    n_nodes: int
    n_shown: int
    nodes: list[Stretch]
