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
    logprobs: bool | None = None
    top_logprobs: int | None = None

    # What follows is refused unless it asks for nothing.
    audio: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: list[str] | None = None
    prediction: Any = None
    tool_choice: Any = None
    web_search_options: Any = None
