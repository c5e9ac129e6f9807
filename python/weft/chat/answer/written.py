"""A whole message, put together of its parts."""

from typing import NamedTuple

from weft.chat.answer.parts import CallArguments, CallBegun, Content, Part, Thought

__all__ = ["WrittenCall", "WrittenMessage"]


class WrittenCall(NamedTuple):
    """One call of a tool."""

    id: str
    name: str
    arguments: str
    """The JSON of an object, or its beginning, where the answer was cut off in it."""


class WrittenMessage:
    """What an assistant said, thought and called."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._thought: list[str] = []
        self._begun: list[CallBegun] = []
        self._arguments: dict[int, list[str]] = {}

    def add(self, part: Part) -> None:
        """Takes the next part."""
        match part:
            case Content(text):
                self._content.append(text)
            case Thought(text):
                self._thought.append(text)
            case CallBegun():
                self._begun.append(part)
            case CallArguments(call, text):
                self._arguments.setdefault(call, []).append(text)

    @property
    def content(self) -> str:
        """What was said."""
        return "".join(self._content)

    @property
    def thought(self) -> str:
        """What was thought."""
        return "".join(self._thought)

    @property
    def calls(self) -> list[WrittenCall]:
        """The calls, in order."""
        return [WrittenCall(begun.id, begun.name, "".join(self._arguments.get(begun.call, []))) for begun in self._begun]
