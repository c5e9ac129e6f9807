"""How a response is sent: as its events, or whole. And where its events are continued from."""

import re
from collections.abc import Sequence

import msgspec

from weft.server.errors import OffsetLostError
from weft.server.responses import events
from weft.server.responses.writing import Writing
from weft.server.run.collected import Collected
from weft.server.run.generation import Event
from weft.server.run.recording import Recording

__all__ = ["Stream", "Whole", "offset_after"]

_NUMBERED = re.compile(rb'^event: [^\n]*\ndata: \{"type":"[^"]*","sequence_number":([0-9]+)', re.MULTILINE)


class Stream:
    """The events of a response; what is written is held until its end, which tells all of it again."""

    def __init__(self, writing: Writing, collected: Collected) -> None:
        self._writing = writing
        self._collected = collected

    def opening(self) -> bytes:
        """The events that come before anything is written."""
        return b"".join(map(events.frame, self._writing.begin()))

    def frames(self, prompt: int, happened: Sequence[Event]) -> list[bytes]:  # noqa: ARG002
        """The frames of events, in order.

        Raises:
            AnswerTooLargeError: more was written than is held.
            AnswersTooLargeError: it is too much beside the others.
        """
        frames: list[bytes] = []
        for event in happened:
            made, n_bytes = self._writing.take(event)
            self._collected.grow(n_bytes)
            frames += map(events.frame, made)
        return frames

    def end(self) -> bytes:
        """Nothing: the last event says that it is the last."""
        return b""

    def failure(self, error: Exception) -> bytes:
        """The events of a response that fails."""
        return b"".join(map(events.frame, self._writing.fail(error)))


class Whole:
    """The whole response."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def add(self, prompt: int, happened: Sequence[Event]) -> int:  # noqa: ARG002
        """Takes events, in order; returns how many bytes more are held by then."""
        return sum(self._writing.take(event)[1] for event in happened)

    def body(self) -> list[bytes]:
        """The JSON, once all is written."""
        return [msgspec.json.encode(self._writing.response)]


def offset_after(recording: Recording, number: int) -> int:
    """The byte at which the events after the one of this number begin.

    Raises:
        OffsetLostError: some of them are no longer kept.
    """
    kept = recording.kept()
    begin = recording.n_bytes - len(kept)
    is_first = True
    for found in _NUMBERED.finditer(kept):
        if int(found[1]) > number:
            if is_first and int(found[1]) > number + 1:
                raise OffsetLostError(0, begin)
            return begin + found.start()
        is_first = False
    return recording.n_bytes
