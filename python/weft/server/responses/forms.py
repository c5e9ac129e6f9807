"""Encoder of streamed responses, and the offset from which a stream is resumed."""

import re
from collections.abc import Sequence

from weft import InvalidRequestError
from weft.server.memory_budget import Reservation
from weft.server.responses import events
from weft.server.responses.writing import ResponseWriter
from weft.server.run.generation import Event
from weft.server.streaming.recording import Recording
from weft.server.streaming.responses import StreamEncoder

__all__ = ["ChunkEncoder", "offset_after"]

_BEFORE = b"\n\nevent: "

_NUMBERED = re.compile(_BEFORE + rb'[^\n]*\ndata: \{"type":"[^"]*","sequence_number":([0-9]+)')


class ChunkEncoder(StreamEncoder):
    """Encodes the events of a response. Generated content stays in memory until the end, whose events repeat it."""

    def __init__(self, writing: ResponseWriter, collected: Reservation) -> None:
        self._writing = writing
        self._collected = collected
        self._n_uncounted = 0

    def opening(self) -> bytes:
        """Returns the events before any content."""
        return b"".join(_frames(self._writing.begin()))

    def frames(self, prompt: int, event: Event) -> list[bytes]:  # noqa: ARG002 (there is one)
        """Returns the frames of the next event, as chunks.

        Raises:
            AnswerTooLargeError: The response exceeds its memory limit.
            AnswersTooLargeError: All responses together exceed their memory limit.
        """
        # Counted after the previous event's frames were returned, so that an error follows them.
        self._collected.grow(self._n_uncounted)
        made, self._n_uncounted = self._writing.take(event)
        return _frames(made)

    def failure(self, error: Exception) -> bytes:
        """Returns the events of a failed response."""
        return b"".join(_frames(self._writing.fail(error)))


def _frames(made: Sequence[events.PendingEvent]) -> list[bytes]:
    return [piece for pending in made for piece in events.frame(pending)]


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
