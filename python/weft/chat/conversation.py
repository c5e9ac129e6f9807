"""Messages and options of a chat, from which a prompt is rendered."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

__all__ = ["MEDIA_TYPES", "Chat", "ChatMessage", "ContentPart", "Conversation", "ImageUrl", "InputAudio"]

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


class Chat(Protocol):
    """Messages, and how to render them. None is the default of each option."""

    @property
    def messages(self) -> Sequence[ChatMessage] | None:
        """The messages so far."""

    @property
    def add_generation_prompt(self) -> bool | None:
        """True, the default, if the prompt ends with the beginning of the assistant's turn."""

    @property
    def continue_final_message(self) -> bool | str | None:
        """True if the answer continues the last message; or the name of the part that it continues."""

    @property
    def chat_template_kwargs(self) -> Mapping[str, Any] | None:
        """Additional variables of the template."""

    @property
    def reasoning_effort(self) -> str | None:
        """The template's variable of this name; `none` disables reasoning."""

    @property
    def reasoning_format(self) -> str | None:
        """Where reasoning is returned: `none`, `deepseek`, `deepseek-legacy` or `auto`."""

    @property
    def enable_thinking(self) -> bool | None:
        """True to enable reasoning."""

    @property
    def thinking(self) -> Any:  # noqa: ANN401 (any JSON)
        """Same as `enable_thinking`, as a boolean or as `{"type", "budget_tokens"}`."""

    @property
    def reasoning_budget_tokens(self) -> int | None:
        """Maximum tokens of the reasoning; negative for no limit."""

    @property
    def thinking_budget_tokens(self) -> int | None:
        """Alias of `reasoning_budget_tokens`."""

    @property
    def tools(self) -> Sequence[Mapping[str, Any]] | None:
        """Functions that the model may call."""

    @property
    def tool_choice(self) -> str | Mapping[str, Any] | None:
        """Whether a tool must be called, or which one."""

    @property
    def parallel_tool_calls(self) -> bool | None:
        """True, the default, if one answer may contain several calls."""

    @property
    def functions(self) -> Sequence[Mapping[str, Any]] | None:
        """Deprecated form of `tools`."""

    @property
    def function_call(self) -> str | Mapping[str, Any] | None:
        """Deprecated form of `tool_choice`."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """Chat of the Python API."""

    messages: Sequence[ChatMessage]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    reasoning_effort: str | None = None
    reasoning_format: str | None = None
    enable_thinking: bool | None = None
    thinking: Any = None
    reasoning_budget_tokens: int | None = None
    thinking_budget_tokens: int | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: Sequence[Mapping[str, Any]] | None = None
    function_call: str | Mapping[str, Any] | None = None
