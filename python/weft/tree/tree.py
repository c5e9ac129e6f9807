"""Trees of texts."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec

from weft._native import Model
from weft.drawing.figure import DEFAULT_DRAWN
from weft.engine import Engine
from weft.errors import InvalidRequestError, TreeFullError
from weft.fields.validation import check_range
from weft.tree import saved
from weft.tree.node import Node
from weft.tree.nodes import Nodes
from weft.tree.picture import Format, draw
from weft.tree.piece import Piece
from weft.work.files import write_atomically

MAX_NODES = 10_000
"""Default maximum number of nodes."""

MAX_BYTES = 256 * 1024 * 1024
"""Default maximum size of all nodes in bytes: a million tokens, or half as many with log-probabilities."""

MAX_CACHE_FILES = 64
"""Maximum paths whose computed state is saved with a tree; each file holds the state of its whole path."""


class Tree:
    """Texts with common prefixes, over one engine.

        tree = weft.Tree(engine, "Once upon a time,")
        for node in await tree.root.extend(n=8, max_tokens=16):
            print(node.id, node.logprob, node.text)
        best = max(tree.root.children, key=lambda node: node.logprob or 0)
        await best.append(" But then").extend(n=4, max_tokens=32)

    A node holds the text that it adds to its parent. Extending a node computes only the part of its path that is not cached; for
    a path that was generated in the tree, that is one token. The methods must be called on one event loop; any number of nodes
    may be extended concurrently.

    Args:
        engine: A running engine. Several trees may share one.
        prompt: Common prefix of all texts, held by the root. A string is tokenized as by `Engine.stream`, on this thread.
        max_nodes: Maximum number of nodes, including nodes that are being generated.
        max_bytes: Maximum estimated size of all nodes: 1,024 bytes for each, 192 per token, 144 plus twice the bytes of its token
            per log-probability, and 6 per character.

    Raises:
        InvalidRequestError: The prompt has no tokens or the wrong type, or a limit is below 1.
        TreeFullError: The prompt alone exceeds a limit.
        EngineStoppedError: The engine was closed.
    """

    def __init__(
        self, engine: Engine, prompt: str | Sequence[int], *, max_nodes: int = MAX_NODES, max_bytes: int = MAX_BYTES
    ) -> None:
        tokens = engine.tokenize(prompt) if isinstance(prompt, str) else prompt
        if not tokens:
            raise InvalidRequestError("prompt", "the prompt of a tree must have at least one token")
        root = Piece.from_tokens(tokens, prompt if isinstance(prompt, str) else engine.detokenize(prompt))
        self._create_nodes(engine, [(0, None, root)], max_nodes, max_bytes)

    def _create_nodes(
        self, engine: Engine, contents: Sequence[tuple[int, int | None, Piece]], max_nodes: int, max_bytes: int
    ) -> None:
        """Creates the initial nodes, the root first: the id of each, of its parent, and its content."""
        check_range("max_nodes", max_nodes, 1)
        check_range("max_bytes", max_bytes, 1)
        self._nodes = Nodes(engine, max_nodes=max_nodes, max_bytes=max_bytes)
        known: dict[int, Node] = {}
        for node_id, parent, piece in contents:
            self._nodes.check_limits(1, piece.n_bytes)
            known[node_id] = Node.create(self._nodes, None if parent is None else known[parent], piece, node_id)
        self.engine = engine
        """Engine that computes the tree."""
        self.root = next(iter(known.values()))
        """Node of the prompt."""

    @classmethod
    def from_pieces(
        cls, engine: Engine, contents: Sequence[tuple[int, int | None, Piece]], *, max_nodes: int, max_bytes: int
    ) -> Self:
        """Creates a tree from the content of its nodes; for modules that read trees from files.

        Args:
            engine: A running engine.
            contents: Id, id of the parent, and content of each node, the root first and parents before their children.
            max_nodes: Limit as in `Tree`.
            max_bytes: Limit as in `Tree`.

        Raises:
            TreeFullError: The nodes exceed a limit.
        """
        tree = cls.__new__(cls)
        tree._create_nodes(engine, contents, max_nodes, max_bytes)  # noqa: SLF001 (same class)
        return tree

    @property
    def nodes(self) -> list[Node]:
        """All nodes in the order of ids: parents before their children."""
        return list(self._nodes.by_id.values())

    @property
    def leaves(self) -> list[Node]:
        """All nodes without children."""
        return [node for node in self.nodes if not node.children]

    def __len__(self) -> int:
        return len(self._nodes.by_id)

    def __getitem__(self, node_id: int) -> Node:
        """Returns the node with this id.

        Raises:
            KeyError: No node has this id, or it was dropped.
        """
        return self._nodes.by_id[node_id]

    @property
    def n_bytes(self) -> int:
        """Estimated size of all nodes in bytes, as for `max_bytes`."""
        return self._nodes.n_bytes

    @property
    def n_computed(self) -> int:
        """Prompt tokens that were computed, summed over all generated branches."""
        return self._nodes.n_computed

    @property
    def n_cached(self) -> int:
        """Prompt tokens that were reused from the cache, summed over all generated branches."""
        return self._nodes.n_cached

    @property
    def n_predicted(self) -> int:
        """Generated tokens."""
        return self._nodes.n_predicted

    def picture(self, format: Format = "svg", *, limit: int = DEFAULT_DRAWN) -> str:  # noqa: A002 (as in `GET /cache`)
        """Draws the tree: each node with its truncated text, id, length and log-probability.

        Args:
            format: "svg", readable on light and dark pages, or "dot" for Graphviz.
            limit: Maximum number of drawn nodes, 1 to 1,000. Nodes nearest to the root are drawn; the drawing has the number of
                the others.

        Raises:
            InvalidRequestError: `format` is unknown, or `limit` is out of range.
        """
        return draw(self.nodes, format, limit)

    async def save(
        self,
        path: str | os.PathLike[str],
        *,
        with_cache: bool | Sequence[Node] = False,
        adapters: Sequence[tuple[int, float]] | None = None,
    ) -> None:
        """Writes the tree to a JSON file, for `load`.

        Saves the state of the tree at the time of the call. Cancelling the call leaves an existing file unchanged, unless it is
        already being replaced; files of computed state may remain.

        Args:
            path: Path of the file; an existing file is replaced when the new one is complete.
            with_cache: Nodes whose paths are also saved in computed state, each as one prefix file (`PATH.ID.kv`) that holds the
                whole path; True is every leaf. The parts that are not cached are computed first.
            adapters: Adapters for the computation, as in `Request`.

        Raises:
            InvalidRequestError: A node of `with_cache` is not in the tree, or there are more than 64.
            WeftError: Any error of `Engine.save_prefix`.
            OSError: A file cannot be written.
        """
        file = os.fspath(path)
        chosen = (self.leaves if with_cache else []) if isinstance(with_cache, bool) else list(with_cache)
        if foreign := [node for node in chosen if self._nodes.by_id.get(node.id) is not node]:
            raise InvalidRequestError("with_cache", f"node {foreign[0].id} is not in the tree")
        if len(chosen) > MAX_CACHE_FILES:
            raise InvalidRequestError(
                "with_cache",
                f"with_cache selects {len(chosen)} nodes; at most {MAX_CACHE_FILES} paths can be saved: list fewer nodes",
            )
        paths = {node.id: node.path for node in chosen}
        model = self.engine.model
        nodes = list(map(saved.saved_node, self.nodes))
        tree = saved.SavedTree(model=saved.identity(model), cached=sorted(paths), nodes=nodes)
        for node_id, tokens in paths.items():
            await self.engine.save_prefix(tokens, saved.cache_file(file, node_id), adapters=adapters)
        await asyncio.to_thread(write_atomically, Path(file), msgspec.json.encode(tree))

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
        """Reads a file of `save`. Nodes keep their ids; none is pinned.

        Args:
            engine: A running engine, with the model that the tree was saved with.
            path: Path of the file.
            as_text: Loads and tokenizes the texts only, for any model; drops log-probabilities and computed state.
            with_cache: Loads saved computed state into the engine's cache.
            max_nodes: Limit as in `Tree`.
            max_bytes: Limit as in `Tree`, also for the size of the file.

        Raises:
            TreeFileError: The file is not a tree, or is of another version or another model.
            TreeFullError: The tree exceeds `max_nodes` or `max_bytes`.
            WeftError: Any error of `Engine.load_prefix`.
            OSError: A file cannot be read.
        """
        file = os.fspath(path)
        read = await asyncio.to_thread(saved.read, file, max_bytes)
        if len(read.nodes) > max_nodes:
            raise TreeFullError(max_nodes, "nodes")
        if not as_text:
            await asyncio.to_thread(saved.check, file, read, engine.model)
        pieces = await asyncio.to_thread(_retokenized if as_text else saved.pieces, read.nodes, engine.model)
        contents = [(node.id, node.parent, piece) for node, piece in zip(read.nodes, pieces, strict=True)]
        tree = cls.from_pieces(engine, contents, max_nodes=max_nodes, max_bytes=max_bytes)
        if with_cache and not as_text:
            for node_id in read.cached:
                await engine.load_prefix(saved.cache_file(file, node_id))
        return tree


def _retokenized(nodes: Sequence[saved.SavedNode], model: Model) -> list[Piece]:
    """Returns the contents of nodes, with texts tokenized for this model."""
    root, *others = nodes
    rest = [Piece.from_tokens(model.tokenize_on(node.text, parse_special=False), node.text) for node in others]
    return [Piece.from_tokens(model.tokenize(root.text), root.text), *rest]
