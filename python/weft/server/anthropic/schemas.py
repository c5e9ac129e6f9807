"""The fields of `/v1/messages`, by Anthropic's names (https://docs.anthropic.com/en/api/messages)."""

from typing import Any, Literal

import msgspec

from weft import CacheExplanation

__all__ = [
    "Block",
    "BlockDelta",
    "BlockStart",
    "BlockStop",
    "CountTokens",
    "CreateMessage",
    "Failure",
    "InputDelta",
    "MessageDelta",
    "MessageEnd",
    "MessageObject",
    "MessageParam",
    "MessageStart",
    "MessageStop",
    "MessagesError",
    "MessagesErrorBody",
    "OutputConfig",
    "OutputFormat",
    "Ping",
    "SignatureDelta",
    "Source",
    "TextBlock",
    "TextDelta",
    "ThinkingBlock",
    "ThinkingConfig",
    "ThinkingDelta",
    "TokensCounted",
    "ToolChoice",
    "ToolParam",
    "ToolUseBlock",
    "Usage",
]


class CacheControl(msgspec.Struct):
    """A mark that what stands before it will come again. On tools and the system's blocks it pins them for a while."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Source(msgspec.Struct):
    """Where a picture is: `base64` with its `media_type` and `data`, or `url`."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class Block(msgspec.Struct, kw_only=True):
    """A part of a message: `text`, `image`, `thinking`, `redacted_thinking`, `tool_use` or `tool_result`, with its fields."""

    type: str
    text: str | None = None
    source: Source | None = None
    thinking: str | None = None
    signature: str | None = None
    """Not looked at: a thought is taken whoever had it."""
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: "str | list[Block] | None" = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


class MessageParam(msgspec.Struct):
    """What one side said: `user`, `assistant` or `system`."""

    role: str
    content: str | list[Block]


class ToolParam(msgspec.Struct, kw_only=True):
    """A tool that the model may use."""

    name: str
    type: str | None = None
    """`custom`, which is the default; a tool of the server is refused."""
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    cache_control: CacheControl | None = None


class ToolChoice(msgspec.Struct):
    """Whether a tool must be used: `auto`, `any`, `none`, or `tool` with its `name`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(msgspec.Struct):
    """Whether the model thinks first, and for how many tokens at most. `omitted` leaves the text of the thought out."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, rename={"json_schema": "schema"}):
    """What the text must be."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any]


class OutputConfig(msgspec.Struct):
    """How the answer is to be."""

    effort: str | None = None
    """The template's variable `reasoning_effort`."""
    format: OutputFormat | None = None


class CountTokens(msgspec.Struct, kw_only=True):
    """`POST /v1/messages/count_tokens`. Any `model` is accepted: there is one."""

    model: str | None = None
    messages: list[MessageParam] | None = None
    system: str | list[Block] | None = None
    tools: list[ToolParam] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """What `output_config.format` was called before."""
    cache_control: CacheControl | None = None

    # What follows is refused unless it asks for nothing.
    container: Any = None
    context_management: Any = None
    diagnostics: Any = None
    inference_geo: str | None = None
    mcp_servers: Any = None
    speed: str | None = None


class CreateMessage(CountTokens, kw_only=True):
    """`POST /v1/messages`."""

    max_tokens: int | None = None
    """Most tokens that are written; none is the server's own limit. 0 only computes the prompt."""
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    metadata: dict[str, Any] | None = None
    """Who asks, which is not looked at."""
    service_tier: str | None = None
    """`auto` and `standard_only` are the same: there is one."""

    # Weft's own.
    explain_cache: bool | None = None
    """Whether the answer tells why what was computed of the prompt had to be: `cache_explanation`."""


class Usage(msgspec.Struct, kw_only=True):
    """Tokens: of the prompt those that were computed and those that were found computed, and those that were written."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """A stretch of what is said to the user."""

    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """A thought. Nothing is signed here."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call of a tool. Arguments that are no JSON object, as where the answer was cut, are the text `INVALID_JSON` in one."""

    id: str
    name: str
    input: dict[str, Any]


class MessageObject(msgspec.Struct, tag_field="type", tag="message", kw_only=True):
    """The whole answer; at the beginning of a stream, what is known of it by then."""

    id: str
    role: str = "assistant"
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Usage
    cache_explanation: CacheExplanation | msgspec.UnsetType = msgspec.UNSET


class TokensCounted(msgspec.Struct):
    """How long the prompt is."""

    input_tokens: int


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    """The first event of a stream."""

    message: MessageObject


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    """A block begins, with nothing in it yet."""

    index: int
    content_block: TextBlock | ThinkingBlock | ToolUseBlock


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    """What is added to a text."""

    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    """What is added to a thought."""

    thinking: str


class SignatureDelta(msgspec.Struct, tag_field="type", tag="signature_delta"):
    """The end of a thought."""

    signature: str


class InputDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    """What is added to the arguments of a tool: together they are a JSON object."""

    partial_json: str


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    """A block grows."""

    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    """A block is whole."""

    index: int


class MessageEnd(msgspec.Struct):
    """Why the answer ended."""

    stop_reason: str
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    """The end of the answer, with all that it cost."""

    delta: MessageEnd
    usage: Usage
    cache_explanation: CacheExplanation | msgspec.UnsetType = msgspec.UNSET


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    """The last event of a stream."""


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    """Nothing happened for a while."""


class MessagesError(msgspec.Struct):
    """What went wrong."""

    type: str
    message: str


class MessagesErrorBody(msgspec.Struct):
    """The body of every answer of `/v1/messages` that is an error."""

    type: Literal["error"]
    error: MessagesError


class Failure(msgspec.Struct, tag_field="type", tag="error"):
    """The end of a stream that could not be written to its end."""

    error: MessagesError
