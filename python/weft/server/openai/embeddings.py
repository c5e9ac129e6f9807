"""`/v1/embeddings`: the body's texts, and the response in OpenAI's format. No I/O here."""

from base64 import b64encode
from collections.abc import Callable, Iterator

import msgspec

from weft import InvalidRequestError
from weft._native import CompactEmbeddings
from weft.fields.excerpt import excerpt
from weft.fields.validation import check_range
from weft.server.inference.submission import SentPrompt
from weft.server.openai.schemas import CreateEmbedding
from weft.server.request_fields import adapters, prompts
from weft.server.streaming.json_chunks import json_list


def texts(data: CreateEmbedding, pooling: str) -> list[SentPrompt]:
    """Returns the texts of a body."""
    adapters.refuse_adapters(data.lora)
    if pooling == "none":
        raise InvalidRequestError("input", "Pooling type 'none' is not OAI compatible. Please use a different pooling type")
    if data.encoding_format not in (None, "float", "base64"):
        message = f"encoding_format is {excerpt(data.encoding_format)}; it must be float or base64"
        raise InvalidRequestError("encoding_format", message)
    check_range("dimensions", data.dimensions, 1)
    return prompts.texts("input", data.input)


def written(data: CreateEmbedding, model_name: str) -> Callable[[CompactEmbeddings], list[bytes]]:
    """Returns a function that encodes the response."""
    entry = _base64 if data.encoding_format == "base64" else _floats

    def write(vectors: CompactEmbeddings) -> list[bytes]:
        n_tokens = sum(vectors.n_tokens)
        tail = b',"model":%b,"usage":{"prompt_tokens":%d,"total_tokens":%d}}'
        entries: Iterator[bytes] = (entry(vectors, index) for index in range(len(vectors)))
        return [b'{"object":"list","data":', *json_list(entries), tail % (msgspec.json.encode(model_name), n_tokens, n_tokens)]

    return write


def _floats(vectors: CompactEmbeddings, index: int) -> bytes:
    # A pooled text has one row, so the outer list is removed.
    return b'{"object":"embedding","embedding":%b,"index":%d}' % (vectors.json(index)[1:-1], index)


def _base64(vectors: CompactEmbeddings, index: int) -> bytes:
    data = b64encode(vectors.little_endian(index))
    return b'{"object":"embedding","embedding":"%b","index":%d,"encoding_format":"base64"}' % (data, index)
