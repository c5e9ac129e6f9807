"""What many requests hold in memory together, and how much that may be."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["Room", "Share"]


class Room:
    """What many may take together. One alone is never refused for its size: that is bounded elsewhere."""

    def __init__(self, max_bytes: int, small_bytes: int, full: Callable[[int], Exception]) -> None:
        """Makes an empty one.

        Args:
            max_bytes: Most bytes, beyond the small part of each.
            small_bytes: So many of each do not count: who asks for little is not refused for what others ask for.
            full: What is raised where it is too much, of the most.
        """
        self.max_bytes = max_bytes
        self.small_bytes = small_bytes
        self.full = full
        self.n_bytes = 0
        """What is taken, beyond the small part of each."""


class Share:
    """What one takes of a room, until its block is left."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.n_bytes = 0
        """All of it."""
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
            Exception: what the room raises that is full: it is too much beside the others.
        """
        room = self._room
        self.n_bytes += n_bytes
        if (grown := self.n_bytes - room.small_bytes - self._n_counted) > 0:
            if room.n_bytes > self._n_counted and room.n_bytes + grown > room.max_bytes:
                raise room.full(room.max_bytes)
            room.n_bytes += grown
            self._n_counted += grown
