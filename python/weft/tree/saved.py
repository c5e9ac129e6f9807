"""JSON file format of a tree."""

import math
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec

from weft._native import Model
from weft.errors import TreeFileError
from weft.events import FinishReason, Logprob, Logprobs
from weft.tree.node import Node
from weft.tree.piece import Piece

VERSION = 1

FORMAT: Literal["weft tree"] = "weft tree"


class ModelIdentity(msgspec.Struct, frozen=True):
    """Identity of a model: its name for messages, and a digest of its metadata."""

    name: str
    digest: str


class SavedLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of one token and of the top tokens at its position; null is −∞."""

    chosen: float | None
    top: list[tuple[int, float | None]] = []


class SavedNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node with the id of its parent, which precedes it in the file."""

    id: int
    parent: int | None
    text: str
    tokens: list[int]
    logprobs: list[SavedLogprobs | None] = []
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


class SavedTree(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file. `cached` has the ids of nodes whose paths have a prefix file with the computed state."""

    format: Literal["weft tree"] = FORMAT
    version: int = VERSION
    model: ModelIdentity
    cached: list[int] = []
    nodes: list[SavedNode]


class _Version(msgspec.Struct):
    """Fields that all versions of the format have."""

    format: str
    version: int


def identity(model: Model) -> ModelIdentity:
    """Returns the identity of a model. Tokens and computed state are interchangeable between models of equal identity."""
    facts = (sorted(model.metadata().items()), model.n_vocab, model.n_params, model.size_bytes)
    return ModelIdentity(model.name or Path(model.path).name, sha256(msgspec.json.encode(facts)).hexdigest())


def cache_file(path: str, node_id: int) -> str:
    """Returns the path of the prefix file of a node's path, next to the file of its tree."""
    return f"{path}.{node_id}.kv"


def saved_node(node: Node) -> SavedNode:
    """Returns the file representation of a node."""
    is_known = any(each is not None for each in node.logprobs)
    return SavedNode(
        id=node.id,
        parent=None if node.parent is None else node.parent.id,
        text=node.text,
        tokens=list(node.tokens),
        logprobs=[None if each is None else _saved(each) for each in node.logprobs] if is_known else [],
        finish_reason=node.finish_reason,
        stop_reason=node.stop_reason,
    )


def _saved(logprobs: Logprobs) -> SavedLogprobs:
    return SavedLogprobs(_finite(logprobs.chosen.logprob), [(each.token, _finite(each.logprob)) for each in logprobs.top])


def _finite(logprob: float) -> float | None:
    return logprob if math.isfinite(logprob) else None


def pieces(nodes: Sequence[SavedNode], model: Model) -> list[Piece]:
    """Returns the contents of saved nodes, with their tokens."""
    hidden = frozenset(model.control_tokens())

    def read(token: int, logprob: float | None) -> Logprob:
        # As in the engine's events, control tokens have no text.
        spelling = b"" if token in hidden else model.token_bytes(token)
        return Logprob(token, spelling, -math.inf if logprob is None else logprob)

    def piece(node: SavedNode) -> Piece:
        logprobs = [
            None if each is None else Logprobs(read(token, each.chosen), tuple(read(*likely) for likely in each.top))
            for token, each in zip(node.tokens, node.logprobs, strict=False)
        ]
        made = Piece.from_tokens(node.tokens, node.text, logprobs)
        return msgspec.structs.replace(made, finish_reason=node.finish_reason, stop_reason=node.stop_reason)

    return list(map(piece, nodes))


def read(path: str, max_bytes: int) -> SavedTree:
    """Reads and validates a file, except for checks that require the model.

    Raises:
        TreeFileError: The file is not a tree, is of another version, or exceeds `max_bytes`.
        OSError: The file cannot be read.
    """
    with Path(path).open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise TreeFileError(path, f"it exceeds max_bytes ({max_bytes} bytes)")
    try:
        header = msgspec.json.decode(data, type=_Version)
        if header.format != FORMAT:
            raise TreeFileError(path, "it is not a tree file")
        if header.version != VERSION:
            raise TreeFileError(path, f"its version is {header.version}; only version {VERSION} is supported")
        tree = msgspec.json.decode(data, type=SavedTree)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TreeFileError(path, f"it is not a tree file: {error}") from None
    _check_shape(path, tree.nodes, tree.cached)
    return tree


def _check_shape(path: str, nodes: Sequence[SavedNode], cached: Sequence[int]) -> None:
    """Raises `TreeFileError` if the nodes are not a tree."""
    if not nodes or nodes[0].parent is not None or nodes[0].id != 0:
        raise TreeFileError(path, "its first node is not a root, which has the id 0 and no parent")
    known: set[int] = set()
    last = -1
    for node in nodes:
        if node.id <= last:
            raise TreeFileError(path, f"node {node.id} follows node {last}; ids must increase")
        if known and node.parent not in known:
            raise TreeFileError(path, f"node {node.id} has the parent {node.parent}, which does not precede it")
        if node.logprobs and len(node.logprobs) != len(node.tokens):
            raise TreeFileError(path, f"node {node.id} has {len(node.tokens)} tokens and {len(node.logprobs)} log-probabilities")
        known.add(last := node.id)
    if not nodes[0].tokens:
        raise TreeFileError(path, "its root has no tokens")
    if unknown := sorted(set(cached) - known):
        raise TreeFileError(path, f"node {unknown[0]} is listed as cached, but does not exist")


def check(path: str, tree: SavedTree, model: Model) -> None:
    """Checks that a file belongs to a model.

    Raises:
        TreeFileError: It belongs to another model; the message names both.
    """
    ours = identity(model)
    if tree.model.digest != ours.digest:
        other = "another model of that name" if tree.model.name == ours.name else f"the model {ours.name!r} here"
        raise TreeFileError(
            path, f"it was saved with the model {tree.model.name!r}, not {other}; as_text=True loads its texts without tokens"
        )
    for node in tree.nodes:
        likely = (token for each in node.logprobs if each is not None for token, _ in each.top)
        for token in (*node.tokens, *likely):
            if not 0 <= token < model.n_vocab:
                raise TreeFileError(path, f"node {node.id} has the token {token}; the vocabulary has {model.n_vocab}")
