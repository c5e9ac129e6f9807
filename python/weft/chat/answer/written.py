"""Assembles a complete message from its parts."""

from typing import NamedTuple

from weft.chat.answer.parts import CallArguments, CallBegun, Content, Part, Thought

__all__ = ["WrittenCall", "WrittenMessage"]


class WrittenCall(NamedTuple):
    """Tool call."""

    id: str
    name: str
    arguments: str
    """JSON of an object; incomplete if the answer was truncated within the call."""


class WrittenMessage:
    """Message of an assistant: content, reasoning and calls."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._thought: list[str] = []
        self._calls: list[CallBegun] = []
        self._arguments: dict[int, list[str]] = {}

    def add(self, part: Part) -> None:
        """Appends a part."""
        match part:
            case Content(text):
                self._content.append(text)
            case Thought(text):
                self._thought.append(text)
            case CallBegun():
                self._calls.append(part)
            case CallArguments(call, text):
                self._arguments.setdefault(call, []).append(text)

    @property
    def content(self) -> str:
        """Text for the user."""
        return "".join(self._content)

    @property
    def thought(self) -> str:
        """Text of the reasoning."""
        return "".join(self._thought)

    @property
    def calls(self) -> list[WrittenCall]:
        """Tool calls, in order."""
        return [WrittenCall(call.id, call.name, "".join(self._arguments.get(call.call, []))) for call in self._calls]
