"""What is said in a chat, and what a prompt is made of."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

__all__ = ["MEDIA_TYPES", "Chat", "ChatMessage", "ContentPart", "Conversation", "ImageUrl", "InputAudio"]

MEDIA_TYPES = ("image_url", "input_audio", "media")
"""Types of parts that are pictures or sounds: the first two are OpenAI's, the last one is Python's, for what was read before."""


class ImageUrl(msgspec.Struct):
    """Where a picture is."""

    url: str | None = None


class InputAudio(msgspec.Struct):
    """A sound, in base64."""

    data: str | None = None
    format: str | None = None


class ContentPart(msgspec.Struct):
    """A part of a message: a text, or the place of a picture or a sound."""

    type: str
    text: str | None = None
    image_url: ImageUrl | None = None
    input_audio: InputAudio | None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    """What one side said. The template decides what it takes besides the role and the content."""

    role: str
    content: str | list[ContentPart] | msgspec.UnsetType | None = msgspec.UNSET
    reasoning_content: str | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    function_call: dict[str, Any] | None = None
    """What `tool_calls` was before, for one call."""


class Chat(Protocol):
    """Messages, and what is to be made of them. None is the default."""

    @property
    def messages(self) -> Sequence[ChatMessage] | None:
        """What was said so far."""

    @property
    def add_generation_prompt(self) -> bool | None:
        """Whether the assistant's turn begins at the end."""

    @property
    def continue_final_message(self) -> bool | str | None:
        """Whether the answer goes on with the last message, or with which part of it."""

    @property
    def chat_template_kwargs(self) -> Mapping[str, Any] | None:
        """Variables of the template."""

    @property
    def reasoning_effort(self) -> str | None:
        """The template's variable of this name; `none` is no thought at all."""

    @property
    def reasoning_format(self) -> str | None:
        """Where a thought goes: `none`, `deepseek`, `deepseek-legacy` or `auto`."""

    @property
    def enable_thinking(self) -> bool | None:
        """Whether the model thinks before it answers."""

    @property
    def thinking(self) -> Any:  # noqa: ANN401 (any JSON)
        """The same, as a boolean or as `{"type", "budget_tokens"}`."""

    @property
    def reasoning_budget_tokens(self) -> int | None:
        """Most tokens of a thought; -1 is any number."""

    @property
    def thinking_budget_tokens(self) -> int | None:
        """Its other name."""

    @property
    def tools(self) -> Sequence[Mapping[str, Any]] | None:
        """The functions that may be called."""

    @property
    def tool_choice(self) -> str | Mapping[str, Any] | None:
        """Whether one must be called, or which."""

    @property
    def parallel_tool_calls(self) -> bool | None:
        """Whether one answer may call several times, which is the default."""

    @property
    def functions(self) -> Sequence[Mapping[str, Any]] | None:
        """What `tools` was called before."""

    @property
    def function_call(self) -> str | Mapping[str, Any] | None:
        """What `tool_choice` was called before."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A chat as Python has it."""

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
