"""Conversion of stored tokens to responses. No I/O here."""

from collections.abc import Iterator

from weft.documents.nodes import Stored
from weft.documents.records import Alternative
from weft.documents.spans import covered
from weft.server.documents_api.reports import TokenAlternative, TokenReport, TokensReport


def tokens_report(stored: Stored, digest: str | None) -> TokensReport:
    """Returns the tokens of a node; `digest` is that of the model, or None."""
    is_current = bool(stored.spans) and stored.digest is not None and stored.digest == digest
    return TokensReport(model=stored.node.model, is_current=is_current, tokens=list(_tokens(stored)))


def _tokens(stored: Stored) -> Iterator[TokenReport]:
    data = stored.node.text.encode()
    start = n_characters = 0
    pending = b""
    for span in stored.spans:
        piece = data[start : start + span.n_bytes]
        start += span.n_bytes
        pending += piece
        try:
            n_characters += len(pending.decode())
            pending = b""
        except UnicodeDecodeError:
            pass  # The next token has the rest of the character.
        yield TokenReport(
            id=span.token,
            text=piece.decode(errors="replace"),
            bytes=list(piece),
            end=n_characters,
            logprob=span.logprob,
            alternatives=list(map(_alternative, span.top)),
        )
    rest = data[covered(stored.spans) :]
    if rest:
        yield TokenReport(
            id=None,
            text=rest.decode(errors="replace"),
            bytes=list(rest),
            end=len(stored.node.text),
            logprob=None,
            alternatives=[],
        )


def _alternative(top: Alternative) -> TokenAlternative:
    return TokenAlternative(id=top.token, text=top.bytes.decode(errors="replace"), bytes=list(top.bytes), logprob=top.logprob)
