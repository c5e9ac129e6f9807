"""`/tokenize`, `/detokenize` and `/tokenizer_info` in llama-server's and vLLM's formats. No I/O here."""

from collections.abc import Iterator, Sequence
from typing import cast

import msgspec

from weft import InvalidRequestError, Model
from weft._native import TokenIds
from weft.server.inference.submission import Piece
from weft.server.llamacpp.properties import spelling
from weft.server.llamacpp.schemas import DetokenizeResult, TokenizeBody, TokenizeResult, TokenizerInfo
from weft.server.service import Service
from weft.server.streaming.json_chunks import GAP, filled, json_text
from weft.server.streaming.responses import MAX_WRITE_BYTES


def content(data: TokenizeBody, n_vocab: int) -> Sequence[Piece]:
    """Returns the texts and tokens to tokenize; tokens must be below `n_vocab`."""
    if data.content is None and data.prompt is not None:
        return [data.prompt]
    if data.content is None:
        raise InvalidRequestError("content", "content must be given")
    if isinstance(data.content, str):
        return [data.content]
    if (wrong := _outside(data.content, n_vocab)) is not None:
        raise InvalidRequestError("content", f"token {wrong} is not in the vocabulary ({n_vocab} tokens)")
    return data.content


def _outside(content: Sequence[Piece], n_vocab: int) -> int | None:
    """Returns the first token outside the vocabulary, or None."""
    if isinstance(content, TokenIds):
        return content.outside(n_vocab)
    return next((piece for piece in content if isinstance(piece, int) and not 0 <= piece < n_vocab), None)


def adds_special(data: TokenizeBody) -> bool:
    """Returns whether opening and end tokens are added; as in llama-server, the default is false."""
    return (data.add_special_tokens if data.add_special is None else data.add_special) is True


def tokenizer_info(service: Service) -> TokenizerInfo:
    """Returns the properties of the served model's tokenizer."""
    model = service.engine.model
    return TokenizerInfo(
        bos_token=spelling(model, model.bos_token),
        eos_token=spelling(model, model.eos_token),
        add_bos_token=bool(service.engine.tokenize("")),
        chat_template=service.chat.source,
        model_max_length=service.engine.limits.n_ctx_slot,
    )


def tokens(ids: Sequence[int], model: Model, *, with_pieces: bool) -> list[bytes]:
    """Returns the JSON of tokens in chunks, optionally with their texts."""
    result = msgspec.json.encode(TokenizeResult(cast("Sequence[int]", GAP)))
    if with_pieces:
        return filled(result, [b"[", *_with_pieces(ids, model), b"]"])
    return filled(result, _cut(ids.json() if isinstance(ids, TokenIds) else msgspec.json.encode(ids)))


TOKENS_PER_CHUNK = 2048
"""Tokens with text per chunk, about 50 KB."""


def _with_pieces(ids: Sequence[int], model: Model) -> Iterator[bytes]:
    """Yields the JSON of tokens with their texts. Copying all of it in one step, up to 60 MB, would block the event loop."""
    for start in range(0, len(ids), TOKENS_PER_CHUNK):
        end = start + TOKENS_PER_CHUNK
        encoded = model.pieces_json(ids.part(start, end) if isinstance(ids, TokenIds) else ids[start:end])
        yield from _cut(b"," + encoded if start else encoded)


def _cut(written: bytes) -> list[bytes]:
    """Splits encoded JSON into chunks of one write each."""
    return [written[start : start + MAX_WRITE_BYTES] for start in range(0, len(written), MAX_WRITE_BYTES)]


def text(tokens: Sequence[int], model: Model) -> list[bytes]:
    """Returns the JSON of the tokens' text in chunks.

    Raises:
        InvalidRequestError: A token is outside the vocabulary.
    """
    # The engine interprets negative ids as positions of media.
    if (wrong := _outside(tokens, model.n_vocab)) is not None:
        raise InvalidRequestError("tokens", f"token {wrong} is not in the vocabulary ({model.n_vocab} tokens)")
    spelt = model.detokenize(tokens)
    result = msgspec.json.encode(DetokenizeResult(content=cast("str", GAP), prompt=cast("str", GAP)))
    written = json_text(spelt)
    return filled(result, written, written)
