"""Which bytes of a text belong to which token."""

import random

import pytest

from weft.documents.records import Span
from weft.documents.spans import (
    SpanBuilder,
    byte_of_token,
    covered,
    decode,
    decoded,
    encoded,
    joined,
    prefix,
    prompt_pieces,
    split,
)

TEXT = "naïve 🦊 fox"
TOKENS = [(b"na", 1), ("ï".encode()[:1], 2), ("ï".encode()[1:], 3), (b"ve ", 4), ("🦊".encode()[:3], 5)]
TOKENS += [("🦊".encode()[3:], 6), (b" fox", 7)]


def spans_of(*pieces: tuple[int, int | None]) -> list[Span]:
    return [Span(n_bytes, token) for n_bytes, token in pieces]


WHOLE = spans_of(*((len(piece), token) for piece, token in TOKENS))


def test_spans_are_stored_and_read() -> None:
    assert decoded(encoded(WHOLE)) == WHOLE
    assert encoded([Span(4)]) == b""


@pytest.mark.parametrize("at", range(covered(WHOLE) + 1))
def test_a_split_text_has_the_tokens_that_were_not_cut(at: int) -> None:
    head, rest = split(WHOLE, at)
    assert covered(head) == at
    assert covered(rest) == covered(WHOLE) - at
    assert [span for span in joined(head, at, rest) if span.token is not None] == [
        span for nth, span in enumerate(WHOLE) if not covered(WHOLE[:nth]) < at < covered(WHOLE[: nth + 1])
    ]


def test_text_without_tokens_stands_between_those_of_a_joined_text() -> None:
    assert joined([Span(2, 1)], 5, [Span(1, 2)]) == [Span(2, 1), Span(3), Span(1, 2)]


def test_prefix_has_no_partial_token() -> None:
    assert prefix(WHOLE, 4) == WHOLE[:3]
    assert prefix(WHOLE, 3) == WHOLE[:2]


def test_a_prompt_has_bytes_where_no_token_is_known() -> None:
    assert prompt_pieces("abc def", [Span(1, 5), Span(2), Span(1, 6)]) == [5, b"bc", 6, b"def"]


@pytest.mark.parametrize(("token", "at"), [(0, 0), (1, 2), (2, 2), (3, 4), (4, 7), (5, 7), (6, 11), (7, 15)])
def test_a_token_inside_a_character_is_at_its_beginning(token: int, at: int) -> None:
    assert byte_of_token(TEXT, WHOLE, token) == at


def whole_characters(data: bytes) -> str:
    return data.decode(errors="ignore")


@pytest.mark.parametrize("seed", range(20))
def test_builder_assigns_text_that_comes_late(seed: int) -> None:
    source = random.Random(seed)
    builder, shown, spans, data = SpanBuilder(), "", [], b""
    for piece, token in TOKENS:
        data += piece
        held = 0 if source.random() < 0.5 else source.randrange(4)
        text = whole_characters(data)
        emitted = text[: max(len(text) - held, len(shown))]
        builder.add(piece, token, None, (), emitted[len(shown) :])
        shown = emitted
        spans += builder.take()
        assert covered(spans) <= len(shown.encode())
    builder.add_text(TEXT[len(shown) :])
    assert [*spans, *builder.finish(None)] == WHOLE


def test_builder_drops_the_tokens_of_a_stop_string() -> None:
    builder = SpanBuilder()
    builder.add(b"word", 1, None, (), "wo")
    assert builder.take() == []
    builder.add(b" STOP", 2, None, (), "rd")
    assert builder.take() == [Span(4, 1)]
    assert builder.finish(None) == []


def test_builder_drops_an_end_token_and_keeps_other_hidden_ones() -> None:
    builder = SpanBuilder()
    builder.add(b"", 9, None, (), "")
    builder.add(b"word", 1, None, (), "word")
    builder.add(b"", 8, None, (), "")
    builder.add(b"", 2, None, (), "")
    assert [*builder.take(), *builder.finish(2)] == [Span(0, 9), Span(4, 1), Span(0, 8)]


FOX = "🦊".encode()


def test_invalid_bytes_are_a_replacement_character_of_their_token() -> None:
    builder = SpanBuilder()
    builder.add(b"word", 1, None, (), "word")
    builder.add(b"\xff", 2, None, (), "\ufffd")
    builder.add(FOX[:2], 3, None, (), "")
    builder.add(b" fox", 4, None, (), "\ufffd fox")
    assert [*builder.take(), *builder.finish(None)] == [Span(4, 1), Span(3, 2), Span(0, 3), Span(7, 4)]


def test_tokens_of_a_character_that_is_not_completed_have_no_text() -> None:
    builder = SpanBuilder()
    builder.add(b"a" + FOX[:1], 1, None, (), "a")
    builder.add(FOX[1:3], 2, None, (), "")
    assert builder.take() == []
    assert builder.finish(None) == [Span(1, 1), Span(0, 2)]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_character_that_begins_before_a_text_belongs_to_the_tokens_that_end_it(n: int) -> None:
    builder = SpanBuilder(FOX[:n])
    for byte in FOX[n:]:
        assert builder.take() == []
        builder.add(bytes([byte]), byte, None, (), "🦊" if byte == FOX[-1] else "")
    spans = builder.take()
    assert (covered(spans), [span.token for span in spans]) == (4, list(FOX[n:]))


@pytest.mark.parametrize("seed", range(50))
def test_no_token_is_lost_whatever_its_bytes_are(seed: int) -> None:
    source = random.Random(seed)
    data = "".join(source.choices("aï🦊—", k=12)).encode()
    data = bytes(byte if source.random() < 0.9 else source.randrange(256) for byte in data)
    n_lead = source.randrange(4)
    lead = decode(data[:n_lead])[1]
    builder, raw, shown, rest = SpanBuilder(lead), lead, "", data[n_lead:]
    spans: list[Span] = []
    tokens: list[int | None] = []
    while rest:
        n = source.randrange(1, 4)
        piece, rest = rest[:n], rest[n:]
        raw += piece
        text = decode(raw)[0]
        tokens.append(len(tokens))
        builder.add(piece, len(tokens) - 1, None, (), text[len(shown) :])
        shown = text
        spans += builder.take()
    spans += builder.finish(None)
    assert [span.token for span in spans] == tokens
    assert covered(spans) == len(shown.encode())


def test_decode_returns_an_incomplete_character_as_bytes() -> None:
    assert decode(b"a" + FOX[:3]) == ("a", FOX[:3])
    assert decode(FOX[:3] + b"a") == ("\ufffda", b"")
    assert decode(FOX) == ("🦊", b"")
