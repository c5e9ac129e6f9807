"""What the engine tells of its cache, in the fields of our routes. No I/O here."""

from collections.abc import Callable, Sequence

from weft import CachedNode, InvalidRequest, Prefix, Stats
from weft.server.cache.schemas import CacheReport, Cells, PinBody, PinnedPrefix, PinnedPrefixes, SequenceIds, Store, Stretch
from weft.server.submission import Piece

__all__ = ["END_CHARACTERS", "pieces", "pinned", "prefixes", "report"]

END_CHARACTERS = 100
"""How much is shown of the beginning and of the end of a long text."""

END_TOKENS = 128
"""Tokens that are turned into text for each of the two: a token is less than a character only within a rare one."""

Detokenize = Callable[[Sequence[int]], str]


def pieces(data: PinBody) -> list[Piece]:
    """The prompt that is to be pinned."""
    if data.prompt is None:
        raise InvalidRequest("prompt", "a prompt must be given")
    return [data.prompt] if isinstance(data.prompt, str) else list(data.prompt)


def pinned(prefix: Prefix) -> PinnedPrefix:
    """What was pinned."""
    return PinnedPrefix(id=prefix.id, n_tokens=prefix.n_tokens, n_bytes=prefix.n_bytes)


def prefixes(listed: Sequence[Prefix], detokenize: Detokenize) -> PinnedPrefixes:
    """Every pinned prefix with its text."""
    return PinnedPrefixes(
        [
            PinnedPrefix(id=prefix.id, n_tokens=prefix.n_tokens, n_bytes=prefix.n_bytes, text=detokenize(prefix.tokens))
            for prefix in listed
        ]
    )


def report(nodes: Sequence[CachedNode], stats: Stats, detokenize: Detokenize) -> CacheReport:
    """The tree, and the room that it has."""
    children: list[list[int]] = [[] for _ in nodes]
    for place, node in enumerate(nodes):
        if node.parent is not None:
            children[node.parent].append(place)
    return CacheReport(
        cells=Cells(stats.n_cells, stats.n_cells_used, stats.n_cells_idle, stats.n_cells_reached),
        sequence_ids=SequenceIds(stats.n_ids, stats.n_ids_used),
        store=Store(stats.store.n_bytes, stats.store.max_bytes, stats.store.n_pieces),
        nodes=[_stretch(node, below, detokenize) for node, below in zip(nodes, children, strict=True)],
    )


def _stretch(node: CachedNode, children: list[int], detokenize: Detokenize) -> Stretch:
    text, is_cut = _excerpt(node.tokens, detokenize)
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
    )


def _excerpt(tokens: Sequence[int], detokenize: Detokenize) -> tuple[str, bool]:
    """The text of a stretch, and whether its middle was left out."""
    if len(tokens) > 2 * END_TOKENS:
        head, tail = detokenize(tokens[:END_TOKENS]), detokenize(tokens[-END_TOKENS:])
    else:
        head = tail = detokenize(tokens)
        if len(head) <= 2 * END_CHARACTERS:
            return head, False
    return f"{head[:END_CHARACTERS]}…{tail[-END_CHARACTERS:]}", True
