"""Fields of OpenAI's chats (https://platform.openai.com/docs/api-reference/chat)."""

import msgspec

from weft.server.openai.schemas import Completion, StreamOptions
from weft.server.request_fields.chat import ChatFields
from weft.server.response_fields.probabilities import TokenProbability


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


class ChatCompletion(Completion, kw_only=True):
    """The complete response."""

    choices: list[ChatChoice]


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


class InputTokens(msgspec.Struct):
    """Length of a prompt, in tokens."""

    object: str
    input_tokens: int
