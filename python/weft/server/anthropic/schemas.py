"""Fields of `/v1/messages`, with Anthropic's names (https://docs.anthropic.com/en/api/messages)."""

from typing import Annotated, Any, Literal

import msgspec

from weft import CacheExplanation
from weft.server.request_fields.unsupported import EMPTY, UnsupportedUnless


class CacheControl(msgspec.Struct):
    """Marks the preceding content for reuse. On tools and system blocks it pins the prefix for a while."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Source(msgspec.Struct):
    """Source of an image: `base64` with its `media_type` and `data`, or `url`."""

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
    """Ignored: thinking of any origin is accepted."""
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: "str | list[Block] | None" = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


class MessageParam(msgspec.Struct):
    """A message with the role `user`, `assistant` or `system`."""

    role: str
    content: str | list[Block]


class ToolParam(msgspec.Struct, kw_only=True):
    """A tool that the model may use."""

    name: str
    type: str | None = None
    """`custom` (the default); server-side tools are refused."""
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    cache_control: CacheControl | None = None


class ToolChoice(msgspec.Struct):
    """Tool choice: `auto`, `any`, `none`, or `tool` with its `name`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(msgspec.Struct):
    """Enables reasoning and limits its tokens. `omitted` leaves its text out of the response."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, rename={"json_schema": "schema"}):
    """Constraint for the text."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any]


class OutputConfig(msgspec.Struct):
    """Options of the output."""

    effort: str | None = None
    """The template's variable `reasoning_effort`."""
    format: OutputFormat | None = None


def _clears_nothing(management: Any) -> bool:  # noqa: ANN401 (any JSON)
    """Returns whether context management keeps everything, as Claude Code requests."""
    if not isinstance(management, dict) or management.keys() - {"edits"}:
        return False
    edits = management.get("edits") or []
    return isinstance(edits, list) and all(edit == {"type": "clear_thinking_20251015", "keep": "all"} for edit in edits)


class CountTokens(msgspec.Struct, kw_only=True):
    """`POST /v1/messages/count_tokens`. `model` is ignored: there is one model."""

    model: str | None = None
    messages: list[MessageParam] | None = None
    system: str | list[Block] | None = None
    tools: list[ToolParam] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """Earlier name of `output_config.format`."""
    cache_control: CacheControl | None = None

    # UnsupportedUnless: refused unless the value disables the feature.
    container: Annotated[Any, EMPTY] = None
    context_management: Annotated[Any, UnsupportedUnless(_clears_nothing)] = None
    diagnostics: Annotated[Any, EMPTY] = None
    inference_geo: Annotated[str | None, EMPTY] = None
    mcp_servers: Annotated[Any, EMPTY] = None
    speed: Annotated[str | None, UnsupportedUnless(lambda value: value == "standard")] = None


class CreateMessage(CountTokens, kw_only=True):
    """`POST /v1/messages`."""

    max_tokens: int | None = None
    """Maximum generated tokens; defaults to the server's limit. 0 only computes the prompt."""
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    metadata: dict[str, Any] | None = None
    """Metadata about the user; ignored."""
    service_tier: Annotated[str | None, UnsupportedUnless(lambda value: value in ("auto", "standard_only"))] = None
    """`auto` and `standard_only` are equivalent."""

    # Weft's own fields.
    explain_cache: bool | None = None
    """Adds `cache_explanation` to the response: which prompt tokens had to be computed, and why."""


class Usage(msgspec.Struct, kw_only=True):
    """Tokens: computed and cached prompt tokens, and generated tokens."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """Text of the answer."""

    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """Reasoning. The signature is always empty."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A tool call. Arguments that are not a JSON object, as in a truncated response, are a text under `INVALID_JSON`."""

    id: str
    name: str
    input: dict[str, Any]


class MessageObject(msgspec.Struct, tag_field="type", tag="message", kw_only=True):
    """The complete response; in a stream's first event, without what is not known yet."""

    id: str
    role: str = "assistant"
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Usage
    cache_explanation: CacheExplanation | msgspec.UnsetType = msgspec.UNSET


class TokensCounted(msgspec.Struct):
    """Length of a prompt, in tokens."""

    input_tokens: int


class MessagesError(msgspec.Struct):
    """An error."""

    type: str
    message: str


class MessagesErrorBody(msgspec.Struct):
    """Body of every error response of `/v1/messages`."""

    type: Literal["error"]
    error: MessagesError
