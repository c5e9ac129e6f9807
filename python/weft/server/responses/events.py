"""Events of a response's stream. Each has a `sequence_number` (from 0) after its type, as in OpenAI's."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from weft import InvalidRequestError
from weft.server.streaming import sse
from weft.server.streaming.json_chunks import filled
from weft.server.streaming.recording import Recording

_BEFORE = b"\n\nevent: "

_NUMBERED = re.compile(_BEFORE + rb'[^\n]*\ndata: \{"type":"[^"]*","sequence_number":([0-9]+)')


class PendingEvent(NamedTuple):
    """An event and the contents of its gaps, in order. Long contents are encoded once for all events that include them."""

    event: dict[str, Any]
    """Its `type`, its `sequence_number` and its other fields, in this order."""
    fillings: Sequence[Sequence[bytes]] = ()


def frame(pending: PendingEvent) -> list[bytes]:
    """Returns a server-sent event in chunks, with its type as event name."""
    return filled(sse.named_frame(pending.event["type"], pending.event), *pending.fillings)


def offset_after(recording: Recording, number: int) -> int:
    """Returns the byte offset of the first event after the one with this number.

    Raises:
        InvalidRequestError: Some of these events are no longer buffered.
    """
    kept = b"\n\n" + recording.kept()
    first = _next_number(kept, 0, len(kept))
    if recording.n_dropped and (first is None or first[1] > number + 1):
        message = f"starting_after is {number}; the events after that one are no longer all kept"
        raise InvalidRequestError("starting_after", message)
    # Invariant: events that begin before `low` have at most this number; those at `high` or later have a larger one.
    low, high = 0, len(kept)
    while low < high:
        middle = (low + high) // 2
        found = _next_number(kept, middle, high)
        if found is None or found[1] > number:
            high = middle
        else:
            low = found[0] + 1
    # The prepended two bytes cancel out with the two newlines before the event.
    offset = kept.find(_BEFORE, low)
    return recording.n_bytes if offset < 0 else recording.n_dropped + offset


def _next_number(kept: bytes, begin: int, end: int) -> tuple[int, int] | None:
    """Returns the position of the empty line before the first event that begins in this range, and the event's number."""
    offset = kept.find(_BEFORE, begin, end + len(_BEFORE) - 1)
    if offset < 0 or (found := _NUMBERED.match(kept, offset)) is None:
        return None
    return offset, int(found[1])
