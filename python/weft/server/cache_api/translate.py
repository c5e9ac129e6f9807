"""What the engine tells of its cache, in the fields of our routes. No I/O here."""

from collections.abc import Callable, Collection, Sequence

import msgspec

from weft import CachedNode, InvalidRequest, Prefix, Stats
from weft.server.cache_api.schemas import (
    CacheReport,
    Cells,
    PinBody,
    PinnedPrefix,
    PinnedPrefixes,
    SequenceIds,
    Store,
    Stretch,
    UsedAdapter,
)
from weft.server.run.pins import Pinned
from weft.server.run.submission import Piece

__all__ = ["DEFAULT_LIMIT", "END_CHARACTERS", "MAX_LIMIT", "limit", "pieces", "pinned", "prefixes", "report"]

END_CHARACTERS = 100
"""How much is shown of the beginning and of the end of a long text."""

DEFAULT_LIMIT = 1_000
"""Nodes that are shown where nobody says how many."""

MAX_LIMIT = 10_000
"""Most nodes that are shown: some 2.5 MB of JSON, for which the event loop is held up for some 10 ms at a time."""

END_TOKENS = 128
"""Tokens that are turned into text for each of the two: a token is less than a character only within a rare one."""

Detokenize = Callable[[Sequence[int]], str]


def pieces(data: PinBody) -> Sequence[Piece]:
    """The prompt that is to be pinned."""
    if data.prompt is None:
        raise InvalidRequest("prompt", "a prompt must be given")
    return [data.prompt] if isinstance(data.prompt, str) else data.prompt


def limit(given: int | None) -> int:
    """How many nodes are to be shown; 0 tells of all only how many they are."""
    n = DEFAULT_LIMIT if given is None else given
    if not 0 <= n <= MAX_LIMIT:
        raise InvalidRequest("limit", f"limit is {n}; it must be 0 to {MAX_LIMIT}")
    return n


def pinned(made: Pinned) -> PinnedPrefix:
    """What was pinned."""
    prefix = made.prefix
    return PinnedPrefix(
        id=made.id,
        n_tokens=prefix.n_tokens,
        n_bytes=prefix.n_bytes,
        adapters=_adapters(prefix),
        invoked_at=msgspec.UNSET if prefix.invoked_at is None else prefix.invoked_at,
    )


def prefixes(listed: Sequence[Pinned], detokenize: Detokenize, hidden: Collection[int] = ()) -> PinnedPrefixes:
    """Every pinned prefix with its text, but for those whose numbers are of what is hidden."""
    return PinnedPrefixes([pinned(each) if each.id in hidden else _with_text(each, detokenize) for each in listed])


def _with_text(each: Pinned, detokenize: Detokenize) -> PinnedPrefix:
    text, is_cut = _excerpt(each.prefix, detokenize)
    return msgspec.structs.replace(pinned(each), text=text, is_text_cut=is_cut)


def report(
    nodes: Sequence[CachedNode], n_nodes: int, stats: Stats, detokenize: Detokenize, reader: str | None = None
) -> CacheReport:
    """The nodes that are shown of `n_nodes`, and the room that there is. Texts of other owners than its reader are not told."""
    children: list[list[int]] = [[] for _ in nodes]
    for place, node in enumerate(nodes):
        if node.parent is not None:
            children[node.parent].append(place)
    return CacheReport(
        cells=Cells(stats.n_cells, stats.n_cells_used, stats.n_cells_idle, stats.n_cells_reached),
        sequence_ids=SequenceIds(stats.n_ids, stats.n_ids_used),
        store=Store(stats.store.n_bytes, stats.store.max_bytes, stats.store.n_pieces),
        n_nodes=n_nodes,
        n_shown=len(nodes),
        nodes=[_stretch(node, below, detokenize, reader) for node, below in zip(nodes, children, strict=True)],
    )


def _stretch(node: CachedNode, children: list[int], detokenize: Detokenize, reader: str | None) -> Stretch:
    is_hidden = node.owner not in (None, reader)
    text, is_cut = (None, True) if is_hidden else _excerpt(node, detokenize)
    return Stretch(
        parent=node.parent,
        children=children,
        start=node.start,
        n_tokens=node.n_tokens,
        text=text,
        is_text_cut=is_cut,
        tier=node.tier,
        slots=node.slots,
        is_pinned=node.is_pinned,
        is_evictable=not node.is_pinned and not node.slots,
        n_hits=node.n_hits,
        n_stored_bytes=node.n_stored_bytes,
        adapters=_adapters(node),
    )


def _adapters(of: CachedNode | Prefix) -> list[UsedAdapter] | msgspec.UnsetType:
    """What it was computed with, where that is not the model alone."""
    return [UsedAdapter(adapter, scale) for adapter, scale in of.adapters] or msgspec.UNSET


def _excerpt(of: CachedNode | Prefix, detokenize: Detokenize) -> tuple[str, bool]:
    """The text of tokens, and whether its middle was left out."""
    first, last = of.excerpt(END_TOKENS)
    head = tail = detokenize(first)
    if last:
        tail = detokenize(last)
    elif len(head) <= 2 * END_CHARACTERS:
        return head, False
    return f"{head[:END_CHARACTERS]}…{tail[-END_CHARACTERS:]}", True
