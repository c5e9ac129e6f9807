"""What whole answers hold in memory until they are sent, and how much that may be."""

from weft.server.errors import AnswersTooLargeError, AnswerTooLargeError
from weft.server.run.room import Room, Share

__all__ = ["MAX_ANSWER_BYTES", "MAX_TOGETHER_BYTES", "SMALL_BYTES", "TOKEN_BYTES", "Collected", "answers_room"]

MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""Most that one whole answer may come to. With a thousand likely tokens beside each, that is some thousand tokens."""

MAX_TOGETHER_BYTES = 1024 * 1024 * 1024
"""Most that all whole answers may come to that wait for their ends, or are being sent."""

SMALL_BYTES = 1024 * 1024
"""So much of each answer does not count together with others: who asks for little is not refused for what others ask for."""

TOKEN_BYTES = 96
"""What a token takes beside the characters of its text, as long as its answer is collected."""


def answers_room() -> Room:
    """What all whole answers take together."""
    return Room(MAX_TOGETHER_BYTES, SMALL_BYTES, AnswersTooLargeError)


class Collected(Share):
    """What one whole answer takes, until its block is left."""

    def grow(self, n_bytes: int) -> None:
        """Takes so much more.

        Raises:
            AnswerTooLargeError: it is too much for one answer.
            AnswersTooLargeError: it is too much beside the others.
        """
        if self.n_bytes + n_bytes > MAX_ANSWER_BYTES:
            raise AnswerTooLargeError(MAX_ANSWER_BYTES)
        super().grow(n_bytes)
