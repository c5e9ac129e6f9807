"""Events of a response's stream. Each has a `sequence_number` (from 0) after its type, as in OpenAI's."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from math import inf
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
    kept = b"\n\n" + bytes(recording.kept)
    if recording.n_dropped and _next_number(kept, 0) > number + 1:
        message = f"starting_after is {number}; some of the events after that one are no longer stored"
        raise InvalidRequestError("starting_after", message)
    # The first position behind which all events have larger numbers.
    low = bisect_right(range(len(kept)), float(number), key=lambda at: _next_number(kept, at))
    # The prepended two bytes cancel out with the two newlines before the event.
    offset = kept.find(_BEFORE, low)
    return recording.n_bytes if offset < 0 else recording.n_dropped + offset


def _next_number(kept: bytes, begin: int) -> float:
    """Returns the number of the first event that begins here or later; infinity if there is none."""
    found = _NUMBERED.search(kept, begin)
    return inf if found is None else float(found[1])
