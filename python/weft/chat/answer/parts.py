"""Parts of an assistant's answer, and the interface of the readers that parse streamed text into them."""

from typing import Self

import msgspec


class Content(msgspec.Struct, frozen=True):
    """Text for the user."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """Text of the model's reasoning."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    """Beginning of a tool call, which its arguments follow."""

    call: int
    """Index of the call in the answer, from 0."""
    id: str
    """Unique id of the call. The message with its result contains it."""
    name: str
    """Name of the tool."""


class CallArguments(msgspec.Struct, frozen=True):
    """Piece of a call's arguments. All pieces together are one JSON object."""

    call: int
    text: str


Part = Content | Reasoning | CallStart | CallArguments


class AnswerReader:
    """Incremental parser of the text of one branch. This one is for answers without a format: all text is content."""

    @property
    def is_cut(self) -> bool:
        """True if the last call is incomplete."""
        return False

    def read(self, text: str) -> list[Part]:
        """Parses the next piece of the text. Text that is still ambiguous is held back."""
        return [Content(text)] if text else []

    def end(self, *, is_truncated: bool = False) -> list[Part]:  # noqa: ARG002 (every text is content)
        """Ends the text, and returns the parts that were held back.

        Text that is neither reasoning nor a call becomes content. If the text was truncated (`is_truncated`), for example by
        `max_tokens`, an incomplete call at its end is dropped.
        """
        return []


class AnswerForm:
    """How to parse the answers of a chat. This one is for answers without a format: all text is content."""

    def reader(self) -> AnswerReader:
        """Returns a new reader for one branch."""
        return AnswerReader()

    def constrained(self) -> Self:
        """Returns the form for answers that a grammar constrains after the first reasoning, which only its end mark ends."""
        return self


PLAIN = AnswerForm()
