"""Where a text goes on from tokens: it is tokenized by itself, and a text may end, or be cut, within a token."""

from collections.abc import Iterable, Sequence

from weft._native import Model

__all__ = ["continued", "cut", "fitted", "spelt"]

_BEFORE = ("\n", "x", ".", "1")
"""What is put before a text, so that the blank with which some vocabularies begin every text is not in it."""


def spelt(model: Model, tokens: Iterable[int]) -> bytes:
    """The bytes that tokens stand for, control tokens as they are spelt."""
    return b"".join(map(model.token_bytes, tokens))


def continued(model: Model, text: bytes, *, parse_special: bool = False) -> list[int]:
    """The tokens of a text that follows others: without the token that begins a text, or a blank that is not in it.

    No token of it has anything of what stands before: where a vocabulary has one for both sides of the seam, it is not used.
    """

    def read(text: bytes) -> list[int]:
        return model.tokenize(text, add_special=False, parse_special=parse_special)

    tokens = read(text)
    n_more = len(spelt(model, tokens)) - len(text)
    if n_more <= 0:
        return tokens
    for before in _BEFORE:
        both = read(before.encode() + text)
        n_kept = len(both) - _n_ending(model, both, len(text))
        if spelt(model, both[n_kept:]) == text:
            return both[n_kept:]
    return tokens


def _n_ending(model: Model, tokens: Sequence[int], n_bytes: int) -> int:
    """How many tokens at the end have no more than these bytes together."""
    n = 0
    for token in reversed(tokens):
        n_bytes -= len(model.token_bytes(token))
        if n_bytes < 0:
            break
        n += 1
    return n


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
    return n_kept, continued(model, rest) if rest else []
