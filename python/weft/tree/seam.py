"""Where a text goes on from tokens, which `Model.tokenize_on` makes tokens of: a text may end, or be cut, within a token."""

from collections.abc import Iterable, Sequence

from weft._native import Model

__all__ = ["cut", "fitted", "spelt"]


def spelt(model: Model, tokens: Iterable[int]) -> bytes:
    """The bytes that tokens stand for, control tokens as they are spelt."""
    return b"".join(map(model.token_bytes, tokens))


def cut(model: Model, tokens: Sequence[int], n_bytes: int) -> tuple[int, bytes]:
    """How many tokens are whole within the first `n_bytes` bytes, and what is left of these after them."""
    for n, token in enumerate(tokens):
        piece = model.token_bytes(token)
        if len(piece) > n_bytes:
            return n, piece[:n_bytes]
        n_bytes -= len(piece)
    return len(tokens), b""


def fitted(model: Model, tokens: Sequence[int], text: str) -> tuple[int, list[int]]:
    """How many of the tokens are in the text that they were told as, and the tokens of what is left of it.

    A stop string ends a text within its last tokens, or in the middle of one. Control tokens are drawn, and mostly not told.
    """
    rest, hidden = text.encode(), frozenset(model.control_tokens())
    told = spelt(model, (token for token in tokens if token not in hidden)).decode(errors="replace")
    # A text that ends within a character is told without it, or with U+FFFD.
    if told.rstrip("\ufffd") == text.rstrip("\ufffd"):
        return len(tokens), []
    n_kept = 0
    for n, token in enumerate(tokens, start=1):
        piece = model.token_bytes(token)
        if rest and rest.startswith(piece):
            rest = rest[len(piece) :]
            n_kept = n
        elif token not in hidden:
            break
    return n_kept, model.tokenize_on(rest, parse_special=False) if rest else []
