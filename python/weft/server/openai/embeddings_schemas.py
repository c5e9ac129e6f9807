"""Fields of `/v1/embeddings`, with OpenAI's names."""

from typing import Annotated, Any

import msgspec
from litestar.params import Parameter

from weft.server.request_fields.fields import Prompt
from weft.server.response_fields.texts_usage import TextsUsage


class CreateEmbedding(msgspec.Struct):
    """`POST /v1/embeddings`."""

    input: Prompt | None = None
    model: str | None = None
    # Not a `Literal`: msgspec's message about a wrong value would not list the valid ones.
    encoding_format: Annotated[str | None, Parameter(schema_extra={"enum": ["float", "base64", None]})] = None
    dimensions: int | None = None
    user: str | None = None
    embd_normalize: int | None = None
    lora: Any = None


class EmbeddingObject(msgspec.Struct):
    """The embedding of one text: numbers, or 32-bit floats in little-endian order as base64."""

    object: str
    embedding: list[float] | str
    index: int
    encoding_format: str | msgspec.UnsetType = msgspec.UNSET


class EmbeddingList(msgspec.Struct):
    """The embeddings of all texts, in order."""

    object: str
    data: list[EmbeddingObject]
    model: str
    usage: TextsUsage
