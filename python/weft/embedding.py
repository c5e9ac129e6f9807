"""Vectors of texts, and how well texts answer a query."""

from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from weft import _native
from weft._native import CompactEmbeddings, VectorStats
from weft.errors import InvalidRequest
from weft.request import Prompt

__all__ = ["Embedding", "Embeddings", "Ranking"]


class Embeddings(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors of some texts."""

    vectors: "memoryview[float]"
    """32-bit floats of the shape (rows, width), in one block: `numpy.asarray(vectors)` copies nothing, `vectors.tolist()` makes
    lists. Row `i` is text `i`; where nothing is pooled, each token has a row."""
    starts: Sequence[int]
    """The rows of text `i` are `[starts[i], starts[i + 1])`."""
    n_tokens: Sequence[int]
    """Tokens of each text."""


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """How well some texts answer a query."""

    scores: "memoryview[float]"
    """A 32-bit float for each text, in their order; the better it answers, the greater."""
    n_tokens: Sequence[int]
    """Tokens of each text together with the query."""


class Embedding:
    """What an engine does beside writing: a second worker, with a context of its own over the same weights.

    Both are made when they are first needed, and take no memory before; an encoder has no other.
    """

    def _running(self) -> _native.Engine:
        raise NotImplementedError

    async def embed(self, texts: str | Sequence[Prompt], *, normalize: int = 2, dimensions: int | None = None) -> Embeddings:
        """The vectors of texts.

            answer = await engine.embed(["a fox", "a dog"])
            numpy.asarray(answer.vectors) @ numpy.asarray(answer.vectors).T

        Texts of several calls are computed together. Cancelling it computes no more of them. A text is tokenized here, on this
        thread, as `Engine.tokenize` does it; for a long one, give the tokens that `Engine.async_tokenize` returns.

        Args:
            texts: One text, or several, each as a string or as token ids. A list of strings, token ids and media is one text too,
                where the model reads pictures or sounds: `embed([["A photo of ", await engine.read_media(data)]])`.
            normalize: What is made 1 of each vector: 2 its length, 1 the sum of its numbers without their signs, `p` its p-norm.
                0 makes 32,760 of its largest number, -1 nothing. Rows of tokens, where nothing is pooled, stay as they are.
            dimensions: How many numbers of each vector are kept, before it is normalized; None is all. It has a meaning for
                models that were trained for it.

        Raises:
            InvalidRequest: A text has no token or more than `vector_stats().max_tokens`, there is none, or they are too many:
                2²⁰ tokens and 2²⁴ numbers in all. Or `normalize` or `dimensions` are out of range.
            NotSupported: The model ranks texts, or is an encoder and a text has media.
            QueueFull: 2²⁰ tokens wait already.
            DecodeError: The model could not compute them, or there is not as much memory free as they or the context would take.
            EngineStopped: The engine was closed, before or meanwhile.
        """
        made = await self.begin_embedding([texts] if isinstance(texts, str) else texts, normalize, dimensions)
        starts = made.starts
        vectors = memoryview(made.data()).cast("f", (starts[-1], made.width))
        return Embeddings(vectors=vectors, starts=starts, n_tokens=made.n_tokens)

    async def rerank(self, query: str, texts: Sequence[str]) -> Ranking:
        """How well each of the texts answers a query, by a reranker: a model with a classifier, whose pooling is `rank`.

        Raises:
            InvalidRequest: The query with a text has more than `vector_stats().max_tokens`, there is no text, or they have more
                than 2²⁰ tokens together.
            NotSupported: The model is no reranker, or its pooling is another.
            QueueFull: 2²⁰ tokens wait already.
            DecodeError: The model could not compute them, or there is not as much memory free as they or the context would take.
            EngineStopped: The engine was closed, before or meanwhile.
        """
        if isinstance(texts, str):
            raise InvalidRequest("texts", "texts is a string; it must be a sequence of strings")
        made = await self.begin_ranking(query, texts)
        return Ranking(scores=memoryview(made.data()).cast("f"), n_tokens=made.n_tokens)

    def begin_embedding(
        self, texts: Sequence[Prompt], normalize: int, dimensions: int | None
    ) -> Coroutine[Any, Any, CompactEmbeddings]:
        """`embed` in two parts: this reads the texts, on whatever thread, and what it returns is to be awaited."""
        return self._running().embed(texts, normalize=normalize, dimensions=dimensions)

    def begin_ranking(self, query: str, texts: Sequence[str]) -> Coroutine[Any, Any, CompactEmbeddings]:
        """`rerank` in two parts, likewise."""
        return self._running().rerank(query, texts)

    def vector_stats(self) -> VectorStats:
        """What was computed of vectors, and what they are made with."""
        return self._running().vector_stats()
