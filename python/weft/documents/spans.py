"""Tokens of a node's text: which bytes belong to which token.

The spans of a node cover a prefix of its text; the rest has no known tokens. No I/O here.
"""

import codecs
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from weft.documents.records import Alternative, Span

_decode = msgspec.msgpack.Decoder(list[Span]).decode
_encode = msgspec.msgpack.Encoder().encode
_Decoder = codecs.getincrementaldecoder("utf-8")


def encoded(spans: Sequence[Span]) -> bytes:
    """Returns the stored form of spans; empty if no token is known."""
    return _encode(spans) if any(span.token is not None for span in spans) else b""


def decoded(data: bytes) -> list[Span]:
    """Returns spans from their stored form."""
    return _decode(data) if data else []


def covered(spans: Iterable[Span]) -> int:
    """Returns the number of bytes that spans cover."""
    return sum(span.n_bytes for span in spans)


def joined(first: Sequence[Span], n_bytes: int, second: Sequence[Span]) -> list[Span]:
    """Returns the spans of two texts in a row, of which the first has `n_bytes` bytes."""
    rest = n_bytes - covered(first)
    return [*first, *([Span(rest)] if rest and second else []), *second]


def split(spans: Sequence[Span], at: int) -> tuple[list[Span], list[Span]]:
    """Returns the spans before and after a byte. Text of a token that is cut has no known token."""
    start = 0
    for nth, span in enumerate(spans):
        end = start + span.n_bytes
        if start == at:
            return [*spans[:nth]], [*spans[nth:]]
        if end > at:
            return [*spans[:nth], Span(at - start)], [Span(end - at), *spans[nth + 1 :]]
        start = end
    return [*spans], []


def prefix(spans: Sequence[Span], n_bytes: int) -> list[Span]:
    """Returns the spans that lie within the first `n_bytes` bytes."""
    kept: list[Span] = []
    for span in spans:
        if (n_bytes := n_bytes - span.n_bytes) < 0:
            break
        kept.append(span)
    return kept


def byte_of_character(text: str, character: int) -> int:
    """Returns the byte offset of a character, counted as a Unicode code point."""
    return len(text[:character].encode())


def byte_of_token(text: str, spans: Sequence[Span], token: int) -> int:
    """Returns the byte offset of a token. Inside a character, it is the beginning of the character."""
    at = covered(spans[:token])
    data = text.encode()
    while 0 < at < len(data) and data[at] & 0xC0 == 0x80:
        at -= 1
    return at


def common_bytes(first: str, second: str) -> int:
    """Returns the length of the common beginning of two texts, in bytes."""
    n = next((n for n, (one, other) in enumerate(zip(first, second, strict=False)) if one != other), min(len(first), len(second)))
    return byte_of_character(first, n)


def prompt_pieces(text: str, spans: Sequence[Span]) -> list[int | bytes]:
    """Returns the tokens of a text, with bytes in place of unknown ones."""
    pieces: list[int | bytes] = []
    data, start = text.encode(), 0
    for span in spans:
        end = start + span.n_bytes
        pieces.append(data[start:end] if span.token is None else span.token)
        start = end
    return [*pieces, *([data[start:]] if start < len(data) else [])]


def decode(data: bytes) -> tuple[str, bytes]:
    """Returns the text of bytes, with U+FFFD for invalid ones, and the bytes of an incomplete character at their end."""
    decoder = _Decoder(errors="replace")
    return decoder.decode(data), decoder.getstate()[0]


class _Waiting:
    """A token whose text is incomplete."""

    __slots__ = ("is_open", "logprob", "text", "token", "top")

    def __init__(self, token: int, logprob: float | None, top: tuple[Alternative, ...]) -> None:
        self.token = token
        self.logprob = logprob
        self.top = top
        self.text = b""
        """Text of its bytes, as far as it is known."""
        self.is_open = False
        """True while its last character is incomplete."""

    @property
    def span(self) -> Span:
        return Span(len(self.text), self.token, self.logprob, self.top)


class SpanBuilder:
    """Assigns the bytes of a growing text to the tokens that generate it.

    Text may come after its tokens, as while a character is incomplete, or not at all, as a stop string. Bytes that are no
    character are U+FFFD in the text. The text of a token that ends before its character is complete has no bytes of it.
    """

    def __init__(self, lead: bytes = b"") -> None:
        """Creates a builder.

        Args:
            lead: Bytes of an incomplete character before the first token. The text has the whole character.
        """
        self._lead = lead
        self._text = bytearray()
        """Text that no span covers yet."""
        self._waiting: deque[_Waiting] = deque()
        """Tokens whose text is incomplete."""
        self._open: list[tuple[_Waiting, bytes]] = []
        """Tokens of the last, incomplete character, with their bytes of it."""
        self._hidden: list[Span] = []
        """Last tokens, all without text. An end token is one of them until another token follows."""
        self._is_lost = False
        """True after a token whose text the given text does not have."""

    def add(self, piece: bytes, token: int, logprob: float | None, top: tuple[Alternative, ...], text: str) -> None:
        """Adds a token with its bytes, and the text that it completes."""
        if not self._is_lost:
            self._waiting.append(_Waiting(token, logprob, top))
            self._add_bytes(self._waiting[-1], piece)
            self._text += text.encode()

    def _add_bytes(self, waiting: _Waiting, piece: bytes) -> None:
        if not piece:
            return
        self._open.append((waiting, self._lead + piece))
        self._lead = b""
        given = b"".join(data for _, data in self._open)
        text, rest = decode(given)
        waiting.is_open = bool(rest)
        if rest == given:
            return
        data = text.encode()
        is_valid = data + rest == given
        for each, own in self._open[:-1]:
            each.text += own if is_valid else b""
            each.is_open = False
        # An incomplete character lies within the last token, since that has completed the one before.
        own = self._open[-1][1]
        waiting.text += own[: len(own) - len(rest)] if is_valid else data
        self._open = [(waiting, rest)] if rest else []

    def add_text(self, text: str) -> None:
        """Adds text of tokens that were added before."""
        self._text += text.encode()

    def take(self) -> list[Span]:
        """Returns the spans of tokens whose text is complete, since the last call."""
        spans: list[Span] = []
        while self._waiting and not self._is_lost and not self._waiting[0].is_open:
            text = self._waiting[0].text
            if len(text) > len(self._text):
                self._is_lost = not text.startswith(bytes(self._text))
                break
            if not self._text.startswith(text):
                self._is_lost = True
                break
            span = self._waiting.popleft().span
            del self._text[: len(text)]
            if text:
                spans += [*self._hidden, span]
                self._hidden = []
            else:
                self._hidden.append(span)
        if self._is_lost:
            self._waiting.clear()
            self._text.clear()
        return spans

    def finish(self, end_token: int | None) -> list[Span]:
        """Returns the remaining spans of a branch that has ended, without its end token."""
        for each, _ in self._open:
            each.is_open = False
        self._open.clear()
        spans = self.take()
        if not self._is_lost and not self._text:
            spans += [span for span in self._hidden if span.token != end_token]
        self._hidden = []
        return spans
