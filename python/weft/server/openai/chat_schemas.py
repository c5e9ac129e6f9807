"""The fields of OpenAI's chats, by its names (https://platform.openai.com/docs/api-reference/chat)."""

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
    """`POST /v1/chat/completions`. Any `model` is accepted: there is one."""

    model: str | None = None
    stream_options: StreamOptions | None = None


class ChatLogprobs(msgspec.Struct):
    """One entry for each token."""

    content: list[TokenProbability]
    refusal: None = None
    """Those of a refusal, of which there is none."""


class CalledFunction(msgspec.Struct, kw_only=True):
    """The function that is called, and what with: the JSON of an object, or in a chunk a piece of it."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    """One call."""

    index: int | msgspec.UnsetType = msgspec.UNSET
    """Which call of its message a chunk goes on with, from 0."""
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: str | msgspec.UnsetType = msgspec.UNSET
    function: CalledFunction


class Message(msgspec.Struct):
    """What the assistant says. There is no content where it only calls."""

    role: str
    content: str | None
    refusal: None = None
    """What OpenAI's models say in place of an answer that they refuse; there is no such thing here."""
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    function_call: CalledFunction | msgspec.UnsetType = msgspec.UNSET
    """The call, where the body had `functions`."""


class ChatChoice(msgspec.Struct):
    """One branch."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: str
    score: float | msgspec.UnsetType = msgspec.UNSET
    """With `beam_width`: what ranks it, the greater the better."""


class ChatCompletion(msgspec.Struct):
    """The whole answer."""

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
    """llama-server's own answer, of the first branch."""


class Delta(msgspec.Struct):
    """What a chunk adds to a message: first its role, with no content yet, then texts, then nothing."""

    role: str | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType | None = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    function_call: CalledFunction | msgspec.UnsetType = msgspec.UNSET


class ChunkChoice(msgspec.Struct):
    """A stretch of one branch."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    score: float | msgspec.UnsetType = msgspec.UNSET
    """As of a whole answer, at a branch's end."""


class ChatChunk(msgspec.Struct):
    """One event of a stream.

    `usage` is there where `include_usage` asks for it: null until the last chunk, which has no choices. `timings` come with
    the end of a branch, in that last chunk with the sums over all, and with each token where `timings_per_token` asks for it.
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
    """llama-server's own last event of a branch, with its end."""


class InputTokens(msgspec.Struct):
    """How long a prompt is, in tokens."""

    object: str
    input_tokens: int
