"""Fields of OpenAI's chats (https://platform.openai.com/docs/api-reference/chat)."""

import msgspec

from weft import CacheExplanation
from weft.server.openai.schemas import StreamOptions, Usage
from weft.server.request_fields.chat import ChatFields
from weft.server.response_fields import CompletionResult, PromptProgress, Timings, TokenProbability
from weft.server.response_fields.explanation import Explained

__all__ = [
    "CalledFunction",
    "ChatChoice",
    "ChatChunk",
    "ChatCompletion",
    "ChatLogprobs",
    "ChunkChoice",
    "CreateChatCompletion",
    "Delta",
    "InputTokens",
    "Message",
    "ToolCall",
]


class CreateChatCompletion(ChatFields, kw_only=True):
    """`POST /v1/chat/completions`. `model` is ignored: there is one model."""

    model: str | None = None
    stream_options: StreamOptions | None = None


class ChatLogprobs(msgspec.Struct):
    """Logprobs of a message, one entry per token."""

    content: list[TokenProbability]
    refusal: None = None
    """Logprobs of a refusal, which never occurs."""


class CalledFunction(msgspec.Struct, kw_only=True):
    """Name and arguments of a function call: the JSON of an object, or in a chunk a piece of it."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    """A tool call."""

    index: int | msgspec.UnsetType = msgspec.UNSET
    """Index within the message of the call that a chunk continues."""
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: str | msgspec.UnsetType = msgspec.UNSET
    function: CalledFunction


class Message(msgspec.Struct):
    """The assistant's message. `content` is null if there are only calls."""

    role: str
    content: str | None
    refusal: None = None
    """Refusals of OpenAI's models; always null here."""
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    function_call: CalledFunction | msgspec.UnsetType = msgspec.UNSET
    """The call, if the body has `functions`."""


class ChatChoice(msgspec.Struct):
    """A branch."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: str
    score: float | msgspec.UnsetType = msgspec.UNSET
    """With `beam_width`: the rank score; higher is better."""


class ChatCompletion(msgspec.Struct):
    """The complete response."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings
    cache_explanation: Explained = msgspec.UNSET
    verbose: CompletionResult | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="__verbose")
    """llama-server's result of the first branch."""


class Delta(msgspec.Struct):
    """Additions of a chunk to a message: first its role without content, then text, finally nothing."""

    role: str | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType | None = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    function_call: CalledFunction | msgspec.UnsetType = msgspec.UNSET


class ChunkChoice(msgspec.Struct):
    """A piece of a branch."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    score: float | msgspec.UnsetType = msgspec.UNSET
    """Rank score at a branch's end, as in complete responses."""


class ChatChunk(msgspec.Struct):
    """An event of a stream.

    With `include_usage`, `usage` is null until the last chunk, which has no choices. `timings` are sent at the end of a branch,
    in that last chunk as totals, and with `timings_per_token` for each token.
    """

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET
    prompt_progress: PromptProgress | msgspec.UnsetType = msgspec.UNSET
    cache_explanation: CacheExplanation | msgspec.UnsetType = msgspec.UNSET
    verbose: CompletionResult | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="__verbose")
    """llama-server's last event of a branch, at its end."""


class InputTokens(msgspec.Struct):
    """Length of a prompt, in tokens."""

    object: str
    input_tokens: int
