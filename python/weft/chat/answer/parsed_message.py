"""Assembles a complete message from its parts."""

from weft.chat.answer.parts import CallArguments, CallStart, Content, Part, Reasoning
from weft.chat.completion import ToolCall


class ParsedMessage:
    """Message of an assistant: content, reasoning and calls."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[CallStart] = []
        self._arguments: dict[int, list[str]] = {}

    def add(self, part: Part) -> None:
        """Appends a part."""
        match part:
            case Content(text):
                self._content.append(text)
            case Reasoning(text):
                self._reasoning.append(text)
            case CallStart():
                self._calls.append(part)
            case CallArguments(call, text):
                self._arguments.setdefault(call, []).append(text)

    @property
    def content(self) -> str:
        """Text for the user."""
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        """Text of the reasoning."""
        return "".join(self._reasoning)

    @property
    def calls(self) -> list[ToolCall]:
        """Tool calls, in order."""
        return [
            ToolCall(id=call.id, name=call.name, arguments="".join(self._arguments.get(call.call, []))) for call in self._calls
        ]
