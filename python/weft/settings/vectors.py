"""Vectors of texts, and reranking."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from weft.config import Pooling
from weft.settings.flags import Flag, Way, flag, row
from weft.settings.values import boolean, one_of, whole

__all__ = ["POOLING", "VectorSettings"]

VECTORS = "embeddings and reranking"


def _rank(text: str) -> str | None:
    return "rank" if boolean(text) else None


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class VectorSettings:
    """Vectors of texts, and reranking."""

    embd_normalize: int = flag(
        2,
        VECTORS,
        "--embd-normalize",
        parse=whole(-1),
        help="how vectors are scaled where a request does not say: -1 not at all, 0 to 16 bits, 1 by the sum of their numbers,"
        " 2 by their length, more by their p-norm (default: 2)",
    )
    embeddings: bool = flag(
        False,
        VECTORS,
        constants={"--embedding": True, "--embeddings": True},
        parse=boolean,
        env="LLAMA_ARG_EMBEDDINGS",
        help="make vectors only, and continue no text (default: both)",
    )
    reranking: bool = flag(
        False,
        VECTORS,
        constants={"--rerank": True, "--reranking": True},
        parse=boolean,
        env="LLAMA_ARG_RERANKING",
        help="rank texts only, as with --pooling rank, and continue no text (default: both, where the model is a reranker)",
    )


POOLING: Mapping[str, Flag] = {
    "pooling": row(
        VECTORS,
        "--pooling",
        metavar="TYPE",
        parse=one_of(*get_args(Pooling)),
        also=(Way(("--rerank", "--reranking"), value="rank"), Way((), _rank, env="LLAMA_ARG_RERANKING")),
        env="LLAMA_ARG_POOLING",
        help="what becomes of the vectors of a text's tokens: none keeps them, mean is their mean, cls the first, last the last"
        " one, rank scores texts by a reranker (default: as the model says, else mean)",
    ),
}
"""A field of `EngineConfig`."""
