"""Interface between the chat in the terminal and the models that it can use."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from weft.errors import WeftError

Messages = Sequence[Mapping[str, Any]]
"""Messages in OpenAI's format."""


class ChatModelError(WeftError):
    """A server did not answer. The message names the reason, in one line."""


class Piece(NamedTuple):
    """Next piece of the text of one answer."""

    answer: int
    """Index of the answer, from 0."""
    kind: Literal["content", "reasoning"]
    text: str


class ChatModel(Protocol):
    """A model that answers chats. Every method blocks."""

    @property
    def name(self) -> str:
        """Name of the model, for the user."""

    def answer(self, messages: Messages, n: int) -> Generator[Piece, None, None]:
        """Yields the pieces of `n` answers to a chat as they are generated. Closing the iterator cancels the answers.

        Raises:
            WeftError: The model did not answer.
        """

    def close(self) -> None:
        """Releases the model."""
