"""A node that is being extended."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Self
from weakref import finalize

from weft._native import Stream
from weft.errors import NodeDropped, TreeFull
from weft.events import Event, Finished, Token
from weft.tree.nodes import Nodes, Share
from weft.tree.piece import Piece, Writing

if TYPE_CHECKING:
    from weft.tree.node import Node

__all__ = ["Extension"]


class Extension:
    """The branches that grow from a node: `async for` gives their events, and each becomes a child when it has finished.

        async with node.stream(n=8, max_tokens=64) as extension:
            async for event in extension:
                ...
        print(extension.children)

    It is cancelled by `close`, by the end of `async with`, and when nobody holds it any more. Branches that have not finished by
    then become children only where `keep_partial` asked for it, at `close` and `async with`, and with the reason "cancelled".
    """

    def __init__(
        self, parent: "Node", nodes: Nodes, stream: Stream, n: int, add: "Callable[[Piece], Node]", *, keep_partial: bool
    ) -> None:
        self.parent = parent
        """The node that is extended."""
        self._nodes = nodes
        self._model = nodes.engine.model
        self._stream = stream
        self._add = add
        self._keeps_partial = keep_partial
        self._writing = {index: Writing() for index in range(n)}
        self._children: dict[int, Node] = {}
        self._is_abandoned = False
        self._share = Share(nodes, n)
        # Also where nobody closes it.
        finalize(self, self._share.give_back).atexit = False
        nodes.watch(self)

    @property
    def children(self) -> "tuple[Node, ...]":
        """The children that are there by now, in the order of their branches."""
        return tuple(child for _, child in sorted(self._children.items()))

    @property
    def seed(self) -> int:
        """The seed of branch 0; branch `i` draws with `seed + i` (modulo 2³²)."""
        return self._stream.seed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """The next event of any branch; see `Stream`.

        Raises:
            StopAsyncIteration: Every branch has finished, or it was closed.
            NodeDropped: The node was dropped meanwhile.
            TreeFull: The tree has no room for more; what has not finished is cancelled.
            WeftError: What reading a stream raises.
        """
        try:
            event = await self._stream.__anext__()
        except StopAsyncIteration:
            self._check()
            raise
        self._take(event)
        self._check_room()
        return event

    async def finish(self) -> "list[Node]":
        """Reads what is left and returns the children.

        Raises:
            NodeDropped: The node was dropped meanwhile.
            TreeFull: The tree has no room for more; what has not finished is cancelled.
            WeftError: What reading a stream raises.
        """
        while events := await self._stream.next_batch():
            for event in events:
                self._take(event)
            self._check_room()
        self._check()
        return list(self.children)

    def close(self) -> None:
        """Cancels what has not finished. Idempotent."""
        self._stream.close()
        self._share.give_back()
        writing, self._writing = self._writing, {}
        if self._keeps_partial and not self._is_abandoned:
            for index, branch in writing.items():
                if (piece := branch.cancelled(self._model)) is not None:
                    self._children[index] = self._add(piece)

    def abandon(self) -> None:
        """Cancels it because the node is gone: whoever reads it is told."""
        self._is_abandoned = True
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        """At the end of the stream."""
        if self._is_abandoned:
            raise NodeDropped(self.parent.id)

    def _take(self, event: Event) -> None:
        # What was read before a close comes too late.
        if not isinstance(event, Token | Finished) or event.index not in self._writing:
            return
        if isinstance(event, Token):
            self._share.take(0, self._writing[event.index].add(event))
        else:
            branch = self._writing.pop(event.index)
            self._share.take(-1, -branch.n_bytes)
            self._children[event.index] = self._add(branch.ended(self._model, event))
            self._nodes.n_computed += event.usage.n_computed
            self._nodes.n_cached += event.usage.n_cached
            self._nodes.n_predicted += event.usage.n_predicted

    def _check_room(self) -> None:
        try:
            self._nodes.check_room(0)
        except TreeFull:
            self._writing.clear()
            self.close()
            raise
