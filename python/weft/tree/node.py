"""One node of a tree: a stretch of text with what may follow it."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, Unpack

from weft._native import Prefix
from weft.errors import InvalidRequest
from weft.events import Logprobs, Usage
from weft.request import RequestOptions
from weft.tree.extension import Extension
from weft.tree.nodes import Nodes
from weft.tree.piece import Piece, Reason
from weft.tree.seam import cut, spelt

__all__ = ["Node"]


class Node:
    """A stretch of text in a [`Tree`][weft.Tree], which makes nodes; none is made by hand.

    What it says never changes: `edit` and `extend` make others. A node that was dropped still tells its text, and refuses the
    rest (`NodeDropped`).
    """

    def __init__(self, nodes: Nodes, parent: "Node | None", piece: Piece, node_id: int | None = None) -> None:
        self._nodes = nodes
        self._parent = parent
        self._piece = piece
        self._id = nodes.next_id() if node_id is None else nodes.next_id(node_id)
        self._depth = 0 if parent is None else parent.depth + 1
        nodes.add(self, piece.n_bytes)

    @property
    def id(self) -> int:
        """Its number, which stays its own in files too: from 0, counting up, and given to no other when it is dropped."""
        return self._id

    @property
    def parent(self) -> "Node | None":
        """The node that it continues; None for the root."""
        return self._parent

    @property
    def children(self) -> "tuple[Node, ...]":
        """What continues it, in the order in which it came."""
        return self._nodes.children(self._id)

    @property
    def depth(self) -> int:
        """Nodes before it; 0 is the root."""
        return self._depth

    @property
    def piece(self) -> Piece:
        """All that it holds of its own, as it is saved."""
        return self._piece

    @property
    def text(self) -> str:
        """Its own text, without a stop string that ended it.

        Where it ends within a character, as `max_tokens` may have it, that is in no text; `engine.detokenize(node.path)` has it.
        """
        return self._piece.text

    @property
    def tokens(self) -> tuple[int, ...]:
        """Its own tokens, without an end token and those of a stop string."""
        return self._piece.tokens

    @property
    def logprobs(self) -> tuple[Logprobs | None, ...]:
        """One entry for each token; None where it was not drawn, or `n_probs` was 0."""
        return self._piece.logprobs

    @property
    def logprob(self) -> float | None:
        """The natural logarithm of the probability of its tokens after those before it; None where one of them is not known."""
        known = [each.chosen.logprob for each in self._piece.logprobs if each is not None]
        return sum(known) if len(known) == len(self._piece.tokens) else None

    @property
    def reason(self) -> Reason | None:
        """Why it was written no further: as `Finished.reason`, or "cancelled"; None for what was given."""
        return self._piece.reason

    @property
    def stop(self) -> str | None:
        """The stop string that ended it."""
        return self._piece.stop

    @property
    def usage(self) -> Usage | None:
        """What it cost to write; None for what was given, cancelled or loaded."""
        return self._piece.usage

    @property
    def ancestors(self) -> "list[Node]":
        """The nodes from the root to this one, itself included."""
        found: list[Node] = [self]
        while (parent := found[-1].parent) is not None:
            found.append(parent)
        return found[::-1]

    @property
    def path(self) -> list[int]:
        """The tokens from the root to its end: what `extend` continues."""
        return [token for node in self.ancestors for token in node.tokens]

    @property
    def path_text(self) -> str:
        """The texts from the root to its end."""
        return "".join(node.text for node in self.ancestors)

    @property
    def n_bytes(self) -> int:
        """What it counts for in the tree's `max_bytes`."""
        return self._piece.n_bytes

    @property
    def is_dropped(self) -> bool:
        """Whether it is in its tree no more."""
        return self._id not in self._nodes

    @property
    def is_pinned(self) -> bool:
        """Whether `pin` keeps its path computed. An engine that sleeps forgets pins."""
        return self._id in self._nodes.pins

    def __repr__(self) -> str:
        return f"<Node {self._id}: {len(self.tokens)} tokens, {self.text[:40]!r}>"

    async def extend(self, *, keep_partial: bool = False, **options: Unpack[RequestOptions]) -> "list[Node]":
        """Continues it with `n` branches, and returns them as children, in their order.

            children = await tree.root.extend(n=8, max_tokens=64, temperature=1.1)

        The path is computed once for all of them, as far as it is not cached. Several nodes may be extended at once. Branches
        that find no slot free wait for one; only the beams of a search need theirs together. Cancelling it frees the slots;
        branches that have finished by then stay.

        Args:
            keep_partial: Whether branches that are cut by cancelling it become children too, as far as they are written.
            **options: The fields of a request. `n_probs` is 1 where it is not given.

        Raises:
            NodeDropped: It was dropped, before or meanwhile.
            TreeFull: The tree has no room for the children; what has not finished is cancelled.
            WeftError: What `Engine.complete` raises; branches that have finished by then stay.
        """
        async with self.stream(keep_partial=keep_partial, **options) as extension:
            return await extension.finish()

    def stream(self, *, keep_partial: bool = False, **options: Unpack[RequestOptions]) -> Extension:
        """Begins what `extend` does at once, and returns it: for reading the events of the branches as they come.

        Raises:
            InvalidRequest: There is a `suffix_prompt`.
            NodeDropped: It was dropped.
            TreeFull: The tree has no room for the children.
            WeftError: What `Engine.generate` raises.
        """
        self._nodes.check(self)
        # What is no list or no number is for the engine to refuse.
        given: Any = options.get("branches")
        branches = given if isinstance(given, Sequence) else ()
        asked: list[Any] = [options, *branches]
        if any(isinstance(each, Mapping) and each.get("suffix_prompt") for each in asked):
            raise InvalidRequest(
                "suffix_prompt", "what stands between a node and its children is a node: append it, and extend that"
            )
        n = len(branches) or options.get("n", 1)
        if isinstance(n, int):
            self._nodes.check_room(n)
        options.setdefault("n_probs", 1)
        stream = self._nodes.engine.generate(self.path, **options)
        return Extension(self, self._nodes, stream, n, partial(Node, self._nodes, self), keep_partial=keep_partial)

    def append(self, given: str | Sequence[int], *, parse_special: bool = False) -> "Node":
        """A child of the user's own. Nothing is computed for it before it is extended.

        A text is tokenized by itself, with nothing put before it: no token stands for what is on both sides of the seam. It is
        tokenized on this thread, as `Engine.tokenize` does it.

        Args:
            given: A text, or tokens.
            parse_special: Reads the spelling of a control token in a text as that token.

        Raises:
            InvalidRequest: It holds no tokens, or something that is none.
            NodeDropped: The node was dropped.
            TreeFull: The tree has no room for it.
        """
        self._nodes.check(self)
        model = self._nodes.engine.model
        if isinstance(given, str):
            _check_text(given)
            tokens = model.tokenize_on(given, parse_special=parse_special)
            return _grown(self._nodes, self, Piece.given(tokens, given), "given")
        return _grown(self._nodes, self, Piece.given(given, model.detokenize(given)), "given")

    def edit(self, at: int, text: str, *, unit: Literal["token", "byte"] = "token") -> "Node":
        """A sibling that begins as this node does, and goes on with another text.

        What is kept keeps its tokens, so that extending the sibling computes from the edit on. Its children stay where they are.

        Args:
            at: How much of the node is kept, from its beginning: in `unit`, from 0 to all of it.
            text: What follows; empty only cuts.
            unit: Tokens, or bytes of what its tokens spell; of a token that is cut, the rest is tokenized with the text.

        Raises:
            InvalidRequest: It is the root, `at` is beyond the node, or nothing would be left.
            NodeDropped: The node was dropped.
            TreeFull: The tree has no room for it.
        """
        self._nodes.check(self)
        if self._parent is None:
            raise InvalidRequest("node", "the root has no siblings; another prompt is another tree")
        _check_text(text)
        model = self._nodes.engine.model
        if unit == "byte":
            n_all, (n_kept, rest) = len(spelt(model, self.tokens)), cut(model, self.tokens, max(at, 0))
        elif unit == "token":
            n_all, (n_kept, rest) = len(self.tokens), (at, b"")
        else:
            raise InvalidRequest("unit", f"unit is {unit!r}; it must be 'token' or 'byte'")
        if not 0 <= at <= n_all:
            raise InvalidRequest("at", f"at is {at}; the node has {n_all} {unit}s")
        kept, new = self.tokens[:n_kept], rest + text.encode()
        tokens = [*kept, *(model.tokenize_on(new, parse_special=False) if new else [])]
        told = (spelt(model, kept) + new).decode(errors="replace")
        return _grown(self._nodes, self._parent, Piece.given(tokens, told, self.logprobs[:n_kept]), "text")

    def drop(self) -> None:
        """Takes it out of the tree with all below it; extensions of them are cancelled. What is cached stays until it is evicted.

        Raises:
            InvalidRequest: It is the root, or one of them is pinned.
            NodeDropped: It was dropped before.
        """
        self._nodes.check(self)
        if self._parent is None:
            raise InvalidRequest("node", "the root cannot be dropped")
        self._nodes.drop(self)

    async def pin(self, *, adapters: Sequence[tuple[int, float]] | None = None) -> Prefix:
        """Computes its path, as far as it is not cached, and keeps it computed until `unpin`. Pinned twice is pinned once.

        Cancelling it pins nothing.

        Raises:
            NodeDropped: The node was dropped, before or meanwhile.
            WeftError: What `Engine.pin` raises.
        """
        self._nodes.check(self)
        engine, pins = self._nodes.engine, self._nodes.pins
        if self._id in pins:
            return pins[self._id]
        prefix = await engine.pin(self.path, adapters=adapters)
        if self.is_dropped or self._id in pins:
            await engine.unpin(prefix)
            self._nodes.check(self)
            return pins[self._id]
        pins[self._id] = prefix
        return prefix

    async def unpin(self) -> bool:
        """Lets what `pin` keeps be evicted again. False where it is not pinned.

        Raises:
            EngineStopped: The engine was closed, before or meanwhile.
        """
        if (prefix := self._nodes.pins.get(self._id)) is None:
            return False
        was_pinned = await self._nodes.engine.unpin(prefix)
        self._nodes.pins.pop(self._id, None)
        return was_pinned


def _grown(nodes: Nodes, parent: Node, piece: Piece, param: str) -> Node:
    """A child of what was given."""
    if not piece.tokens:
        raise InvalidRequest(param, "a node of one's own must hold at least one token")
    nodes.check_room(1, piece.n_bytes)
    return Node(nodes, parent, piece)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("text", "the text has a lone surrogate, which no UTF-8 has") from None
