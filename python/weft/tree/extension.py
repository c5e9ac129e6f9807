"""Streamed extension of a node."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Self
from weakref import finalize

from weft._native import Stream
from weft.errors import NodeDroppedError, TreeFullError
from weft.events import Event, Finished, Token
from weft.tree.nodes import Nodes, Reservation
from weft.tree.piece import Piece, PieceBuilder

if TYPE_CHECKING:
    from weft.tree.node import Node


class Extension:
    """Asynchronous iterator over the events of branches that extend a node; each finished branch becomes a child.

        async with node.stream(n=8, max_tokens=64) as extension:
            async for event in extension:
                ...
        print(extension.children)

    It is cancelled by `close`, at the end of `async with`, and when the last reference is dropped. Unfinished branches become
    children with the reason "cancelled" only at `close` or the end of `async with`, and only with `keep_partial`.
    """

    def __init__(
        self, parent: "Node", nodes: Nodes, stream: Stream, n: int, add: "Callable[[Piece], Node]", *, keep_partial: bool
    ) -> None:
        self.parent = parent
        """Node that is extended."""
        self._nodes = nodes
        self._model = nodes.engine.model
        self._stream = stream
        self._add = add
        self._keeps_partial = keep_partial
        self._builders = {index: PieceBuilder() for index in range(n)}
        self._children: dict[int, Node] = {}
        self._is_abandoned = False
        self._reservation = Reservation(nodes, n)
        # Also runs if the extension is dropped without `close`.
        finalize(self, self._reservation.release).atexit = False
        nodes.running.add(self)

    @property
    def children(self) -> "tuple[Node, ...]":
        """Children created so far, in the order of their branches."""
        return tuple(child for _, child in sorted(self._children.items()))

    @property
    def seed(self) -> int:
        """Seed of branch 0; branch `i` uses `seed + i` (modulo 2³²)."""
        return self._stream.seed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Returns the next event of any branch; see `Stream`.

        Raises:
            StopAsyncIteration: Every branch has finished, or the extension was closed.
            NodeDroppedError: The node was dropped meanwhile.
            TreeFullError: The tree reached a limit; unfinished branches are cancelled.
            WeftError: Any error of the stream.
        """
        try:
            event = await self._stream.__anext__()
        except StopAsyncIteration:
            if self._is_abandoned:
                raise NodeDroppedError(self.parent.id) from None
            raise
        self._handle(event)
        try:
            self._nodes.check_limits(0)
        except TreeFullError:
            self._builders.clear()
            self.close()
            raise
        return event

    async def finish(self) -> "list[Node]":
        """Reads the rest of the stream and returns the children.

        Raises:
            NodeDroppedError: The node was dropped meanwhile.
            TreeFullError: The tree reached a limit; unfinished branches are cancelled.
            WeftError: Any error of the stream.
        """
        async for _ in self:
            pass
        return list(self.children)

    def close(self) -> None:
        """Cancels unfinished branches. Idempotent."""
        self._stream.close()
        self._reservation.release()
        writing, self._builders = self._builders, {}
        if self._keeps_partial and not self._is_abandoned:
            for index, branch in writing.items():
                if (piece := branch.partial_piece(self._model)) is not None:
                    self._children[index] = self._add(piece)

    def abandon(self) -> None:
        """Cancels the extension because its node was dropped; readers get `NodeDroppedError`."""
        self._is_abandoned = True
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _handle(self, event: Event) -> None:
        # Events that were read before `close` are ignored after it.
        if not isinstance(event, Token | Finished) or event.index not in self._builders:
            return
        if isinstance(event, Token):
            self._reservation.add(0, self._builders[event.index].add(event))
        else:
            branch = self._builders.pop(event.index)
            self._reservation.add(-1, -branch.n_bytes)
            self._children[event.index] = self._add(branch.finished_piece(self._model, event))
            self._nodes.n_computed += event.usage.n_computed
            self._nodes.n_cached += event.usage.n_cached
            self._nodes.n_predicted += event.usage.n_predicted
