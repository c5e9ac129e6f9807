"""Storage of one tree: its nodes, their sizes, and reservations for branches that are being generated."""

from typing import TYPE_CHECKING
from weakref import WeakSet

from weft._native import Prefix
from weft.errors import InvalidRequestError, NodeDroppedError, TreeFullError
from weft.tree.piece import NODE_BYTES

if TYPE_CHECKING:
    from weft.engine import Engine
    from weft.tree.extension import Extension
    from weft.tree.node import Node


class Reservation:
    """Nodes and bytes reserved for branches that are being generated, until each becomes a node or is discarded."""

    def __init__(self, nodes: "Nodes", n: int) -> None:
        self._nodes = nodes
        self._n_nodes = self._n_bytes = 0
        self.add(n, n * NODE_BYTES)

    def add(self, n_nodes: int, n_bytes: int) -> None:
        """Reserves more nodes and bytes, or returns some if negative."""
        self._n_nodes += n_nodes
        self._n_bytes += n_bytes
        self._nodes.n_reserved_nodes += n_nodes
        self._nodes.n_reserved_bytes += n_bytes

    def release(self) -> None:
        """Returns the rest of the reservation. Idempotent."""
        self.add(-self._n_nodes, -self._n_bytes)


class Nodes:
    """Nodes by id. Ids increase and are never reused."""

    def __init__(self, engine: "Engine", *, max_nodes: int, max_bytes: int) -> None:
        self.engine = engine
        self.max_nodes = max_nodes
        self.max_bytes = max_bytes
        self.n_bytes = 0
        """Estimated bytes of all nodes."""
        self.n_reserved_nodes = self.n_reserved_bytes = 0
        """Reserved in addition, for branches that are being generated."""
        self.n_computed = self.n_cached = self.n_predicted = 0
        """Token counts of all finished branches."""
        self.pins: dict[int, Prefix] = {}
        """Pinned prefixes by the id of their last node."""
        self.by_id: dict[int, Node] = {}
        """Every node by its id, in the order of ids: parents before their children."""
        self._children: dict[int, list[Node]] = {}
        self.running: WeakSet[Extension] = WeakSet()
        """Extensions, which are cancelled if the node that they extend is dropped."""
        self._next_id = 0

    def children(self, node_id: int) -> "tuple[Node, ...]":
        """Returns the children of a node, in the order of their creation."""
        return tuple(self._children.get(node_id, ()))

    def next_id(self, least: int = 0) -> int:
        """Returns a new id, at least `least`."""
        self._next_id = max(self._next_id, least) + 1
        return self._next_id - 1

    def add(self, node: "Node") -> None:
        """Adds a node. The caller has checked the limits with `check_limits`."""
        self.by_id[node.id] = node
        self._children[node.id] = []
        if node.parent is not None:
            self._children[node.parent.id].append(node)
        self.n_bytes += node.n_bytes

    def drop(self, node: "Node") -> None:
        """Removes a node and its descendants, and cancels extensions of them.

        Raises:
            InvalidRequestError: One of them is pinned.
        """
        gone = [node]
        for each in gone:
            gone += self._children[each.id]
        if pinned := [each.id for each in gone if each.id in self.pins]:
            raise InvalidRequestError("node", f"node {pinned[0]} is pinned; unpin it before it is dropped")
        for extension in list(self.running):
            if extension.parent in gone:
                extension.abandon()
        if node.parent is not None:
            self._children[node.parent.id].remove(node)
        for each in gone:
            self.n_bytes -= each.n_bytes
            del self.by_id[each.id], self._children[each.id]

    def check(self, node: "Node") -> None:
        """Raises `NodeDroppedError` if a node was dropped."""
        if node.id not in self.by_id:
            raise NodeDroppedError(node.id)

    def check_limits(self, n_more: int, n_bytes: int = 0) -> None:
        """Raises `TreeFullError` if `n_more` nodes of `n_bytes` bytes, in addition to reservations, would exceed the limits."""
        if len(self.by_id) + self.n_reserved_nodes + n_more > self.max_nodes:
            raise TreeFullError(self.max_nodes, "nodes")
        if self.n_bytes + self.n_reserved_bytes + max(n_bytes, n_more * NODE_BYTES) > self.max_bytes:
            raise TreeFullError(self.max_bytes, "bytes")
