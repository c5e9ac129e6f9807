"""The fields of llama-server's routes for vectors and reranking, by its names, Jina's and TEI's."""

from typing import Any

import msgspec

from weft.server.request_fields import Prompt
from weft.server.response_fields import TextsUsage

__all__ = ["Document", "EmbeddingBody", "OneEmbedding", "Ranked", "RankedByTei", "RankedList", "RerankBody", "TextEmbedding"]


class EmbeddingBody(msgspec.Struct):
    """`POST /embedding`. `content` is its name since 2023, `input` that of OpenAI's."""

    content: Prompt | None = None
    input: Prompt | None = None
    embd_normalize: int | None = None
    image_data: Any = None
    """Pictures for `[img-12]` in one text, as in 2024; one text beside a list, be it empty, is answered as it was then."""
    lora: Any = None


class TextEmbedding(msgspec.Struct):
    """The rows of one text: one, or one for each token."""

    index: int
    embedding: list[list[float]]


class OneEmbedding(msgspec.Struct):
    """The vector of one text, as llama-server told it in 2024."""

    embedding: list[float]


class Document(msgspec.Struct):
    """A text, in Jina's longer way."""

    text: str


class RerankBody(msgspec.Struct):
    """`POST /rerank`: Jina's fields, or TEI's, whose texts are `texts`."""

    query: str | None = None
    documents: list[str | Document] | None = None
    texts: list[str] | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    truncate: Any = None
    lora: Any = None


class Ranked(msgspec.Struct):
    """One text as Jina tells it."""

    index: int
    relevance_score: float
    document: Document | msgspec.UnsetType = msgspec.UNSET


class RankedList(msgspec.Struct):
    """Jina's answer, the best first."""

    model: str
    object: str
    usage: TextsUsage
    """Tokens of all pairs."""
    results: list[Ranked]


class RankedByTei(msgspec.Struct):
    """One text as TEI tells it; its answer is a list of these, the best first."""

    index: int
    score: float
    text: str | msgspec.UnsetType = msgspec.UNSET
