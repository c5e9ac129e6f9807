"""Memory limits for responses that are collected before they are sent."""

from weft.errors import AnswerTooLargeError
from weft.server.errors import AnswersTooLargeError
from weft.server.run.memory_budget import MemoryBudget, Reservation

__all__ = ["MAX_ANSWER_BYTES", "MAX_TOGETHER_BYTES", "SMALL_BYTES", "TOKEN_BYTES", "ResponseReservation", "responses_budget"]

MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""Maximum size of one collected response. With a thousand top logprobs each, that is a few thousand tokens."""

MAX_TOGETHER_BYTES = 1024 * 1024 * 1024
"""Maximum total size of responses that are being collected or sent."""

SMALL_BYTES = 1024 * 1024
"""Part of each response that does not count toward the total, so that large responses cannot cause small ones to be refused."""

TOKEN_BYTES = 96
"""Memory of a collected token in addition to the characters of its text."""


def responses_budget() -> MemoryBudget:
    """Returns the memory budget that all collected responses share."""
    return MemoryBudget(MAX_TOGETHER_BYTES, SMALL_BYTES, AnswersTooLargeError)


class ResponseReservation(Reservation):
    """Memory of one collected response, released when its block is left."""

    def grow(self, n_bytes: int) -> None:
        """Reserves more bytes.

        Raises:
            AnswerTooLargeError: This response exceeds its limit.
            AnswersTooLargeError: All responses together exceed their limit.
        """
        if self.n_bytes + n_bytes > MAX_ANSWER_BYTES:
            raise AnswerTooLargeError(MAX_ANSWER_BYTES)
        super().grow(n_bytes)
