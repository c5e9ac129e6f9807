"""JSON that is too long to be made, joined or sent at once: a list of pieces, with gaps where long lists belong."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

__all__ = ["GAP", "entries", "filled", "groups", "json_list", "json_text", "list_of_pieces"]

GAP = msgspec.Raw(b"\0")
"""Stands in for a list that is in pieces. JSON never holds the byte: in a text it is escaped."""

TEXT_AT_ONCE = 256 * 1024
"""Characters that are written at once: less than a millisecond of work."""

_encode = msgspec.json.Encoder().encode


def filled(frame: bytes, *fillings: Sequence[bytes]) -> list[bytes]:
    """The pieces of what was written with gaps, which are filled in order; what has no gap is left out.

    Nothing that is long is copied.
    """
    first, *rest = frame.split(b"\0")
    pieces = [first]
    for filling, after in zip(fillings, rest, strict=False):
        pieces += filling
        pieces.append(after)
    return pieces


def json_list(parts: Iterable[bytes]) -> list[bytes]:
    """A list of entries that are written already, one or more in each part."""
    pieces = [b"["]
    for part in parts:
        if len(pieces) > 1:
            pieces.append(b",")
        pieces.append(part)
    pieces.append(b"]")
    return pieces


def list_of_pieces(values: Iterable[Sequence[bytes]]) -> list[bytes]:
    """A list of entries that are in pieces each."""
    pieces = [b"["]
    for value in values:
        if len(pieces) > 1:
            pieces.append(b",")
        pieces += value
    pieces.append(b"]")
    return pieces


def json_text(text: str) -> list[bytes]:
    """A text, of which only so much is written at once that nothing else has to wait for it."""
    stretches = (text[start : start + TEXT_AT_ONCE] for start in range(0, len(text), TEXT_AT_ONCE))
    return [b'"', *(_encode(stretch)[1:-1] for stretch in stretches), b'"']


def entries(values: Sequence[object]) -> bytes:
    """The entries of a list, of which there is one at least."""
    return _encode(values)[1:-1]


def groups(pieces: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    """The pieces in order, joined to no more than so many bytes, unless one alone has more."""
    group: list[bytes] = []
    size = 0
    for piece in pieces:
        if group and size + len(piece) > max_bytes:
            yield b"".join(group)
            group, size = [], 0
        group.append(piece)
        size += len(piece)
    if size:
        yield b"".join(group)
