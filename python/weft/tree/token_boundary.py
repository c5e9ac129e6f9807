"""Boundaries between texts: a text may end, or be cut, inside a token, and is then continued with `Model.tokenize_on`."""

from collections.abc import Iterable, Sequence

from weft._native import Model


def token_bytes(model: Model, tokens: Iterable[int]) -> bytes:
    """Returns the bytes of tokens, with control tokens by their spelling."""
    return b"".join(map(model.token_bytes, tokens))


def cut(model: Model, tokens: Sequence[int], n_bytes: int) -> tuple[int, bytes]:
    """Returns the number of complete tokens in the first `n_bytes` bytes, and the remaining bytes of the next token."""
    for n, token in enumerate(tokens):
        piece = model.token_bytes(token)
        if len(piece) > n_bytes:
            return n, piece[:n_bytes]
        n_bytes -= len(piece)
    return len(tokens), b""


def align_tokens(model: Model, tokens: Sequence[int], text: str) -> tuple[int, list[int]]:
    """Returns the number of leading tokens that are part of their text, and the tokens of the rest of the text.

    A stop string may end a text before its last tokens, or inside of one. Control tokens are sampled, but mostly not shown.
    """
    rest, hidden = text.encode(), frozenset(model.control_tokens())
    visible = token_bytes(model, (token for token in tokens if token not in hidden)).decode(errors="replace")
    # A text that ends inside a character is reported without it, or with U+FFFD.
    if visible.rstrip("\ufffd") == text.rstrip("\ufffd"):
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
