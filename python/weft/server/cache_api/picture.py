"""Diagrams of the cache's contents. No I/O here."""

from collections.abc import Callable

from weft import InvalidRequestError
from weft.drawing import dot, svg
from weft.drawing.figure import DEFAULT_DRAWN, MAX_DRAWN, Box, BoxStyle, Figure
from weft.fields.excerpt import excerpt
from weft.server.cache_api.schemas import CacheNode, CacheReport

FORMATS: dict[str, tuple[str, Callable[[Figure], str]]] = {
    "svg": ("image/svg+xml", svg.draw),
    "dot": ("text/vnd.graphviz", dot.draw),
}
"""Image formats with their content types."""

STYLES = {
    "device": BoxStyle("in cells", "round", "blue"),
    "both": BoxStyle("in cells, with a copy in host memory", "double", "teal"),
    "host": BoxStyle("in host memory", "cornerless", "gold"),
    "computing": BoxStyle("in cells, as far as a running completion has computed it", "dashed", "green"),
    "none": BoxStyle("not cached, unlike its descendants", "dotted", "grey"),
}


def n_drawn(limit: int | None, name: str) -> int:
    """Validates the query and returns the number of nodes to draw.

    Raises:
        InvalidRequestError: The limit is out of range, or the format unknown.
    """
    if name not in FORMATS:
        raise InvalidRequestError("format", f"format is {excerpt(name)}; it must be json, svg or dot")
    n = DEFAULT_DRAWN if limit is None else limit
    if not 0 <= n <= MAX_DRAWN:
        raise InvalidRequestError("limit", f"limit is {n}; it must be 0 to {MAX_DRAWN} for a picture")
    return n


def draw(report: CacheReport, name: str) -> bytes:
    """Draws the cache's contents in a format of `FORMATS`."""
    return FORMATS[name][1](_figure(report)).encode()


def _figure(report: CacheReport) -> Figure:
    cells, host_cache = report.cells, report.host_cache
    maximum = "" if host_cache.max_bytes is None else f" of {host_cache.max_bytes / 2**20:,.1f}"
    return Figure(
        title=f"{cells.used:,} of {cells.total:,} cells used ({cells.idle:,} idle), "
        f"{host_cache.n_bytes / 2**20:,.1f}{maximum} MiB in host memory, {report.n_nodes:,} nodes",
        boxes=[
            Box(
                node.parent,
                "(of another key)" if node.text is None else node.text,
                _note(node),
                STYLES[node.tier],
                node.is_pinned,
                bool(node.slots),
            )
            for node in report.nodes
        ],
        styles=[*STYLES.values()],
        marked="pinned",
        busy="a completion runs on it",
        n_more=report.n_nodes - report.n_shown,
    )


def _note(node: CacheNode) -> str:
    hits = [] if node.n_hits == 0 else [f"{node.n_hits:,} hit{'s' * (node.n_hits != 1)}"]
    slots = [f"slot{'s' * (len(node.slots) > 1)} {', '.join(map(str, node.slots))}"] if node.slots else []
    return " · ".join([f"{node.n_tokens:,} token{'s' * (node.n_tokens != 1)}", *slots, *hits])
