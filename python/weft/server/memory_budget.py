"""Memory that many requests share: of bodies until they are decoded, and of responses that are collected before they are sent."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from weft.errors import AnswerTooLargeError
from weft.server.errors import AnswersTooLargeError

MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""Maximum size of one collected response. With a thousand top logprobs each, that is a few thousand tokens."""

MAX_TOGETHER_BYTES = 1024 * 1024 * 1024
"""Maximum total size of responses that are being collected or sent."""

SMALL_BYTES = 1024 * 1024
"""Exempt part of each response."""

TOKEN_BYTES = 96
"""Memory of a collected token in addition to the characters of its text."""


class MemoryBudget:
    """Limits for the memory of each reservation, and of all together."""

    def __init__(
        self, max_bytes: int, small_bytes: int, full: Callable[[int], Exception], *, max_one_bytes: int | None = None
    ) -> None:
        """Creates an empty budget.

        Args:
            max_bytes: Maximum total, not counting the exempt part of each reservation. Does not limit a single reservation.
            small_bytes: Exempt part of each reservation, so that large requests cannot cause small ones to be refused.
            full: Creates the exception for a full budget from `max_bytes`.
            max_one_bytes: Maximum of one reservation; None if its size is bounded elsewhere.
        """
        self.max_bytes = max_bytes
        self.small_bytes = small_bytes
        self.full = full
        self.max_one_bytes = max_one_bytes
        self.n_bytes = 0
        """Reserved bytes, without the exempt part of each reservation."""


def responses_budget() -> MemoryBudget:
    """Returns the memory budget that all collected responses share."""
    return MemoryBudget(MAX_TOGETHER_BYTES, SMALL_BYTES, AnswersTooLargeError, max_one_bytes=MAX_ANSWER_BYTES)


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
            AnswerTooLargeError: This reservation would exceed its limit.
            Exception: The budget's exception, if all reservations together would exceed it.
        """
        budget = self._budget
        if budget.max_one_bytes is not None and self.n_bytes + n_bytes > budget.max_one_bytes:
            raise AnswerTooLargeError(budget.max_one_bytes)
        self.n_bytes += n_bytes
        if (grown := self.n_bytes - budget.small_bytes - self._n_counted) > 0:
            if budget.n_bytes > self._n_counted and budget.n_bytes + grown > budget.max_bytes:
                raise budget.full(budget.max_bytes)
            budget.n_bytes += grown
            self._n_counted += grown
