"""Layout of trees: compact, with parents centered over their children, in linear time.

Each subtree moves as a whole until its outline is clear of those before it, once from the left and once from the right. Its
position is the mean of both, so that a mirrored tree has a mirrored drawing (Kennedy, "Drawing Trees", Journal of Functional
Programming 6.3, 1996). The walk is a loop, since a tree may be deeper than Python's recursion limit.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice, zip_longest
from typing import NamedTuple

Ends = tuple[float, float]
"""First and last position at one depth."""


class _Outline(NamedTuple):
    """Outline of a subtree, relative to its root."""

    ends: deque[Ends]
    """One for each depth, from the root. Moving an outline is O(1): it changes only `offset`, which is added to all."""
    offset: float = 0.0

    def top(self, n: int, move: float = 0.0) -> list[Ends]:
        """Returns the first `n` depths, moved to the right."""
        move += self.offset
        return [(left + move, right + move) for left, right in islice(self.ends, n)]


def positions(parents: Sequence[int | None]) -> list[float]:
    """Returns the position of each node across the tree's direction, 0 or more; nodes of equal depth are at least 1 apart.

    Args:
        parents: Index of the parent of each node, less than its own; None for a root. Several roots are laid out like siblings.
    """
    root = len(parents)
    children: list[list[int]] = [[] for _ in range(root + 1)]
    for node, parent in enumerate(parents):
        children[root if parent is None else parent].append(node)
    moves = [0.0] * (root + 1)
    outlines: dict[int, _Outline] = {}
    for node in (*reversed(range(root)), root):
        below = [outlines.pop(child) for child in children[node]]
        depths = sorted(len(outline.ends) for outline in below)
        # Below that depth, there is one subtree at most.
        n_shared = depths[-2] if len(depths) > 1 else 0
        placed = _placed([outline.top(n_shared) for outline in below])
        for child, move in zip(children[node], placed, strict=True):
            moves[child] = move
        outlines[node] = _joined(below, placed, n_shared)
    for node, parent in enumerate(parents):
        moves[node] += 0.0 if parent is None else moves[parent]
    least = min(moves[:root], default=0.0)
    return [move - least for move in moves[:root]]


def _placed(tops: Sequence[Sequence[Ends]]) -> list[float]:
    """Returns the position of each subtree, relative to the parent."""
    from_left = _spread(tops)
    from_right = _spread([[(-right, -left) for left, right in top] for top in reversed(tops)])
    # Both are equally wide.
    return [(left - right) / 2 for left, right in zip(from_left, reversed(from_right), strict=True)]


def _spread(tops: Sequence[Sequence[Ends]]) -> list[float]:
    """Returns how far each outline moves to the right to be clear of those before it."""
    moves: list[float] = []
    edge: list[float] = []
    for top in tops:
        move = max((right - left + 1 for right, (left, _) in zip(edge, top, strict=False)), default=0.0)
        edge[: len(top)] = [right + move for _, right in top]
        moves.append(move)
    return moves


def _joined(outlines: Sequence[_Outline], moves: Sequence[float], n_shared: int) -> _Outline:
    """Returns the outline of a parent. It reuses the outline of the deepest subtree."""
    if not outlines:
        return _Outline(deque([(0.0, 0.0)]))
    tops = [outline.top(n_shared, move) for outline, move in zip(outlines, moves, strict=True)]
    levels = [[ends for ends in level if ends is not None] for level in zip_longest(*tops)]
    (ends, offset), move = max(zip(outlines, moves, strict=True), key=lambda each: len(each[0].ends))
    offset += move
    for _ in range(n_shared):
        ends.popleft()
    ends.extendleft((level[0][0] - offset, level[-1][1] - offset) for level in reversed(levels))
    ends.appendleft((-offset, -offset))
    return _Outline(ends, offset)
