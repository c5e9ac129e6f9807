"""The fields of a chat, by OpenAI's names (https://platform.openai.com/docs/api-reference/chat/create) and llama-server's."""

from typing import Any

from weft.chat.conversation import ChatMessage
from weft.server.request_fields.fields import CompletionFields

__all__ = ["ChatFields"]


class ChatFields(CompletionFields, kw_only=True):
    """What is to be answered, and how. The fields of a completion are taken too; a `prompt` is what the messages become."""

    messages: list[ChatMessage] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    reasoning_format: str | None = None
    """Where a thought goes: `none` leaves it in the content, `deepseek` and `auto` take it out, `deepseek-legacy` does both."""
    enable_thinking: bool | None = None
    thinking: Any = None
    """Whether the model thinks first: a boolean, or an object with `type` (`enabled`, `disabled`) and `budget_tokens`."""
    tools: list[dict[str, Any]] | None = None
    """What the model may call: `{"type": "function", "function": {"name", "description", "parameters", "strict"}}` each."""
    tool_choice: str | dict[str, Any] | None = None
    """`none`, `auto`, `required`, or `{"type": "function", "function": {"name"}}`."""
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    """What `tools` was called before, without a `type`."""
    function_call: str | dict[str, Any] | None = None
    """What `tool_choice` was called before: `none`, `auto`, or `{"name"}`."""
    logprobs: bool | None = None
    top_logprobs: int | None = None

    # What follows is refused unless it asks for nothing.
    audio: Any = None
    modalities: list[str] | None = None
    prediction: Any = None
    web_search_options: Any = None
