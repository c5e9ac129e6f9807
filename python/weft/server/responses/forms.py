"""How a response is sent: as its events, or whole. And where its events are continued from."""

import re
from collections.abc import Sequence

from weft import InvalidRequest
from weft.server.responses import events
from weft.server.responses.writing import Writing
from weft.server.run.collected import Collected
from weft.server.run.generation import Event
from weft.server.run.recording import Recording

__all__ = ["Stream", "Whole", "offset_after"]

_BEFORE = b"\n\nevent: "

_NUMBERED = re.compile(_BEFORE + rb'[^\n]*\ndata: \{"type":"[^"]*","sequence_number":([0-9]+)')


class Stream:
    """The events of a response; what is written is held until its end, which tells all of it again."""

    def __init__(self, writing: Writing, collected: Collected) -> None:
        self._writing = writing
        self._collected = collected
        self._n_uncounted = 0

    def opening(self) -> bytes:
        """The events that come before anything is written."""
        return b"".join(piece for told in self._writing.begin() for piece in events.frame(told))

    def frames(self, prompt: int, happened: Sequence[Event]) -> list[bytes]:  # noqa: ARG002
        """The frames of events, in order and in pieces.

        Raises:
            AnswerTooLargeError: more was written than is held.
            AnswersTooLargeError: it is too much beside the others.
        """
        frames: list[bytes] = []
        for event in happened:
            # What the event before has brought was told by now: an error comes behind it.
            self._collected.grow(self._n_uncounted)
            made, self._n_uncounted = self._writing.take(event)
            frames += [piece for told in made for piece in events.frame(told)]
        return frames

    def end(self) -> bytes:
        """Nothing: the last event says that it is the last."""
        return b""

    def failure(self, error: Exception) -> bytes:
        """The events of a response that fails."""
        return b"".join(piece for told in self._writing.fail(error) for piece in events.frame(told))


class Whole:
    """The whole response."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def add(self, prompt: int, happened: Sequence[Event]) -> int:  # noqa: ARG002
        """Takes events, in order; returns how many bytes more are held by then."""
        return sum(self._writing.take(event)[1] for event in happened)

    def body(self) -> list[bytes]:
        """The JSON in pieces, once all is written."""
        return self._writing.told()


def offset_after(recording: Recording, number: int) -> int:
    """The byte at which the events after the one of this number begin.

    Raises:
        InvalidRequest: some of them are no longer kept.
    """
    kept = b"\n\n" + recording.kept()
    first = _next_number(kept, 0, len(kept))
    if recording.n_dropped and (first is None or first[1] > number + 1):
        message = f"starting_after is {number}; the events after that one are no longer all kept"
        raise InvalidRequest("starting_after", message)
    # What begins before `low` has at most this number, and what begins at `high` or later has a larger one.
    low, high = 0, len(kept)
    while low < high:
        middle = (low + high) // 2
        found = _next_number(kept, middle, high)
        if found is None or found[1] > number:
            high = middle
        else:
            low = found[0] + 1
    # Two bytes stand before what is kept, as before the event.
    place = kept.find(_BEFORE, low)
    return recording.n_bytes if place < 0 else recording.n_dropped + place


def _next_number(kept: bytes, begin: int, end: int) -> tuple[int, int] | None:
    """Where between these bytes the empty line before an event begins, and the number of that event."""
    place = kept.find(_BEFORE, begin, end + len(_BEFORE) - 1)
    if place < 0 or (found := _NUMBERED.match(kept, place)) is None:
        return None
    return place, int(found[1])
