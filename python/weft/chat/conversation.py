"""Messages and options of a chat, from which a prompt is rendered."""

from typing import Any

import msgspec

MEDIA_TYPES = ("image_url", "input_audio", "media")
"""Types of parts with images or audio: OpenAI's two, and `media` of the Python API, for media that was read before."""


class ImageUrl(msgspec.Struct):
    """URL of an image."""

    url: str | None = None


class InputAudio(msgspec.Struct):
    """Audio, encoded as base64."""

    data: str | None = None
    format: str | None = None


class ContentPart(msgspec.Struct):
    """Part of a message: text, an image or audio."""

    type: str
    text: str | None = None
    image_url: ImageUrl | None = None
    input_audio: InputAudio | None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    """Message of a chat. The template determines which roles and fields are supported."""

    role: str
    content: str | list[ContentPart] | msgspec.UnsetType | None = msgspec.UNSET
    reasoning_content: str | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    function_call: dict[str, Any] | None = None
    """Deprecated form of `tool_calls`, for one call."""


class ChatRequest(msgspec.Struct, kw_only=True):
    """Messages of a chat, and how they are rendered and answered, as in `TemplateOptions`. None selects each option's default."""

    messages: list[ChatMessage] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    reasoning_format: str | None = None
    enable_thinking: bool | None = None
    thinking: Any = None
    """Same as `enable_thinking`: a boolean, or an object with `type` (`enabled`, `disabled`) and `budget_tokens`."""
    reasoning_budget_tokens: int | None = None
    reasoning_budget_message: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None

    # Deprecated names, in OpenAI's and llama-server's APIs.
    thinking_budget_tokens: int | None = None
    """Alias of `reasoning_budget_tokens`."""
    functions: list[dict[str, Any]] | None = None
    """Deprecated form of `tools`, without `type`."""
    function_call: str | dict[str, Any] | None = None
    """Deprecated form of `tool_choice`: `none`, `auto`, or `{"name"}`."""
