"""What whole answers hold in memory until they are sent, and how much that may be."""

from types import TracebackType
from typing import Self

from weft.server.errors import AnswersTooLargeError, AnswerTooLargeError

__all__ = ["MAX_ANSWER_BYTES", "MAX_TOGETHER_BYTES", "SMALL_BYTES", "TOKEN_BYTES", "Collected", "Room"]

MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""Most that one whole answer may come to. With a thousand likely tokens beside each, that is some thousand tokens."""

MAX_TOGETHER_BYTES = 1024 * 1024 * 1024
"""Most that all whole answers may come to that wait for their ends, or are being sent."""

SMALL_BYTES = 1024 * 1024
"""So much of each answer does not count together with others: who asks for little is not refused for what others ask for."""

TOKEN_BYTES = 96
"""What a token takes beside the characters of its text, as long as its answer is collected."""


class Room:
    """What all whole answers take together."""

    def __init__(self) -> None:
        self.n_bytes = 0
        """Beyond the small part of each."""


class Collected:
    """What one whole answer takes, until its block is left."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._n_bytes = 0
        self._n_counted = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def release(self) -> None:
        """Gives all of it back. May be called twice."""
        self._room.n_bytes -= self._n_counted
        self._n_counted = 0

    def grow(self, n_bytes: int) -> None:
        """Takes so much more.

        Raises:
            AnswerTooLargeError: it is too much for one answer.
            AnswersTooLargeError: it is too much beside the others.
        """
        self._n_bytes += n_bytes
        if self._n_bytes > MAX_ANSWER_BYTES:
            raise AnswerTooLargeError(MAX_ANSWER_BYTES)
        if (grown := self._n_bytes - SMALL_BYTES - self._n_counted) > 0:
            if self._room.n_bytes + grown > MAX_TOGETHER_BYTES:
                raise AnswersTooLargeError(MAX_TOGETHER_BYTES)
            self._room.n_bytes += grown
            self._n_counted += grown
