"""Complete answers to a chat, for the Python API: content, reasoning and calls."""

from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any, Self

import msgspec

from weft.chat.answer.parsed_message import ParsedMessage
from weft.chat.answer.parts import AnswerForm
from weft.completion import Choice, Completion
from weft.fields.meta import FieldMeta, described

__all__ = ["ChatAnswer", "Reply", "ToolCall"]

PIECE = 4_096
"""Characters of a text that are parsed in one step."""


@described
class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """Tool call."""

    id: Annotated[str, FieldMeta("unique id of the call; the message with its result has it as `tool_call_id`")]
    name: Annotated[str, FieldMeta("name of the tool")]
    arguments: Annotated[str, FieldMeta("JSON of an object; incomplete or empty if the answer was truncated within the call")]


@described
class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Message of the assistant in one branch."""

    content: Annotated[str, FieldMeta("text for the user")]
    reasoning_content: Annotated[
        str, FieldMeta("text of the model's reasoning; empty without reasoning, or if its format is unknown")
    ]
    tool_calls: Annotated[tuple[ToolCall, ...], FieldMeta("tool calls, in order")]

    def message(self) -> dict[str, Any]:
        """Returns the message in OpenAI's format, to append to the chat before the next message."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning_content:
            message["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return message


@described
class ChatAnswer(Completion, frozen=True, kw_only=True):
    """Complete answer to a chat."""

    replies: Annotated[tuple[Reply, ...], FieldMeta("message of each branch, in order of index")]

    @property
    def reply(self) -> Reply:
        """The reply of branch 0."""
        return self.replies[0]

    @classmethod
    def of(cls, answer: Completion, form: AnswerForm) -> Self:
        """Creates a chat answer by parsing the branches of an answer."""
        fields = {name: getattr(answer, name) for name in answer.__struct_fields__}
        return cls(**fields, replies=_replies(answer.choices, form))


def _replies(branches: Sequence[Choice], form: AnswerForm) -> tuple[Reply, ...]:
    return tuple(_reply(branch, form) for branch in branches)


def _reply(branch: Choice, form: AnswerForm) -> Reply:
    reader, written = form.reader(), ParsedMessage()
    text, is_truncated = branch.text, branch.finish_reason != "stop"
    # In pieces: the reader may scan all text again that it holds back.
    pieces = (text[start : start + PIECE] for start in range(0, len(text), PIECE))
    for part in [*chain.from_iterable(map(reader.read, pieces)), *reader.end(is_truncated=is_truncated)]:
        written.add(part)
    calls = tuple(ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in written.calls)
    return Reply(content=written.content, reasoning_content=written.thought, tool_calls=calls)
