"""`/embedding` and `/rerank` in llama-server's formats. No I/O here."""

from collections.abc import Sequence

import msgspec

from weft import InvalidRequestError
from weft._native import CompactEmbeddings
from weft.fields.validation import check_range
from weft.server.inference.embedding import Encoder
from weft.server.inference.submission import SentPrompt
from weft.server.llamacpp import schemas
from weft.server.request_fields import adapters, media, prompts
from weft.server.response_fields.texts_usage import TextsUsage
from weft.server.streaming.json_chunks import json_list


def texts(data: schemas.EmbeddingBody) -> tuple[str, list[SentPrompt]]:
    """Returns the name of the field with the texts, and the texts."""
    adapters.refuse_adapters(data.lora)
    name, given = ("input", data.input) if data.content is None and data.input is not None else ("content", data.content)
    return name, [media.with_images(given, data.image_data)] if data.image_data else prompts.texts(name, given)


def form(data: schemas.EmbeddingBody, n_texts: int, pooling: str) -> Encoder:
    """Returns the encoder of the response.

    `image_data`, which only clients of 2024 send, selects the format of 2024 for the embedding of a single text. That format does
    not apply without pooling.
    """
    is_of_2024 = isinstance(data.image_data, list) and data.content is not None
    return _written_of_one if is_of_2024 and n_texts == 1 and pooling != "none" else _write


def _written_of_one(vectors: CompactEmbeddings) -> list[bytes]:
    # A pooled text has one row, so the outer list is removed.
    return [b'{"embedding":%b}' % vectors.json(0)[1:-1]]


def _write(vectors: CompactEmbeddings) -> list[bytes]:
    """Returns the JSON in chunks: for each text a list of its rows."""
    return json_list(b'{"index":%d,"embedding":%b}' % (index, vectors.json(index)) for index in range(len(vectors)))


def texts_to_rank(data: schemas.RerankBody) -> tuple[str, str, list[str]]:
    """Returns the query, the name of the field with the texts, and the texts."""
    if data.truncate:
        raise InvalidRequestError("truncate", "truncate is not supported, because texts are never truncated; leave it out")
    adapters.refuse_adapters(data.lora)
    if data.query is None:
        raise InvalidRequestError("query", "query must be given, as a string")
    name, given = ("documents", data.documents) if data.texts is None else ("texts", data.texts)
    if not given:
        raise InvalidRequestError(name, "documents must be given, as a list of one string or more")
    check_range("top_n", data.top_n, 0)
    return data.query, name, [one.text if isinstance(one, schemas.Document) else one for one in given]


def ranking(data: schemas.RerankBody, texts: Sequence[str], model_name: str) -> Encoder:
    """Returns a function that encodes the scores of the texts."""
    returns_texts = bool(data.return_text or data.return_documents)

    def write(vectors: CompactEmbeddings) -> list[bytes]:
        scores = memoryview(vectors.data()).cast("f").tolist()
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: data.top_n]
        if data.texts is not None:
            rows = [schemas.RankedByTei(i, scores[i], texts[i] if returns_texts else msgspec.UNSET) for i in order]
            return [msgspec.json.encode(rows)]
        documents = [schemas.Document(texts[i]) if returns_texts else msgspec.UNSET for i in order]
        ranked = [schemas.Ranked(i, scores[i], document) for i, document in zip(order, documents, strict=True)]
        n_tokens = sum(vectors.n_tokens)
        return [msgspec.json.encode(schemas.RankedList(model_name, "list", TextsUsage(n_tokens, n_tokens), ranked))]

    return write
