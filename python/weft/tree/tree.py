"""A tree of texts."""

import asyncio
import os
from collections.abc import Sequence
from typing import Self

from weft.drawing.figure import DEFAULT_DRAWN
from weft.engine import Engine
from weft.errors import InvalidRequest, TreeFull
from weft.tree import saved
from weft.tree.node import Node
from weft.tree.nodes import Nodes
from weft.tree.picture import Format, draw
from weft.tree.piece import Given, Piece

__all__ = ["MAX_BYTES", "MAX_CACHE_FILES", "MAX_NODES", "Tree"]

MAX_NODES = 10_000
"""Most nodes of a tree, where nothing else is said."""

MAX_BYTES = 256 * 1024 * 1024
"""Most that its nodes take, where nothing else is said: a million tokens, or half as many with their log-probabilities."""

MAX_CACHE_FILES = 64
"""Most paths whose computed state is saved with a tree: each file holds the whole of its path."""


class Tree:
    """Texts that begin alike, over one engine.

        tree = weft.Tree(engine, "Once upon a time,")
        for node in await tree.root.extend(n=8, max_tokens=16):
            print(node.id, node.logprob, node.text)
        best = max(tree.root.children, key=lambda node: node.logprob or 0)
        await best.append(" But then").extend(n=4, max_tokens=32)

    A node holds what it adds to its parent. Whatever is extended, what is cached of its path is not computed again: of a path
    that was written in the tree, one token is. Its methods are called on one event loop; any number of nodes may be extended at
    once.

    Args:
        engine: A running engine. Several trees may be over one.
        prompt: What all texts begin with: the root. A text is tokenized as `Engine.generate` does, on this thread.
        max_nodes: Most nodes, those that are being written included.
        max_bytes: Most bytes of all nodes, as they are counted here: 1,024 for each, 192 for each token, 144 for each
            log-probability and twice the bytes of its token, and 6 for each character.

    Raises:
        InvalidRequest: The prompt holds no tokens, or something that is none; or a bound is below 1.
        TreeFull: The prompt alone takes more.
        EngineStopped: The engine was closed.
    """

    def __init__(
        self, engine: Engine, prompt: str | Sequence[int], *, max_nodes: int = MAX_NODES, max_bytes: int = MAX_BYTES
    ) -> None:
        tokens = engine.tokenize(prompt) if isinstance(prompt, str) else prompt
        if not tokens:
            raise InvalidRequest("prompt", "the prompt of a tree must hold at least one token")
        root = Piece.given(tokens, prompt if isinstance(prompt, str) else engine.detokenize(prompt))
        self._plant(engine, [Given(0, None, root)], max_nodes, max_bytes)

    def _plant(self, engine: Engine, given: Sequence[Given], max_nodes: int, max_bytes: int) -> None:
        """The nodes that there are at first, the root before all others."""
        for name, bound in {"max_nodes": max_nodes, "max_bytes": max_bytes}.items():
            if bound < 1:
                raise InvalidRequest(name, f"{name} is {bound}; it must be 1 or more")
        self._nodes = Nodes(engine, max_nodes=max_nodes, max_bytes=max_bytes)
        known: dict[int, Node] = {}
        for node_id, parent, piece in given:
            self._nodes.check_room(1, piece.n_bytes)
            known[node_id] = Node(self._nodes, None if parent is None else known[parent], piece, node_id)
        self._root = known[given[0].id]

    @property
    def engine(self) -> Engine:
        """What it is over."""
        return self._nodes.engine

    @property
    def root(self) -> Node:
        """The prompt."""
        return self._root

    @property
    def nodes(self) -> list[Node]:
        """Every node, in the order of their ids: parents before their children."""
        return self._nodes.all()

    @property
    def leaves(self) -> list[Node]:
        """Every node that nothing continues."""
        return [node for node in self._nodes.all() if not node.children]

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, node_id: int) -> Node:
        """The node with this id.

        Raises:
            KeyError: There is none, or it was dropped.
        """
        if (node := self._nodes.get(node_id)) is None:
            raise KeyError(node_id)
        return node

    @property
    def n_bytes(self) -> int:
        """What the nodes take, as `max_bytes` counts it."""
        return self._nodes.n_bytes

    @property
    def n_computed(self) -> int:
        """Tokens of paths that were computed for what has been written."""
        return self._nodes.n_computed

    @property
    def n_cached(self) -> int:
        """Tokens of paths that were found computed, over all that has been written."""
        return self._nodes.n_cached

    @property
    def n_predicted(self) -> int:
        """Tokens that were drawn."""
        return self._nodes.n_predicted

    def picture(self, format: Format = "svg", *, limit: int = DEFAULT_DRAWN) -> str:  # noqa: A002 (as in `GET /cache`)
        """The tree, drawn: each node with its text, cut, its id, its length and its log-probability.

        Args:
            format: "svg", readable on light and dark pages, or "dot" for Graphviz.
            limit: Most nodes that are drawn, those nearest to the root; the picture says how many more there are. 1 to 1,000.

        Raises:
            InvalidRequest: `format` is another, or `limit` is out of range.
        """
        return draw(self.nodes, format, limit)

    async def save(
        self,
        path: str | os.PathLike[str],
        *,
        with_cache: bool | Sequence[Node] = False,
        adapters: Sequence[tuple[int, float]] | None = None,
    ) -> None:
        """Writes the tree to a file, as JSON, which `load` takes.

        It is as the tree was when this was called. Cancelling it leaves the file as it was, unless that is being written by then;
        files of what was computed may be there.

        Args:
            path: The file; one that is there is replaced at the end.
            with_cache: The nodes whose paths are saved in computed state too, each in a file beside it (`PATH.ID.kv`) that holds
                all of the path; True is every leaf. What is not cached of them is computed first.
            adapters: Which adapters that is computed with, as in `Request`.

        Raises:
            InvalidRequest: A node of `with_cache` is not in the tree, or they are more than 64.
            WeftError: What `Engine.save_prefix` raises.
            OSError: A file cannot be written.
        """
        file = os.fspath(path)
        chosen = (self.leaves if with_cache else []) if isinstance(with_cache, bool) else list(with_cache)
        if strange := [node for node in chosen if self._nodes.get(node.id) is not node]:
            raise InvalidRequest("with_cache", f"node {strange[0].id} is not in the tree")
        if len(chosen) > MAX_CACHE_FILES:
            raise InvalidRequest(
                "with_cache", f"the paths of {len(chosen)} nodes would be saved; at most {MAX_CACHE_FILES} may be: name them"
            )
        paths = {node.id: node.path for node in chosen}
        model = self.engine.model
        nodes = [saved.saved_node(Given(node.id, _parent_id(node), node.piece)) for node in self.nodes]
        tree = saved.SavedTree(model=saved.identity(model), cached=sorted(paths), nodes=nodes)
        for node_id, tokens in paths.items():
            await self.engine.save_prefix(tokens, saved.cache_file(file, node_id), adapters=adapters)
        await asyncio.to_thread(saved.write, file, tree)

    @classmethod
    async def load(
        cls,
        engine: Engine,
        path: str | os.PathLike[str],
        *,
        as_text: bool = False,
        with_cache: bool = True,
        max_nodes: int = MAX_NODES,
        max_bytes: int = MAX_BYTES,
    ) -> Self:
        """Reads what `save` has written. The nodes keep their ids; none is pinned.

        Args:
            engine: A running engine, with the model that it was saved with.
            path: The file.
            as_text: Takes the texts and tokenizes them anew, for any model; log-probabilities and computed state are left.
            with_cache: Whether what was saved in computed state is brought back into the engine's cache.
            max_nodes: As in `Tree`.
            max_bytes: As in `Tree`, and of the file.

        Raises:
            TreeFileError: It is no tree, of another version or of another model.
            TreeFull: It has more nodes, or takes more bytes.
            WeftError: What `Engine.load_prefix` raises.
            OSError: A file cannot be read.
        """
        file = os.fspath(path)
        read = await asyncio.to_thread(saved.decoded, file, max_bytes)
        if len(read.nodes) > max_nodes:
            raise TreeFull(max_nodes, "nodes")
        if not as_text:
            await asyncio.to_thread(saved.check, file, read, engine.model)
        given = await asyncio.to_thread(_tokenized if as_text else _given, read, engine)
        tree = cls.__new__(cls)
        tree._plant(engine, given, max_nodes, max_bytes)  # noqa: SLF001 (of its own class)
        if with_cache and not as_text:
            for node_id in read.cached:
                await engine.load_prefix(saved.cache_file(file, node_id))
        return tree


def _given(tree: saved.SavedTree, engine: Engine) -> list[Given]:
    """The nodes in the tokens that the file has."""
    model = engine.model
    hidden = frozenset(model.control_tokens())
    return [Given(node.id, node.parent, saved.piece(node, model, hidden)) for node in tree.nodes]


def _tokenized(tree: saved.SavedTree, engine: Engine) -> list[Given]:
    """The same in the tokens that an engine reads their texts in."""
    model = engine.model
    root, *others = tree.nodes
    rest = [
        Given(node.id, node.parent, Piece.given(model.tokenize_on(node.text, parse_special=False), node.text)) for node in others
    ]
    return [Given(root.id, None, Piece.given(model.tokenize(root.text), root.text)), *rest]


def _parent_id(node: Node) -> int | None:
    return None if node.parent is None else node.parent.id
