"""From the messages of a body to those that a template takes. Nothing here asks the template to render."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from weft import InvalidRequest
from weft.chat.conversation import ChatMessage, ContentPart
from weft.chat.template import ChatTemplate, Message
from weft.fields.shown import shown

__all__ = ["check", "content_text", "for_template"]

Content = str | list[dict[str, str]]

_HARMONY = "<|channel|>"
"""Stands in templates that know a developer besides the system."""


def check(messages: Sequence[ChatMessage] | None) -> list[ChatMessage]:
    """The messages of a body.

    Raises:
        InvalidRequest: there is none, or one is not what it must be.
    """
    if messages is None:
        raise InvalidRequest("messages", "messages must be given")
    if not messages:
        raise InvalidRequest("messages", "the list of messages is empty")
    for position, message in enumerate(messages):
        _check_message(f"messages[{position}]", message)
    return list(messages)


def _check_message(place: str, message: ChatMessage) -> None:
    # A role is written into the prompt between control tokens, which it must not be able to spell.
    if re.fullmatch("[A-Za-z0-9_-]{1,64}", message.role) is None:
        raise InvalidRequest("messages", f"{place}.role is {shown(message.role)}; it must be a word, such as 'user'")
    if message.content is msgspec.UNSET and not (message.role == "assistant" and message.tool_calls):
        raise InvalidRequest("messages", f"{place}.content must be given")
    if isinstance(message.content, list):
        for index, part in enumerate(message.content):
            if part.type != "text":
                kind = f"parts of type {shown(part.type)} are not supported, only texts"
                raise InvalidRequest("messages", f"{place}.content[{index}]: {kind}")
            if part.text is None:
                raise InvalidRequest("messages", f"{place}.content[{index}].text must be given")


def content_text(content: str | list[ContentPart] | msgspec.UnsetType | None) -> str:
    """A message's content as one text; parts begin new lines."""
    if isinstance(content, list):
        return "\n".join([part.text or "" for part in content])
    return content if isinstance(content, str) else ""


def for_template(messages: Sequence[ChatMessage], template: ChatTemplate) -> list[Message]:
    """The messages as the template takes them: their content as text or as parts, and what the system says where it can be."""
    result = [_for_template(message, template) for message in messages]
    if not template.takes_system and len(result) > 1 and result[0]["role"] == "system":
        told, first, *rest = result
        return [first | {"content": _joined(told["content"], first["content"])}, *rest]
    return result


def _for_template(message: ChatMessage, template: ChatTemplate) -> Message:
    is_system = message.role == "developer" and _HARMONY not in template.source
    stays_list = isinstance(message.content, list) and template.takes_parts
    content: Content = _parts(message.content) if stays_list or not template.takes_text else content_text(message.content)
    more: dict[str, Any] = {
        name: value for name in ("reasoning_content", "name", "tool_calls", "tool_call_id") if (value := getattr(message, name))
    }
    return {"role": "system" if is_system else message.role, "content": content, **more}


def _parts(content: str | list[ContentPart] | msgspec.UnsetType | None) -> list[dict[str, str]]:
    parts = content if isinstance(content, list) else [ContentPart("text", content_text(content))]
    return [{"type": "text", "text": part.text or ""} for part in parts]


def _joined(told: Content, said: Content) -> Content:
    if isinstance(told, str) and isinstance(said, str):
        return f"{told}\n{said}"
    return [*_as_parts(told), *_as_parts(said)]


def _as_parts(content: Content) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
