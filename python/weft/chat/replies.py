"""The whole answer to a chat, for Python: what was said, thought and called."""

from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any, Self

import msgspec

from weft.answer import Answer, Branch
from weft.chat.answer.parts import AnswerForm
from weft.chat.answer.written import WrittenMessage
from weft.fields.about import About, described

__all__ = ["ChatAnswer", "Reply", "ToolCall"]

WHOLE_REASONS = ("end", "stop")
"""Reasons to end of answers that were not cut off."""

PIECE = 4_096
"""Characters that are read at once."""


@described
class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a tool."""

    id: Annotated[str, About("what its result is to be told by, as `tool_call_id`; no other call has the same")]
    name: Annotated[str, About("the tool")]
    arguments: Annotated[str, About("the JSON of an object; its beginning, or nothing, where the answer was cut off in the call")]


@described
class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What the assistant says in one branch."""

    content: Annotated[str, About("what is said to the user")]
    reasoning_content: Annotated[str, About("what the model thought before; empty where it does not, or its format is not known")]
    tool_calls: Annotated[tuple[ToolCall, ...], About("the calls, in order")]

    def message(self) -> dict[str, Any]:
        """The message by OpenAI's names, which goes before the next question or the results of the calls."""
        told: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning_content:
            told["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            told["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return told


@described
class ChatAnswer(Answer, frozen=True, kw_only=True):
    """The whole answer to a chat."""

    replies: Annotated[tuple[Reply, ...], About("what each branch says, thinks and calls, in order of index")]

    @property
    def reply(self) -> Reply:
        """That of branch 0."""
        return self.replies[0]

    @classmethod
    def of(cls, answer: Answer, form: AnswerForm) -> Self:
        """An answer whose branches are read in this way."""
        fields = {name: getattr(answer, name) for name in answer.__struct_fields__}
        return cls(**fields, replies=_replies(answer.branches, form))


def _replies(branches: Sequence[Branch], form: AnswerForm) -> tuple[Reply, ...]:
    return tuple(_reply(branch, form) for branch in branches)


def _reply(branch: Branch, form: AnswerForm) -> Reply:
    reader, written = form.reader(), WrittenMessage()
    text, is_truncated = branch.text, branch.reason not in WHOLE_REASONS
    # In pieces, because of what is held back all may be looked at again.
    pieces = (text[start : start + PIECE] for start in range(0, len(text), PIECE))
    for part in [*chain.from_iterable(map(reader.read, pieces)), *reader.end(is_truncated=is_truncated)]:
        written.add(part)
    calls = tuple(ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in written.calls)
    return Reply(content=written.content, reasoning_content=written.thought, tool_calls=calls)
