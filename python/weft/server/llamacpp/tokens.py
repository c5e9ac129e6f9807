"""`/tokenize` and `/detokenize`: texts and tokens in llama-server's shapes. No I/O here."""

from collections.abc import Sequence

from weft import InvalidRequest, Model
from weft.server.llamacpp.schemas import TokenizeBody, TokenizeResult, TokenPiece
from weft.server.submission import Piece

__all__ = ["content", "tokens"]


def content(data: TokenizeBody, n_vocab: int) -> list[Piece]:
    """What is to be tokenized; tokens may stand in it, of a vocabulary of `n_vocab` pieces."""
    if data.content is None:
        raise InvalidRequest("content", "content must be given")
    if isinstance(data.content, str):
        return [data.content]
    for element in data.content:
        if isinstance(element, int) and not 0 <= element < n_vocab:
            raise InvalidRequest("content", f"token {element} is outside of the vocabulary of {n_vocab} pieces")
    return data.content


def tokens(ids: Sequence[int], model: Model, *, with_pieces: bool) -> TokenizeResult:
    """Tokens, with what they stand for where that is asked for."""
    return TokenizeResult([TokenPiece(token, _piece(model.token_bytes(token))) for token in ids] if with_pieces else ids)


def _piece(data: bytes) -> str | list[int]:
    """What a token stands for: text, or its bytes where they are no whole characters."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
