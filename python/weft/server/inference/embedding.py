"""Embeddings and rerank scores of texts."""

import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from weft import InvalidRequestError, Media, MixedPrompt
from weft._native import CompactEmbeddings, TokenIds
from weft.request import Prompt
from weft.server.executor import Purpose
from weft.server.inference.submission import Piece, SentPrompt, size_of
from weft.server.media.files import MediaPrompt
from weft.server.memory_budget import Reservation
from weft.server.service import Service

MAX_TEXTS = 2048
"""Maximum texts of a request, as with OpenAI."""

MAX_NUMBER = 2**31 - 1
"""Larger numbers do not fit the engine's 32-bit integers, and are not meaningful as dimensions or norms."""

NUMBER_BYTES = 16
"""Memory of a number of an embedding: 32 bits, and about twelve characters."""

MAX_AROUND = 8
"""Upper bound for special tokens that a model adds to a text."""

Encoder = Callable[[CompactEmbeddings], list[bytes]]
"""Encodes embeddings in one API's format, in chunks."""

Begin = Callable[[], Coroutine[Any, Any, CompactEmbeddings]]
"""Tokenizes texts and begins to compute their embeddings."""


async def embed(
    service: Service,
    texts: Sequence[SentPrompt],
    write: Encoder,
    collected: Reservation,
    *,
    name: str,
    normalize: int | None = None,
    dimensions: int | None = None,
) -> list[bytes]:
    """Computes embeddings of texts, which are the field `name` of the body, and returns the JSON.

    Raises:
        InvalidRequestError: A text is empty or too long, there are too many, or an image or audio file is malformed.
        NotSupportedError: The model is a reranker, or does not support images or audio.
        QueueFullError: The queue is full.
        AnswerTooLargeError: The response would exceed its limit.
        AnswersTooLargeError: All responses together would exceed their limit.
        ClientDisconnectedError: The client has disconnected.
        EngineStoppedError: The engine was stopped.
    """
    _check(texts, name)
    how = service.settings.embd_normalize if normalize is None else normalize
    for field, number in (("embd_normalize", how), ("dimensions", dimensions)):
        if number is not None and abs(number) > MAX_NUMBER:
            raise InvalidRequestError(field, f"{field} is {number}; it must be at most {MAX_NUMBER}")
    with _renaming_parameter(name):
        read = await service.with_media(texts)

        def begin() -> Coroutine[Any, Any, CompactEmbeddings]:
            return service.engine.begin_embedding([_parts(service, text) for text in read], how, dimensions)

        return await _computed(service, sum(map(size_of, read)), begin, write, collected)


async def rank(
    service: Service, query: str, texts: Sequence[str], write: Encoder, collected: Reservation, *, name: str
) -> list[bytes]:
    """Computes the relevance of texts to a query and returns the JSON. Raises as `embed`, and if the model is not a reranker."""
    _check(texts, name)
    # The query is tokenized once per text if the model has a template for both.
    size = size_of(texts) + len(texts) * len(query)
    with _renaming_parameter(name):
        return await _computed(service, size, partial(service.engine.begin_ranking, query, texts), write, collected)


def _check(texts: Sequence[object], name: str) -> None:
    if len(texts) > MAX_TEXTS:
        raise InvalidRequestError(name, f"there are {len(texts)} texts; at most {MAX_TEXTS} are allowed")


async def _computed(service: Service, size: int, begin: Begin, write: Encoder, collected: Reservation) -> list[bytes]:
    service.n_embeddings += 1
    try:
        vectors = await (await service.executor.run(Purpose.PROMPT, size, begin))
    finally:
        service.n_embeddings -= 1
    n_numbers = vectors.starts[-1] * vectors.width
    collected.grow(n_numbers * NUMBER_BYTES)
    return await service.executor.run(Purpose.TEXT, n_numbers, write, vectors)


@contextmanager
def _renaming_parameter(name: str) -> Iterator[None]:
    """Renames the parameter of errors about the texts to the body's field `name`."""
    try:
        yield
    except InvalidRequestError as error:
        if error.param == "normalize":
            raise InvalidRequestError("embd_normalize", re.sub("^normalize ", "embd_normalize ", error.message)) from None
        raise InvalidRequestError(name if error.param in ("texts", "prompt") else error.param, error.message) from None


def _parts(service: Service, text: SentPrompt) -> Prompt:
    """Returns a text in the engine's form. Its media must have been read."""
    if isinstance(text, MixedPrompt):
        return text
    if isinstance(text, MediaPrompt):
        return cast("Sequence[str | Media]", text.pieces)
    return text[0] if len(text) == 1 and isinstance(text[0], str) else service.request_builder.tokens(text)


def truncated(service: Service, texts: Sequence[SentPrompt]) -> list[SentPrompt]:
    """Truncates texts to the model's limit, keeping the special tokens around them."""
    n_most, model = service.engine.embedding_stats().max_tokens, service.engine.model
    cut: list[SentPrompt] = []
    for pieces in texts:
        text = cast("str", cast("Sequence[Piece]", pieces)[0])
        # Every token has at least one byte.
        tokens = model.token_ids(text) if len(text.encode()) >= n_most - MAX_AROUND else TokenIds([])
        if len(tokens) <= n_most:
            cut.append(pieces)
            continue
        plain = model.token_ids(text, add_special=False)
        n_around, n_alike = len(tokens) - len(plain), min(n_most, len(plain))
        n_before = next(n for n in range(n_around + 1) if tokens.part(n, n + n_alike) == plain.part(0, n_alike))
        n_behind = n_around - n_before
        cut.append([*tokens.part(0, n_most - n_behind), *tokens.part(len(tokens) - n_behind, len(tokens))])
    return cut
