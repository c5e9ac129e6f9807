"""Complete answers to a chat: a message for each choice."""

from typing import Annotated, Any

import msgspec

from weft.chat.answer.branches import ChatFinishReason
from weft.events import CacheExplanation, Logprobs, Usage
from weft.fields.meta import described


@described
class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a tool, as in chats of OpenAI."""

    id: Annotated[str, "unique id of the call; the message with its result has it as `tool_call_id`"]
    name: Annotated[str, "name of the tool"]
    arguments: Annotated[str, "JSON of an object; incomplete or empty if the answer was truncated within the call"]


@described
class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Message of the assistant."""

    content: Annotated[str, "text for the user"] = ""
    reasoning_content: Annotated[str, "text of the model's reasoning; empty without reasoning, or if its format is unknown"] = ""
    tool_calls: Annotated[tuple[ToolCall, ...], "tool calls, in order"] = ()

    def to_dict(self) -> dict[str, Any]:
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
class ChoiceFinished(msgspec.Struct, frozen=True, kw_only=True):
    """End of one choice, with its finish reason and token counts."""

    index: Annotated[int, "index of the choice, `0 <= index < n`; forks have the indices from `n` on"]
    finish_reason: Annotated[
        ChatFinishReason,
        '"stop": the model ended its answer, or a stop string occurred. "tool_calls": the same, and the answer calls tools. '
        '"length": a limit such as `max_tokens` was reached, or the context is full. "cancelled": `ChatStream.cancel` was '
        "called",
    ]
    stop_reason: Annotated[str | int | None, "stop string or end token that ended the answer, or None"] = None
    is_context_full: Annotated[bool, "True if the context filled up before any other limit was reached"] = False
    is_truncated: Annotated[bool, "True if the context was full; see `Finished.is_truncated`"] = False
    usage: Annotated[Usage, "token counts and timings"]
    score: Annotated[float | None, "ranking score of a beam search; see `Finished.score`"] = None
    explanation: Annotated[CacheExplanation | None, "explanation of cache misses; see `Finished.explanation`"] = None


@described
class ChatChoice(ChoiceFinished, frozen=True, kw_only=True):
    """One answer to a chat."""

    message: Annotated[AssistantMessage, "the message"]
    token_ids: Annotated[tuple[int, ...], "generated token ids, including an end token"]
    logprobs: Annotated[tuple[Logprobs, ...], "one entry per token if `logprobs` was requested, else empty"] = ()


@described
class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """Complete answers to a chat."""

    choices: Annotated[tuple[ChatChoice, ...], "the answers, in order of index"]
    seed: Annotated[int, "seed of choice 0; choice `i` used `seed + i` (modulo 2³²)"]
    n_prompt: Annotated[int, "prompt length in tokens"]
    prompt_logprobs: Annotated[
        tuple[Logprobs | None, ...],
        "one entry per prompt token (None for the first) if the request set `prompt_logprobs`, else empty",
    ] = ()

    @property
    def message(self) -> AssistantMessage:
        """Message of choice 0."""
        return self.choices[0].message

    @property
    def n_computed(self) -> int:
        """Prompt tokens that were computed for all choices together."""
        return sum(choice.usage.n_computed for choice in self.choices)
