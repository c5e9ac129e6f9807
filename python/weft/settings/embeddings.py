"""Settings of embeddings and reranking."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from weft.config import Pooling
from weft.settings.flags import Flag, FlagAlias, flag, row
from weft.settings.values import boolean, one_of, whole

__all__ = ["POOLING", "EmbeddingSettings"]

EMBEDDINGS = "embeddings and reranking"


def _rank(text: str) -> str | None:
    return "rank" if boolean(text) else None


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class EmbeddingSettings:
    """Settings of embeddings and reranking."""

    embd_normalize: int = flag(
        2,
        EMBEDDINGS,
        "--embd-normalize",
        parse=whole(-1),
        help="default normalization of embeddings: -1 none, 0 scales the largest absolute value to 16 bits, 1 taxicab, 2 "
        "Euclidean, more"
        " is the p-norm (default: 2)",
    )
    embeddings: bool = flag(
        False,
        EMBEDDINGS,
        constants={"--embedding": True, "--embeddings": True},
        parse=boolean,
        env="LLAMA_ARG_EMBEDDINGS",
        help="serve embeddings only, without text generation (default: both)",
    )
    reranking: bool = flag(
        False,
        EMBEDDINGS,
        constants={"--rerank": True, "--reranking": True},
        parse=boolean,
        env="LLAMA_ARG_RERANKING",
        help="serve reranking only, as with --pooling rank, without text generation (default: both, if the model is a reranker)",
    )


POOLING: Mapping[str, Flag] = {
    "pooling": row(
        EMBEDDINGS,
        "--pooling",
        metavar="TYPE",
        parse=one_of(*get_args(Pooling)),
        also=(FlagAlias(("--rerank", "--reranking"), value="rank"), FlagAlias((), _rank, env="LLAMA_ARG_RERANKING")),
        env="LLAMA_ARG_POOLING",
        help="pooling of token embeddings: none (one embedding per token), mean, cls (first token), last (last token), or rank "
        "(reranker"
        " score) (default: the model's own, else mean)",
    ),
}
"""Field of `EngineConfig` about pooling."""
