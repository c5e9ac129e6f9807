"""Conversion of the engine's cache contents to the fields of the routes. No I/O here."""

from collections.abc import Callable, Collection, Sequence

import msgspec

from weft import CachedNode, InvalidRequestError, Prefix, Stats
from weft.fields.validation import check_range
from weft.server.cache_api import schemas
from weft.server.inference.submission import Piece
from weft.server.model.pins import Pinned

END_CHARACTERS = 100
"""Characters shown of the beginning and of the end of a long text."""

DEFAULT_LIMIT = 1_000
"""Default number of nodes."""

MAX_LIMIT = 10_000
"""Maximum number of nodes: about 2.5 MB of JSON, which blocks the event loop for about 10 ms at a time."""

END_TOKENS = 128
"""Tokens that are detokenized for the beginning and for the end; only parts of rare characters are shorter than one character."""

Detokenize = Callable[[Sequence[int]], str]


def pieces(data: schemas.PinBody) -> Sequence[Piece]:
    """Returns the prompt to pin."""
    if data.prompt is None:
        raise InvalidRequestError("prompt", "a prompt must be given")
    return [data.prompt] if isinstance(data.prompt, str) else data.prompt


def limit(given: int | None) -> int:
    """Returns the number of nodes to list. 0 returns counts only."""
    n = DEFAULT_LIMIT if given is None else given
    check_range("limit", n, 0, MAX_LIMIT)
    return n


def pinned(made: Pinned) -> schemas.PinnedPrefix:
    """Returns the response for a new pin."""
    prefix = made.prefix
    return schemas.PinnedPrefix(
        id=made.id,
        n_tokens=prefix.n_tokens,
        n_bytes=prefix.n_bytes,
        adapters=_adapters(prefix),
        invoked_at=msgspec.UNSET if prefix.invoked_at is None else prefix.invoked_at,
    )


def prefixes(listed: Sequence[Pinned], detokenize: Detokenize, hidden: Collection[int] = ()) -> schemas.PinnedPrefixes:
    """Returns all pinned prefixes with their texts, except the text of `hidden` ids."""
    made = [(pinned(each), each) for each in listed]
    for prefix, each in made:
        if each.id not in hidden:
            prefix.text, prefix.is_text_cut = _excerpt(each.prefix, detokenize)
    return schemas.PinnedPrefixes([prefix for prefix, _ in made])


def report(
    nodes: Sequence[CachedNode], n_nodes: int, stats: Stats, detokenize: Detokenize, reader: str | None = None
) -> schemas.CacheReport:
    """Returns the cache report. Omits texts of owners other than `reader`, and with a reader also texts without an owner."""
    children: list[list[int]] = [[] for _ in nodes]
    for place, node in enumerate(nodes):
        if node.parent is not None:
            children[node.parent].append(place)
    return schemas.CacheReport(
        cells=schemas.Cells(stats.n_cells, stats.n_cells_used, stats.n_cells_idle, stats.n_cells_reached),
        sequence_ids=schemas.SequenceIds(stats.n_ids, stats.n_ids_used),
        host_cache=schemas.HostCache(stats.host_cache.n_bytes, stats.host_cache.max_bytes, stats.host_cache.n_entries),
        n_nodes=n_nodes,
        n_shown=len(nodes),
        nodes=[_node(node, below, detokenize, reader) for node, below in zip(nodes, children, strict=True)],
    )


def _node(node: CachedNode, children: list[int], detokenize: Detokenize, reader: str | None) -> schemas.CacheNode:
    is_hidden = node.owner != reader
    text, is_cut = (None, True) if is_hidden else _excerpt(node, detokenize)
    return schemas.CacheNode(
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
        n_host_bytes=node.n_host_bytes,
        adapters=_adapters(node),
    )


def _adapters(of: CachedNode | Prefix) -> list[schemas.UsedAdapter] | msgspec.UnsetType:
    """Returns the active adapters, or UNSET if there are none."""
    return [schemas.UsedAdapter(adapter, scale) for adapter, scale in of.adapters] or msgspec.UNSET


def _excerpt(of: CachedNode | Prefix, detokenize: Detokenize) -> tuple[str, bool]:
    """Returns the text of tokens, and whether its middle was omitted."""
    first, last = of.excerpt(END_TOKENS)
    head = tail = detokenize(first)
    if last:
        tail = detokenize(last)
    elif len(head) <= 2 * END_CHARACTERS:
        return head, False
    return f"{head[:END_CHARACTERS]}…{tail[-END_CHARACTERS:]}", True
