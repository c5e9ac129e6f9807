"""Settings of embeddings and reranking."""

from dataclasses import dataclass

from weft.config import EngineConfig
from weft.settings.flags import FlagAlias, field_flags, flag, row
from weft.settings.values import boolean, whole

__all__ = ["POOLING", "EmbeddingSettings"]


def _rank(text: str) -> str | None:
    return "rank" if boolean(text) else None


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class EmbeddingSettings:
    """Settings of embeddings and reranking."""

    embd_normalize: int = flag(
        2,
        "--embd-normalize",
        parse=whole(-1),
        help="default normalization of embeddings: -1 none, 0 scales the largest absolute value to 16 bits, 1 taxicab, 2"
        " Euclidean, more is the p-norm (default: 2)",
    )
    embeddings: bool = flag(
        False,
        constants={"--embedding": True, "--embeddings": True},
        env="LLAMA_ARG_EMBEDDINGS",
        help="serve embeddings only, without text generation (default: both)",
    )
    reranking: bool = flag(
        False,
        constants={"--rerank": True, "--reranking": True},
        env="LLAMA_ARG_RERANKING",
        help="serve reranking only, as with --pooling rank, without text generation (default: both, if the model is a reranker)",
    )


POOLING = field_flags(
    EngineConfig,
    pooling=row(
        "--pooling",
        also=(FlagAlias(("--rerank", "--reranking"), value="rank"), FlagAlias((), _rank, env="LLAMA_ARG_RERANKING")),
        env="LLAMA_ARG_POOLING",
    ),
)
"""Flag of pooling."""
