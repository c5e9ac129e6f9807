"""The fields of `/v1/embeddings`, by OpenAI's names."""

from typing import Annotated, Any

import msgspec
from litestar.params import Parameter

from weft.server.request_fields import Prompt
from weft.server.response_fields import TextsUsage

__all__ = ["CreateEmbedding", "EmbeddingList", "EmbeddingObject"]


class CreateEmbedding(msgspec.Struct):
    """`POST /v1/embeddings`."""

    input: Prompt | None = None
    model: str | None = None
    # A word that is neither is refused with both, which msgspec would not tell of a `Literal`.
    encoding_format: Annotated[str | None, Parameter(schema_extra={"enum": ["float", "base64", None]})] = None
    dimensions: int | None = None
    user: str | None = None
    embd_normalize: int | None = None
    lora: Any = None


class EmbeddingObject(msgspec.Struct):
    """The vector of one text: numbers, or the base64 of 32-bit floats, the lowest byte first."""

    object: str
    embedding: list[float] | str
    index: int
    encoding_format: str | msgspec.UnsetType = msgspec.UNSET


class EmbeddingList(msgspec.Struct):
    """The vectors of all texts, in their order."""

    object: str
    data: list[EmbeddingObject]
    model: str
    usage: TextsUsage
