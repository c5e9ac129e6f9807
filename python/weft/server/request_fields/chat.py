"""Fields of a chat, with the names of OpenAI (https://platform.openai.com/docs/api-reference/chat/create) and llama-server."""

from typing import Any

from weft.chat.conversation import ChatMessage
from weft.server.request_fields.fields import CompletionFields

__all__ = ["ChatFields"]


class ChatFields(CompletionFields, kw_only=True):
    """A chat request. The fields of completions are accepted too; the `prompt` is rendered from the messages."""

    messages: list[ChatMessage] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    reasoning_format: str | None = None
    """Where reasoning is returned: `none` leaves it in the content, `deepseek` and `auto` move it out, `deepseek-legacy` does
    both."""
    enable_thinking: bool | None = None
    thinking: Any = None
    """Enables reasoning: a boolean, or an object with `type` (`enabled`, `disabled`) and `budget_tokens`."""
    tools: list[dict[str, Any]] | None = None
    """Functions that the model may call, each `{"type": "function", "function": {"name", "description", "parameters",
    "strict"}}`."""
    tool_choice: str | dict[str, Any] | None = None
    """`none`, `auto`, `required`, or `{"type": "function", "function": {"name"}}`."""
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    """Deprecated form of `tools`, without `type`."""
    function_call: str | dict[str, Any] | None = None
    """Deprecated form of `tool_choice`: `none`, `auto`, or `{"name"}`."""
    logprobs: bool | None = None
    top_logprobs: int | None = None

    # Unsupported: refused unless the value disables the feature.
    audio: Any = None
    modalities: list[str] | None = None
    prediction: Any = None
    web_search_options: Any = None
