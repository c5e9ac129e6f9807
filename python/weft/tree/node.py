"""Nodes of a tree."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, Unpack

import msgspec

from weft._native import Prefix
from weft.errors import InvalidRequestError
from weft.request import RequestOptions
from weft.tree.extension import Extension
from weft.tree.nodes import Nodes
from weft.tree.piece import Piece
from weft.tree.token_boundary import cut, token_bytes


class Node(Piece, frozen=True, kw_only=True, eq=False, weakref=True):
    """A segment of text in a [`Tree`][weft.Tree], which creates all nodes.

    Its content is immutable: `edit` and `extend` create other nodes. A dropped node still has its content; its other methods
    raise `NodeDroppedError`.
    """

    _nodes: Nodes
    id: int
    """Number of the node from 0, in order of creation. It is preserved in files, and not reused after a drop."""
    parent: "Node | None"
    """Node that this one continues; None for the root."""
    depth: int
    """Number of ancestors; 0 for the root."""

    @classmethod
    def create(cls, nodes: Nodes, parent: "Node | None", piece: Piece, least_id: int = 0) -> "Node":
        """Adds a node to a tree, with the next id from `least_id` on. The caller has checked the limits."""
        depth = 0 if parent is None else parent.depth + 1
        content = msgspec.structs.asdict(piece)
        node = cls(**content, _nodes=nodes, id=nodes.next_id(least_id), parent=parent, depth=depth)
        nodes.add(node)
        return node

    @property
    def children(self) -> "tuple[Node, ...]":
        """Nodes that continue this one, in order of creation."""
        return self._nodes.children(self.id)

    @property
    def logprob(self) -> float | None:
        """Natural logarithm of the probability of its tokens, given all previous tokens; None if that of any token is unknown."""
        known = [each.chosen.logprob for each in self.logprobs if each is not None]
        return sum(known) if len(known) == len(self.tokens) else None

    @property
    def ancestors(self) -> "list[Node]":
        """Nodes from the root to this one, inclusive."""
        found: list[Node] = [self]
        while (parent := found[-1].parent) is not None:
            found.append(parent)
        return found[::-1]

    @property
    def path(self) -> list[int]:
        """Tokens from the root to the end of this node, which `extend` continues."""
        return [token for node in self.ancestors for token in node.tokens]

    @property
    def path_text(self) -> str:
        """Text from the root to the end of this node."""
        return "".join(node.text for node in self.ancestors)

    @property
    def is_dropped(self) -> bool:
        """True if the node is no longer in its tree."""
        return self.id not in self._nodes.by_id

    @property
    def is_pinned(self) -> bool:
        """True if `pin` keeps its path cached. When the engine sleeps, all pins are lost."""
        return self.id in self._nodes.pins

    def __repr__(self) -> str:
        return f"<Node {self.id}: {len(self.tokens)} tokens, {self.text[:40]!r}>"

    async def extend(self, *, keep_partial: bool = False, **options: Unpack[RequestOptions]) -> "list[Node]":
        """Generates `n` branches that continue the node, and returns them as children, in order.

            children = await tree.root.extend(n=8, max_tokens=64, temperature=1.1)

        The part of the path that is not cached is computed once for all of them. Several nodes may be extended concurrently.
        Branches wait for free slots; only the beams of a search need theirs simultaneously. Cancelling the call frees the slots;
        branches that have finished remain.

        Args:
            keep_partial: Makes children of unfinished branches too, if the call is cancelled.
            **options: Fields of a request. The default of `logprobs` is 1.

        Raises:
            NodeDroppedError: The node was dropped, possibly during the call.
            TreeFullError: The children exceed a limit of the tree; unfinished branches are cancelled.
            WeftError: Any error of `Engine.complete`; branches that have finished remain.
        """
        async with self.stream(keep_partial=keep_partial, **options) as extension:
            return await extension.finish()

    def stream(self, *, keep_partial: bool = False, **options: Unpack[RequestOptions]) -> Extension:
        """Starts what `extend` does and returns immediately, to read the events of the branches as they come.

        Raises:
            InvalidRequestError: `suffix_prompt` is set.
            NodeDroppedError: The node was dropped.
            TreeFullError: The children exceed a limit of the tree.
            WeftError: Any error of `Engine.stream`.
        """
        self._nodes.check(self)
        # Values of the wrong type are left to the engine's validation.
        given: Any = options.get("branches")
        branches = given if isinstance(given, Sequence) else ()
        all_options: list[Any] = [options, *branches]
        if any(isinstance(each, Mapping) and each.get("suffix_prompt") for each in all_options):
            raise InvalidRequestError(
                "suffix_prompt", "suffix_prompt is not supported for nodes; append the text as a node, and extend that"
            )
        n = len(branches) or options.get("n", 1)
        if isinstance(n, int):
            self._nodes.check_limits(n)
        options.setdefault("logprobs", 1)
        stream = self._nodes.engine.stream(self.path, **options)
        return Extension(self, self._nodes, stream, n, partial(Node.create, self._nodes, self), keep_partial=keep_partial)

    def append(self, given: str | Sequence[int], *, parse_special: bool = False) -> "Node":
        """Adds a child with a given text or given tokens. Nothing is computed until it is extended.

        A string is tokenized separately, without BOS and leading space, so that no token spans the boundary. It is tokenized on
        this thread, as by `Engine.tokenize`.

        Args:
            given: A text, or token ids.
            parse_special: Parses the spelling of a control token in a text as that token.

        Raises:
            InvalidRequestError: The content has no tokens or the wrong type.
            NodeDroppedError: The node was dropped.
            TreeFullError: The child exceeds a limit of the tree.
        """
        self._nodes.check(self)
        model = self._nodes.engine.model
        if isinstance(given, str):
            _check_text(given)
            tokens = model.tokenize_on(given, parse_special=parse_special)
            return _add_child(self._nodes, self, Piece.from_tokens(tokens, given), "given")
        return _add_child(self._nodes, self, Piece.from_tokens(given, model.detokenize(given)), "given")

    def edit(self, at: int, text: str, *, unit: Literal["token", "byte"] = "token") -> "Node":
        """Adds a sibling that has the beginning of this node's text, followed by another text.

        The common tokens are reused, so extending the sibling computes only the tokens after them. This node and its children are
        unchanged.

        Args:
            at: Length of the common beginning in `unit`, from 0 to the whole node.
            text: Text after it; may be empty.
            unit: Tokens, or bytes of its tokens' spelling; the rest of a token that is cut is tokenized with `text`.

        Raises:
            InvalidRequestError: The node is the root, `at` is out of range, or the sibling would be empty.
            NodeDroppedError: The node was dropped.
            TreeFullError: The sibling exceeds a limit of the tree.
        """
        self._nodes.check(self)
        if self.parent is None:
            raise InvalidRequestError("node", "the root cannot be edited; create a tree for another prompt")
        _check_text(text)
        model = self._nodes.engine.model
        if unit == "byte":
            n_all, (n_kept, rest) = len(token_bytes(model, self.tokens)), cut(model, self.tokens, max(at, 0))
        elif unit == "token":
            n_all, (n_kept, rest) = len(self.tokens), (at, b"")
        else:
            raise InvalidRequestError("unit", f"unit is {unit!r}; it must be 'token' or 'byte'")
        if not 0 <= at <= n_all:
            raise InvalidRequestError("at", f"at is {at}; the node has {n_all} {unit}s")
        kept, new = self.tokens[:n_kept], rest + text.encode()
        tokens = [*kept, *(model.tokenize_on(new, parse_special=False) if new else [])]
        new_text = (token_bytes(model, kept) + new).decode(errors="replace")
        return _add_child(self._nodes, self.parent, Piece.from_tokens(tokens, new_text, self.logprobs[:n_kept]), "text")

    def drop(self) -> None:
        """Removes the node and its descendants from the tree and cancels extensions of them. Cached prefixes are unaffected.

        Raises:
            InvalidRequestError: The node is the root, or one of them is pinned.
            NodeDroppedError: The node was dropped before.
        """
        self._nodes.check(self)
        if self.parent is None:
            raise InvalidRequestError("node", "the root cannot be dropped")
        self._nodes.drop(self)

    async def pin(self, *, adapters: Sequence[tuple[int, float]] | None = None) -> Prefix:
        """Computes the part of its path that is not cached, and keeps the path cached until `unpin`. Idempotent.

        Cancelling the call pins nothing.

        Raises:
            NodeDroppedError: The node was dropped, possibly during the call.
            WeftError: Any error of `Engine.pin`.
        """
        self._nodes.check(self)
        engine, pins = self._nodes.engine, self._nodes.pins
        if self.id in pins:
            return pins[self.id]
        prefix = await engine.pin(self.path, adapters=adapters)
        if self.is_dropped or self.id in pins:
            await engine.unpin(prefix)
            self._nodes.check(self)
            return pins[self.id]
        pins[self.id] = prefix
        return prefix

    async def unpin(self) -> bool:
        """Unpins the path, so that it may be evicted. Returns False if it is not pinned.

        Raises:
            EngineStoppedError: The engine was closed, possibly during the call.
        """
        if (prefix := self._nodes.pins.get(self.id)) is None:
            return False
        was_pinned = await self._nodes.engine.unpin(prefix)
        self._nodes.pins.pop(self.id, None)
        return was_pinned


def _add_child(nodes: Nodes, parent: Node, piece: Piece, param: str) -> Node:
    """Adds a child that was not generated."""
    if not piece.tokens:
        raise InvalidRequestError(param, "a new node must have at least one token")
    nodes.check_limits(1, piece.n_bytes)
    return Node.create(nodes, parent, piece)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError("text", "the text has a lone surrogate, which UTF-8 cannot encode") from None
