"""Prompts as sequences of tokens and media, and positions in them."""

from array import array
from collections.abc import Collection, Container, Sequence
from itertools import groupby, takewhile
from typing import cast

from weft import Media

MAX_SIMILAR_ENDS = 8
"""Maximum number of additional ends of turns that get a checkpoint, for models whose memory cannot be cut at any token."""

MAX_CLOSING = 16
"""Maximum number of tokens that close a turn."""


def n_positions(part: int | Media) -> int:
    """Returns how many token positions a part occupies."""
    return part.n_tokens if isinstance(part, Media) else 1


def n_common(left: Sequence[int | Media], right: Sequence[int | Media]) -> int:
    """Returns the length of the common prefix of two prompts, in token positions."""
    pairs = takewhile(lambda pair: _is_same(*pair), zip(left, right, strict=False))
    return sum(n_positions(part) for part, _ in pairs)


def _is_same(one: int | Media, other: int | Media) -> bool:
    if isinstance(one, Media) or isinstance(other, Media):
        return isinstance(one, Media) and isinstance(other, Media) and one.digest == other.digest
    return one == other


def ends_like(ends: Collection[int], tokens: Sequence[int], control: Container[int]) -> list[int]:
    """Returns the last positions after the tokens that close a turn, where prompts diverge if a note moves as the chat grows.

    The closing tokens are the longest common suffix before the given ends, back to the last control token.
    """
    if len(ends) < 2:
        return []
    before = [tokens[max(0, end - MAX_CLOSING) : end] for end in ends]
    n_closing = 0
    while n_closing < min(map(len, before)) and len({each[-1 - n_closing] for each in before}) == 1:
        n_closing += 1
        if before[0][-n_closing] in control:
            break
    if not n_closing:
        return []
    # Searching bytes is fast.
    closing, text = array("i", before[0][-n_closing:]).tobytes(), array("i", tokens).tobytes()
    size = array("i").itemsize
    found: list[int] = []
    at = len(text)
    while len(found) < MAX_SIMILAR_ENDS and (at := text.rfind(closing, 0, at)) >= 0:
        if at % size == 0 and at + len(closing) < len(text):
            found.append((at + len(closing)) // size)
        at += len(closing) - 1
    return found


def media_and_runs(parts: Sequence[int | Media]) -> list[Media | list[int]]:
    """Groups consecutive tokens into lists."""
    runs: list[Media | list[int]] = []
    for is_media, run in groupby(parts, key=lambda part: isinstance(part, Media)):
        alike = list(run)
        runs += cast("list[Media]", alike) if is_media else [cast("list[int]", alike)]
    return runs
