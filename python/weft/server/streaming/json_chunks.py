"""JSON documents as lists of chunks, for values too long to encode, join or send in one step of the event loop."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

GAP = msgspec.Raw(b"\0")
"""Placeholder for a list that is encoded in chunks. A null byte never occurs in JSON, where it is escaped."""

MAX_TEXT_CHARACTERS = 256 * 1024
"""Maximum characters encoded in one step, which takes less than a millisecond."""

_encode = msgspec.json.Encoder().encode


def filled(frame: bytes, *fillings: Sequence[bytes]) -> list[bytes]:
    """Returns the chunks of an encoded frame whose gaps are filled in order. Surplus fillings are dropped.

    Does not copy the fillings.
    """
    first, *rest = frame.split(b"\0")
    pieces = [first]
    for filling, after in zip(fillings, rest, strict=False):
        pieces += filling
        pieces.append(after)
    return pieces


def json_list(parts: Iterable[bytes]) -> list[bytes]:
    """Returns the chunks of a list, from parts that each hold one or more encoded entries."""
    return list_of_pieces((part,) for part in parts)


def list_of_pieces(values: Iterable[Sequence[bytes]]) -> list[bytes]:
    """Returns the chunks of a list whose entries are lists of chunks."""
    pieces = [b"["]
    for value in values:
        if len(pieces) > 1:
            pieces.append(b",")
        pieces += value
    pieces.append(b"]")
    return pieces


def json_text(text: str) -> list[bytes]:
    """Returns the chunks of a JSON string."""
    stretches = (text[start : start + MAX_TEXT_CHARACTERS] for start in range(0, len(text), MAX_TEXT_CHARACTERS))
    return [b'"', *(_encode(stretch)[1:-1] for stretch in stretches), b'"']


def entries(values: Sequence[object]) -> bytes:
    """Returns the encoded entries of a non-empty list, without its brackets."""
    return _encode(values)[1:-1]


def groups(pieces: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    """Joins consecutive chunks up to `max_bytes`; a larger chunk is yielded alone."""
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
