"""Drawing of a tree."""

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from weft.drawing import dot, svg
from weft.drawing.figure import MAX_DRAWN, Box, BoxStyle, Figure
from weft.errors import InvalidRequestError
from weft.fields.validation import check_range
from weft.tree.node import Node

Format: TypeAlias = Literal["svg", "dot"]

FORMATS: dict[str, Callable[[Figure], str]] = {"svg": svg.draw, "dot": dot.draw}

WRITTEN = BoxStyle("written by the model", "round", "blue")
GIVEN = BoxStyle("given: the prompt, an appended text, an edit", "cornerless", "gold")


def draw(nodes: Sequence[Node], name: Format, limit: int) -> str:
    """Returns a drawing of nodes, in which parents come before their children; draws at most `limit` of them.

    Raises:
        InvalidRequestError: There is no format of this name, or `limit` is out of range.
    """
    if name not in FORMATS:
        raise InvalidRequestError("format", f"format is {name!r}; it must be svg or dot")
    check_range("limit", limit, 1, MAX_DRAWN)
    # Sorted by depth, so that nodes far from the root are left out.
    drawn = sorted(nodes, key=lambda node: (node.depth, node.id))[:limit]
    places = {node.id: place for place, node in enumerate(drawn)}
    boxes = [_box(node, None if node.parent is None else places[node.parent.id]) for node in drawn]
    n_tokens = sum(len(node.tokens) for node in nodes)
    title = f"{len(nodes):,} nodes, {n_tokens:,} tokens"
    figure = Figure(title, boxes, [WRITTEN, GIVEN], "pinned", "ended: the model generated an end token", len(nodes) - len(drawn))
    return FORMATS[name](figure)


def _box(node: Node, parent: int | None) -> Box:
    logprob = f" · {node.logprob:.1f}" if node.finish_reason is not None and node.logprob is not None else ""
    note = f"{node.id}: {len(node.tokens):,} tokens{logprob}"
    style = GIVEN if node.finish_reason is None else WRITTEN
    return Box(
        parent,
        node.text,
        note,
        style,
        is_marked=node.is_pinned,
        is_busy=node.finish_reason == "stop" and not isinstance(node.stop_reason, str),
    )
