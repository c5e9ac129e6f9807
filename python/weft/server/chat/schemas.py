"""The fields of a chat, by OpenAI's names (https://platform.openai.com/docs/api-reference/chat/create) and llama-server's."""

from typing import Any

import msgspec

from weft.server.body import CompletionFields

__all__ = ["ApplyTemplateResult", "ChatFields", "ChatMessage", "ContentPart"]


class ContentPart(msgspec.Struct):
    """A part of a message. Only texts are taken."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    """What one side said. The template decides what it takes besides the role and the content."""

    role: str
    content: str | list[ContentPart] | msgspec.UnsetType | None = msgspec.UNSET
    reasoning_content: str | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


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


class ApplyTemplateResult(msgspec.Struct):
    """`POST /apply-template`: the prompt that messages become, without the token that begins every text."""

    prompt: str
