"""Memory that many requests share, with a limit for its total."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["MemoryBudget", "Reservation"]


class MemoryBudget:
    """Limit for the memory that all reservations take together.

    A single reservation is never refused, as its size is bounded elsewhere.
    """

    def __init__(self, max_bytes: int, small_bytes: int, full: Callable[[int], Exception]) -> None:
        """Creates an empty budget.

        Args:
            max_bytes: Maximum total, not counting the exempt part of each reservation.
            small_bytes: Exempt part of each reservation, so that large requests cannot cause small ones to be refused.
            full: Creates the exception for a full budget from `max_bytes`.
        """
        self.max_bytes = max_bytes
        self.small_bytes = small_bytes
        self.full = full
        self.n_bytes = 0
        """Reserved bytes, without the exempt part of each reservation."""


class Reservation:
    """Memory of one request within a budget, released when its block is left."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.n_bytes = 0
        """All bytes of this reservation, including its exempt part."""
        self._n_counted = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def release(self) -> None:
        """Releases the reservation. May be called twice."""
        self._budget.n_bytes -= self._n_counted
        self._n_counted = 0

    def grow(self, n_bytes: int) -> None:
        """Reserves more bytes.

        Raises:
            Exception: The budget's exception, if this and the other reservations would exceed it.
        """
        budget = self._budget
        self.n_bytes += n_bytes
        if (grown := self.n_bytes - budget.small_bytes - self._n_counted) > 0:
            if budget.n_bytes > self._n_counted and budget.n_bytes + grown > budget.max_bytes:
                raise budget.full(budget.max_bytes)
            budget.n_bytes += grown
            self._n_counted += grown
