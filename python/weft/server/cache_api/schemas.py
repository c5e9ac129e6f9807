"""Fields of Weft's routes for its cache."""

from typing import Literal

import msgspec


class PinBody(msgspec.Struct):
    """`POST /prefixes`. A list is one prompt, of tokens and texts."""

    prompt: str | list[int | str] | None = None


class UsedAdapter(msgspec.Struct):
    """An adapter that was active when tokens were computed."""

    id: int
    scale: float


class PinnedPrefix(msgspec.Struct):
    """A pinned prefix; `n_bytes` is its size, including parts shared with others.

    In the list of all prefixes, long texts are shortened to their beginning and end, and the text is omitted if only
    clients with other keys pinned the prefix. `adapters` lists those active at the prefix's end, and `invoked_at` is the token
    from which an activated adapter applies.
    """

    id: int
    n_tokens: int
    n_bytes: int
    adapters: list[UsedAdapter] | msgspec.UnsetType = msgspec.UNSET
    invoked_at: int | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    is_text_cut: bool | msgspec.UnsetType = msgspec.UNSET


class PinnedPrefixes(msgspec.Struct):
    """Every pinned prefix, in the order of pinning."""

    prefixes: list[PinnedPrefix]


class Cells(msgspec.Struct):
    """KV-cache cells: no running sequence uses `idle` cells, and `reached` is one more than the highest used cell."""

    total: int
    used: int
    idle: int
    reached: int


class SequenceIds(msgspec.Struct):
    """llama.cpp's sequence ids, which own cells."""

    total: int
    used: int


class HostCache(msgspec.Struct):
    """Size of the host cache; a `max_bytes` of null is unlimited."""

    n_bytes: int
    max_bytes: int | None
    n_entries: int


Tier = Literal["device", "both", "host", "computing", "none"]
"""Tier of a node's computed state, as in `CachedNode.tier`."""


class CacheNode(msgspec.Struct):
    """A run of cached tokens that follows its parent's.

    `parent` and `children` are indices into the list of nodes; nodes that are not listed are omitted. Long texts are shortened to
    their beginning and end, and `text` is null unless the last request that used the tokens had the same key. `adapters`
    lists the adapters that the tokens were computed with.
    """

    parent: int | None
    children: list[int]
    start: int
    n_tokens: int
    text: str | None
    is_text_cut: bool
    tier: Tier
    slots: list[int]
    is_pinned: bool
    is_evictable: bool
    n_hits: int
    n_host_bytes: int
    adapters: list[UsedAdapter] | msgspec.UnsetType = msgspec.UNSET


class CacheReport(msgspec.Struct):
    """The cache's contents: the `n_shown` most recently used of `n_nodes` nodes of the prefix tree, the latest first.

    Using a node also counts as using its ancestors, so parents precede their children. The tree is a flat list because every
    branch point adds a level, and a long conversation would exceed the nesting limit of JSON parsers.
    """

    cells: Cells
    sequence_ids: SequenceIds
    host_cache: HostCache
    n_nodes: int
    n_shown: int
    nodes: list[CacheNode]
