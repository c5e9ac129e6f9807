"""Layout of trees: compact, with parents centered over their children.

Implements Reingold and Tilford's tidy drawing ("Tidier Drawings of Trees", 1981) for any number of children, in linear time:
Buchheim, Jünger and Leipert, "Improving Walker's Algorithm to Run in Linear Time" (2002), whose function names are used here.
Both walks are loops, since a tree may be deeper than Python's recursion limit.
"""

from collections.abc import Sequence

__all__ = ["positions"]

NONE = -1


def positions(parents: Sequence[int | None]) -> list[float]:
    """Returns the position of each node across the tree's direction, 0 or more; nodes of equal depth are at least 1 apart.

    Args:
        parents: Index of the parent of each node, less than its own; None for a root. Several roots are laid out like siblings.
    """
    return _Drawing(parents).positions()


class _Drawing:
    def __init__(self, parents: Sequence[int | None]) -> None:
        n = len(parents)
        self.root = n
        self.parent = [n if parent is None else parent for parent in parents] + [NONE]
        self.children: list[list[int]] = [[] for _ in range(n + 1)]
        self.number = [0] * (n + 1)
        for node, parent in enumerate(self.parent[:n]):
            self.number[node] = len(self.children[parent])
            self.children[parent].append(node)
        self.prelim = [0.0] * (n + 1)
        self.mod = [0.0] * (n + 1)
        self.shift = [0.0] * (n + 1)
        self.change = [0.0] * (n + 1)
        self.thread = [NONE] * (n + 1)
        self.ancestor = list(range(n + 1))

    def positions(self) -> list[float]:
        downward = [self.root]
        for node in downward:
            downward += self.children[node]
        default_ancestor = [children[0] if children else NONE for children in self.children]
        for node in self._postorder():
            self.first_walk(node)
            parent = self.parent[node]
            if parent != NONE:
                default_ancestor[parent] = self.apportion(node, default_ancestor[parent])
        # Second walk: accumulates the shifts of all ancestors.
        moved = [0.0] * len(self.parent)
        for node in downward:
            for child in self.children[node]:
                moved[child] = moved[node] + self.mod[node]
        places = [self.prelim[node] + moved[node] for node in range(self.root)]
        least = min(places, default=0.0)
        return [place - least for place in places]

    def _postorder(self) -> list[int]:
        # Children before their parents, and siblings in order: the reverse of a preorder walk from last to first child.
        order, waiting = [], [self.root]
        while waiting:
            node = waiting.pop()
            order.append(node)
            waiting += self.children[node]
        return order[::-1]

    def _left(self, node: int) -> int:
        """Returns the sibling before a node."""
        number = self.number[node]
        return self.children[self.parent[node]][number - 1] if number else NONE

    def first_walk(self, node: int) -> None:
        left = self._left(node)
        offset = 0.0 if left == NONE else self.prelim[left] + 1
        children = self.children[node]
        if not children:
            self.prelim[node] = offset
            return
        self.execute_shifts(node)
        middle = (self.prelim[children[0]] + self.prelim[children[-1]]) / 2
        if left == NONE:
            self.prelim[node] = middle
        else:
            self.prelim[node] = offset
            self.mod[node] = offset - middle

    def apportion(self, node: int, default_ancestor: int) -> int:
        """Moves a subtree away from its left siblings, along their contours, and spreads the subtrees between."""
        left = self._left(node)
        if left == NONE:
            return default_ancestor
        in_right = out_right = node
        in_left, out_left = left, self.children[self.parent[node]][0]
        sum_in_right, sum_out_right = self.mod[in_right], self.mod[out_right]
        sum_in_left, sum_out_left = self.mod[in_left], self.mod[out_left]
        while (after_left := self.next_right(in_left)) != NONE and (after_right := self.next_left(in_right)) != NONE:
            in_left, in_right = after_left, after_right
            out_left, out_right = self.next_left(out_left), self.next_right(out_right)
            self.ancestor[out_right] = node
            shift = self.prelim[in_left] + sum_in_left - self.prelim[in_right] - sum_in_right + 1
            if shift > 0:
                ancestor = self.ancestor[in_left]
                is_sibling = self.parent[ancestor] == self.parent[node]
                self.move_subtree(ancestor if is_sibling else default_ancestor, node, shift)
                sum_in_right += shift
                sum_out_right += shift
            sum_in_left += self.mod[in_left]
            sum_in_right += self.mod[in_right]
            sum_out_left += self.mod[out_left]
            sum_out_right += self.mod[out_right]
        if (after_left := self.next_right(in_left)) != NONE and self.next_right(out_right) == NONE:
            self.thread[out_right] = after_left
            self.mod[out_right] += sum_in_left - sum_out_right
        if (after_right := self.next_left(in_right)) != NONE and self.next_left(out_left) == NONE:
            self.thread[out_left] = after_right
            self.mod[out_left] += sum_in_right - sum_out_left
            default_ancestor = node
        return default_ancestor

    def next_left(self, node: int) -> int:
        children = self.children[node]
        return children[0] if children else self.thread[node]

    def next_right(self, node: int) -> int:
        children = self.children[node]
        return children[-1] if children else self.thread[node]

    def move_subtree(self, left: int, right: int, shift: float) -> None:
        each = shift / (self.number[right] - self.number[left])
        self.change[right] -= each
        self.shift[right] += shift
        self.change[left] += each
        self.prelim[right] += shift
        self.mod[right] += shift

    def execute_shifts(self, node: int) -> None:
        shift = change = 0.0
        for child in reversed(self.children[node]):
            self.prelim[child] += shift
            self.mod[child] += shift
            change += self.change[child]
            shift += self.shift[child] + change
