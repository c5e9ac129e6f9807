"""The parts of an assistant's answer, as its text is read piece by piece."""

from typing import Protocol, Self

import msgspec

__all__ = ["PLAIN", "AnswerForm", "AnswerReader", "CallArguments", "CallBegun", "Content", "Part", "PlainForm", "Thought"]


class Content(msgspec.Struct, frozen=True):
    """A stretch of what is said to the user."""

    text: str


class Thought(msgspec.Struct, frozen=True):
    """A stretch of what the model thinks before it answers."""

    text: str


class CallBegun(msgspec.Struct, frozen=True):
    """A tool is called; its arguments follow."""

    call: int
    """The number of the call in this answer, from 0."""
    id: str
    """What its result is to be told by; no other call has the same."""
    name: str
    """The tool."""


class CallArguments(msgspec.Struct, frozen=True):
    """A stretch of a call's arguments; all of them together are one JSON object."""

    call: int
    text: str


Part = Content | Thought | CallBegun | CallArguments


class AnswerReader(Protocol):
    """Reads the text of one branch."""

    @property
    def is_cut(self) -> bool:
        """Whether the call that was begun last was not written to its end."""

    def read(self, text: str) -> list[Part]:
        """What a next stretch of the text adds; none of it where it may yet turn out to be something else."""

    def end(self, *, is_truncated: bool = False) -> list[Part]:
        """Returns the parts that were held back, once the text has ended.

        Text that is neither a thought nor a call is content. Where the text was cut off (`is_truncated`), as by `max_tokens`, the
        beginning of a call at its end is dropped.
        """


class AnswerForm(Protocol):
    """How the answers of a chat are to be read."""

    def reader(self) -> AnswerReader:
        """A reader of one branch, which has said nothing yet."""


class PlainForm:
    """Answers in which all is said to the user."""

    def reader(self) -> AnswerReader:
        """A reader of one branch."""
        return _Plain()

    def held(self) -> Self:
        """The same."""
        return self


PLAIN = PlainForm()


class _Plain:
    is_cut = False

    def read(self, text: str) -> list[Part]:
        return [Content(text)] if text else []

    def end(self, *, is_truncated: bool = False) -> list[Part]:  # noqa: ARG002 (every text is content)
        return []
