"""The nodes of one tree: which there are, what they take, and which are being written."""

from typing import TYPE_CHECKING
from weakref import WeakSet

from weft._native import Prefix
from weft.errors import InvalidRequest, NodeDropped, TreeFull
from weft.tree.piece import NODE_BYTES

if TYPE_CHECKING:
    from weft.engine import Engine
    from weft.tree.extension import Extension
    from weft.tree.node import Node

__all__ = ["Nodes", "Share"]


class Share:
    """What branches that are being written take of a tree's room, until each is a node or is given up."""

    def __init__(self, nodes: "Nodes", n: int) -> None:
        self._nodes = nodes
        self._n_nodes = self._n_bytes = 0
        self.take(n, n * NODE_BYTES)

    def take(self, n_nodes: int, n_bytes: int) -> None:
        """So many nodes and bytes more; below 0, so many fewer."""
        self._n_nodes += n_nodes
        self._n_bytes += n_bytes
        self._nodes.n_shared_nodes += n_nodes
        self._nodes.n_shared_bytes += n_bytes

    def give_back(self) -> None:
        """All that is left of it. Idempotent."""
        self.take(-self._n_nodes, -self._n_bytes)


class Nodes:
    """They are known by their ids, which count up and are never given again."""

    def __init__(self, engine: "Engine", *, max_nodes: int, max_bytes: int) -> None:
        self.engine = engine
        self.max_nodes = max_nodes
        self.max_bytes = max_bytes
        self.n_bytes = 0
        """What the nodes take, as it is counted."""
        self.n_shared_nodes = self.n_shared_bytes = 0
        """What is being written takes, besides."""
        self.n_computed = self.n_cached = self.n_predicted = 0
        """What the branches that have finished cost, in tokens."""
        self.pins: dict[int, Prefix] = {}
        """What is pinned, by the id of its last node."""
        self._all: dict[int, Node] = {}
        self._children: dict[int, list[Node]] = {}
        self._running: WeakSet[Extension] = WeakSet()
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, node_id: int) -> bool:
        return node_id in self._all

    def all(self) -> "list[Node]":
        """Every node in the order of their ids: parents before their children."""
        return list(self._all.values())

    def get(self, node_id: int) -> "Node | None":
        """The node with this id."""
        return self._all.get(node_id)

    def children(self, node_id: int) -> "tuple[Node, ...]":
        """Those of a node, in the order in which they came."""
        return tuple(self._children.get(node_id, ()))

    def below(self, node: "Node") -> "list[Node]":
        """A node and all that comes of it."""
        found = [node]
        for each in found:
            found += self._children[each.id]
        return found

    def next_id(self, least: int = 0) -> int:
        """An id for a node that is to be added, no less than `least`."""
        self._next_id = max(self._next_id, least) + 1
        return self._next_id - 1

    def add(self, node: "Node", n_bytes: int) -> None:
        """One more. Whether there is room was asked for before."""
        self._all[node.id] = node
        self._children[node.id] = []
        if node.parent is not None:
            self._children[node.parent.id].append(node)
        self.n_bytes += n_bytes

    def drop(self, node: "Node") -> None:
        """Lets a node go with all below it, and ends what is being written there.

        Raises:
            InvalidRequest: One of them is pinned.
        """
        gone = {each.id: each for each in self.below(node)}
        if pinned := [node_id for node_id in gone if node_id in self.pins]:
            raise InvalidRequest("node", f"node {pinned[0]} is pinned; unpin it before it is dropped")
        for extension in list(self._running):
            if extension.parent.id in gone:
                extension.abandon()
        if node.parent is not None:
            self._children[node.parent.id].remove(node)
        for each in gone.values():
            self.n_bytes -= each.n_bytes
            del self._all[each.id], self._children[each.id]

    def check(self, node: "Node") -> None:
        """Raises `NodeDropped` where a node was let go."""
        if node.id not in self._all:
            raise NodeDropped(node.id)

    def watch(self, extension: "Extension") -> None:
        """It is ended where the node that it extends is dropped."""
        self._running.add(extension)

    def check_room(self, n_more: int, n_bytes: int = 0) -> None:
        """Raises `TreeFull` where there is no room for so many nodes more, of so many bytes, beside what is being written."""
        if len(self._all) + self.n_shared_nodes + n_more > self.max_nodes:
            raise TreeFull(self.max_nodes, "nodes")
        if self.n_bytes + self.n_shared_bytes + max(n_bytes, n_more * NODE_BYTES) > self.max_bytes:
            raise TreeFull(self.max_bytes, "bytes")
