"""Embeddings and reranking."""

from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from weft import _native
from weft._native import CompactEmbeddings, EmbeddingStats
from weft.errors import InvalidRequestError
from weft.request import Prompt

__all__ = ["Embedding", "Embeddings", "Ranking"]


class Embeddings(msgspec.Struct, frozen=True, kw_only=True):
    """Embeddings of several texts."""

    vectors: "memoryview[float]"
    """32-bit floats of shape (rows, width), in one block: `numpy.asarray(vectors)` does not copy, `vectors.tolist()` returns
    lists. There is one row per text, or one per token without pooling."""
    starts: Sequence[int]
    """Row offsets: the rows of text `i` are `[starts[i], starts[i + 1])`."""
    n_tokens: Sequence[int]
    """Number of tokens of each text."""


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """Relevance of several texts to a query."""

    scores: "memoryview[float]"
    """32-bit relevance score of each text, in order; higher is more relevant."""
    n_tokens: Sequence[int]
    """Number of tokens of each text together with the query."""


class Embedding:
    """Embedding interface of an engine, served by a second worker with its own context over the same weights.

    Worker and context are created on first use and take no memory before. An encoder-only model has no other worker.
    """

    def _running(self) -> _native.Engine:
        raise NotImplementedError

    async def embed(self, texts: str | Sequence[Prompt], *, normalize: int = 2, dimensions: int | None = None) -> Embeddings:
        """Returns the embeddings of texts.

            answer = await engine.embed(["a fox", "a dog"])
            numpy.asarray(answer.vectors) @ numpy.asarray(answer.vectors).T

        Texts of concurrent calls are batched. Cancelling the call stops their computation. Strings are tokenized on the calling
        thread, as by `Engine.tokenize`; for a long text, pass the tokens that `Engine.async_tokenize` returns.

        Args:
            texts: One text, or several, each as a string or token ids. A list of strings, token ids and media is also one text,
                if the model supports media: `embed([["A photo of ", await engine.read_media(data)]])`.
            normalize: Normalization of each embedding: 2 is Euclidean, 1 taxicab, `p` the p-norm, 0 scales the largest absolute
                value to 32,760, and -1 disables it. Per-token rows, without pooling, are not normalized.
            dimensions: Number of leading dimensions to keep, before normalization; None is all. Useful with models trained for it
                (Matryoshka representations).

        Raises:
            InvalidRequestError: A text has no tokens or more than `embedding_stats().max_tokens`, there are no texts, their total
                exceeds 2²⁰ tokens or 2²⁴ numbers, or `normalize` or `dimensions` is out of range.
            NotSupportedError: The model is a reranker, or is an encoder and a text has media.
            QueueFullError: 2²⁰ tokens are already waiting.
            DecodeError: The model could not compute them, or memory for them or for the context is not available.
            EngineStoppedError: The engine was closed, possibly during the call.
        """
        made = await self.begin_embedding([texts] if isinstance(texts, str) else texts, normalize, dimensions)
        starts = made.starts
        vectors = memoryview(made.data()).cast("f", (starts[-1], made.width))
        return Embeddings(vectors=vectors, starts=starts, n_tokens=made.n_tokens)

    async def rerank(self, query: str, texts: Sequence[str]) -> Ranking:
        """Returns the relevance of each text to a query. Requires a reranker: a model with a classifier and pooling `rank`.

        Raises:
            InvalidRequestError: The query with a text exceeds `embedding_stats().max_tokens`, there are no texts, or their total
                exceeds 2²⁰ tokens.
            NotSupportedError: The model is not a reranker, or its pooling is not `rank`.
            QueueFullError: 2²⁰ tokens are already waiting.
            DecodeError: The model could not compute them, or memory for them or for the context is not available.
            EngineStoppedError: The engine was closed, possibly during the call.
        """
        if isinstance(texts, str):
            raise InvalidRequestError("texts", "texts is a string; it must be a sequence of strings")
        made = await self.begin_ranking(query, texts)
        return Ranking(scores=memoryview(made.data()).cast("f"), n_tokens=made.n_tokens)

    def begin_embedding(
        self, texts: Sequence[Prompt], normalize: int, dimensions: int | None
    ) -> Coroutine[Any, Any, CompactEmbeddings]:
        """First half of `embed`: tokenizes and queues the texts, on any thread, and returns an awaitable for the result.

        Raises:
            WeftError: Any error of `embed`.
        """
        return self._running().embed(texts, normalize=normalize, dimensions=dimensions)

    def begin_ranking(self, query: str, texts: Sequence[str]) -> Coroutine[Any, Any, CompactEmbeddings]:
        """First half of `rerank`: tokenizes and queues the texts, on any thread, and returns an awaitable for the result.

        Raises:
            WeftError: Any error of `rerank`.
        """
        return self._running().rerank(query, texts)

    def embedding_stats(self) -> EmbeddingStats:
        """Returns metrics and settings of embeddings."""
        return self._running().embedding_stats()
