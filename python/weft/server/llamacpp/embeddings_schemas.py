"""Fields of llama-server's routes for embeddings and reranking, including Jina's and TEI's names."""

from typing import Any

import msgspec

from weft.server.request_fields.fields import Prompt
from weft.server.response_fields.texts_usage import TextsUsage


class EmbeddingBody(msgspec.Struct):
    """`POST /embedding`. `content` is llama-server's name of the texts since 2023, `input` is OpenAI's."""

    content: Prompt | None = None
    input: Prompt | None = None
    embd_normalize: int | None = None
    image_data: Any = None
    """Images for `[img-12]` in a single text, as in 2024. If present, even as an empty list, the response has the format of
    2024."""
    lora: Any = None


class TextEmbedding(msgspec.Struct):
    """The embeddings of one text: a single row, or one per token."""

    index: int
    embedding: list[list[float]]


class OneEmbedding(msgspec.Struct):
    """The embedding of one text, in llama-server's format of 2024."""

    embedding: list[float]


class Document(msgspec.Struct):
    """A text, in Jina's object form."""

    text: str


class RerankBody(msgspec.Struct):
    """`POST /rerank`: Jina's fields, or TEI's with `texts`."""

    query: str | None = None
    documents: list[str | Document] | None = None
    texts: list[str] | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    truncate: Any = None
    lora: Any = None


class Ranked(msgspec.Struct):
    """A result in Jina's format."""

    index: int
    relevance_score: float
    document: Document | msgspec.UnsetType = msgspec.UNSET


class RankedList(msgspec.Struct):
    """Jina's response, the best result first."""

    model: str
    object: str
    usage: TextsUsage
    """Tokens of all pairs."""
    results: list[Ranked]


class RankedByTei(msgspec.Struct):
    """A result in TEI's format, whose response is a list of these, the best first."""

    index: int
    score: float
    text: str | msgspec.UnsetType = msgspec.UNSET
