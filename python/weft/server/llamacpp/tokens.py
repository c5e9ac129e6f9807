"""`/tokenize`, `/detokenize` and `/tokenizer_info`: texts and tokens in llama-server's and vLLM's shapes. No I/O here."""

from collections.abc import Iterator, Sequence
from typing import cast

import msgspec

from weft import InvalidRequest, Model
from weft._native import TokenIds
from weft.server.llamacpp.schemas import DetokenizeResult, TokenizeBody, TokenizeResult, TokenizerInfo
from weft.server.run.pieces import GAP, filled, json_text
from weft.server.run.service import Service
from weft.server.run.stream import MAX_WRITE_BYTES
from weft.server.run.submission import Piece

__all__ = ["adds_special", "content", "text", "tokenizer_info", "tokens"]


def content(data: TokenizeBody, n_vocab: int) -> Sequence[Piece]:
    """What is to be tokenized; tokens may stand in it, of a vocabulary of `n_vocab` pieces."""
    if data.content is None and data.prompt is not None:
        return [data.prompt]
    if data.content is None:
        raise InvalidRequest("content", "content must be given")
    if isinstance(data.content, str):
        return [data.content]
    if (wrong := _outside(data.content, n_vocab)) is not None:
        raise InvalidRequest("content", f"token {wrong} is not in the vocabulary ({n_vocab} tokens)")
    return data.content


def _outside(content: Sequence[Piece], n_vocab: int) -> int | None:
    """The first token that is none of the vocabulary."""
    if isinstance(content, TokenIds):
        return content.outside(n_vocab)
    return next((piece for piece in content if isinstance(piece, int) and not 0 <= piece < n_vocab), None)


def adds_special(data: TokenizeBody) -> bool:
    """Whether the tokens that begin and end a text are added. Where neither name is given, llama-server's default holds: no."""
    return (data.add_special_tokens if data.add_special is None else data.add_special) is True


def tokenizer_info(service: Service) -> TokenizerInfo:
    """The served model's tokenizer."""
    model = service.engine.model
    return TokenizerInfo(
        bos_token=_spelling(model, model.bos_token),
        eos_token=_spelling(model, model.eos_token),
        add_bos_token=bool(service.engine.tokenize("")),
        chat_template=service.chat.source,
        model_max_length=service.engine.limits.n_ctx_slot,
    )


def _spelling(model: Model, token: int | None) -> str | None:
    return None if token is None else model.token_bytes(token).decode(errors="replace")


def tokens(ids: Sequence[int], model: Model, *, with_pieces: bool) -> list[bytes]:
    """The JSON of tokens in pieces, with what they stand for where that is asked for."""
    result = msgspec.json.encode(TokenizeResult(cast("Sequence[int]", GAP)))
    if with_pieces:
        return filled(result, [b"[", *_with_pieces(ids, model), b"]"])
    return filled(result, _cut(ids.json() if isinstance(ids, TokenIds) else msgspec.json.encode(ids)))


N_TOKENS_AT_ONCE = 2048
"""What is told of so many comes to about 50 KB."""


def _with_pieces(ids: Sequence[int], model: Model) -> Iterator[bytes]:
    """The JSON of tokens and what they stand for. To copy all of it at once, 60 MB at most, would hold everybody up."""
    for start in range(0, len(ids), N_TOKENS_AT_ONCE):
        end = start + N_TOKENS_AT_ONCE
        told = model.pieces_json(ids.part(start, end) if isinstance(ids, TokenIds) else ids[start:end])
        yield from _cut(b"," + told if start else told)


def _cut(written: bytes) -> list[bytes]:
    """What is written in so many bytes at once."""
    return [written[start : start + MAX_WRITE_BYTES] for start in range(0, len(written), MAX_WRITE_BYTES)]


def text(tokens: Sequence[int], model: Model) -> list[bytes]:
    """The JSON of the text that tokens stand for, in pieces.

    Raises:
        InvalidRequest: one is outside of the vocabulary.
    """
    # The engine takes those below 0 for places of pictures.
    if (wrong := _outside(tokens, model.n_vocab)) is not None:
        raise InvalidRequest("tokens", f"token {wrong} is not in the vocabulary ({model.n_vocab} tokens)")
    spelt = model.detokenize(tokens)
    result = msgspec.json.encode(DetokenizeResult(content=cast("str", GAP), prompt=cast("str", GAP)))
    written = json_text(spelt)
    return filled(result, written, written)
