"""From the messages of a body to those that a template takes. Nothing here asks the template to render."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from weft import InvalidRequest
from weft.chat.conversation import MEDIA_TYPES, ChatMessage, ContentPart
from weft.chat.described import with_calls_told
from weft.chat.template_terms import Message
from weft.fields.shown import shown

if TYPE_CHECKING:
    from weft.chat.template import ChatTemplate

__all__ = ["check", "content_text", "for_template", "media_parts"]

Content = str | list[dict[str, str]]

_NO_MARKS: Iterator[str] = iter(())
"""Where nothing is a picture or a sound."""

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
    calls = message.tool_calls or message.function_call
    if message.content is msgspec.UNSET and not (message.role == "assistant" and calls):
        raise InvalidRequest("messages", f"{place}.content must be given")
    for index, call in enumerate(message.tool_calls or ()):
        _check_call(f"{place}.tool_calls[{index}].function", call.get("function"))
    if message.function_call is not None:
        _check_call(f"{place}.function_call", message.function_call)
    if isinstance(message.content, list):
        for index, part in enumerate(message.content):
            if part.type not in ("text", *MEDIA_TYPES):
                kind = f"parts of type {shown(part.type)} are not supported, only text, image_url and input_audio"
                raise InvalidRequest("messages", f"{place}.content[{index}]: {kind}")
            if part.type == "text" and part.text is None:
                raise InvalidRequest("messages", f"{place}.content[{index}].text must be given")


def _check_call(place: str, function: Any) -> None:  # noqa: ANN401 (any JSON)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest("messages", f"{place} must be an object with the name of a function")
    if not isinstance(arguments := function.get("arguments", ""), str | dict):
        raise InvalidRequest("messages", f"{place}.arguments is {shown(arguments)}; it must be the JSON of an object")


def media_parts(messages: Sequence[ChatMessage]) -> Iterator[tuple[str, ContentPart]]:
    """The parts that are pictures or sounds, in order, each with its place as messages of errors tell it."""
    for position, message in enumerate(messages):
        for index, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if part.type in MEDIA_TYPES:
                yield f"messages[{position}].content[{index}]", part


def content_text(content: str | list[ContentPart] | msgspec.UnsetType | None, marks: Iterator[str] = _NO_MARKS) -> str:
    """A message's content as one text.

    Parts begin new lines, but for pictures and sounds, and what follows these. The next of `marks` stands for each of them.
    """
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    text, follows_media = "", True
    for part in content:
        is_media = part.type in MEDIA_TYPES
        text += next(marks) if is_media else (part.text or "") if follows_media else f"\n{part.text or ''}"
        follows_media = is_media
    return text


def for_template(messages: Sequence[ChatMessage], template: "ChatTemplate", marks: Iterator[str] = _NO_MARKS) -> list[Message]:
    """The messages as the template takes them: their content as text or as parts, and what the system says where it can be.

    The next of `marks` stands for each picture and sound. As in llama-server, a message that has one is a text: what some
    templates write for it, llama.cpp puts around it.
    """
    if _NAMED_RESULTS in template.source:
        messages = _with_names(messages)
    result = [_for_template(message, template, marks) for message in messages]
    if not template.takes_calls:
        result = with_calls_told(result)
        if not template.takes_text:
            result = [message | {"content": _as_parts(message["content"])} for message in result]
    if not template.takes_system and len(result) > 1 and result[0]["role"] == "system":
        told, first, *rest = result
        return [first | {"content": _joined(told["content"], first["content"])}, *rest]
    return result


def _for_template(message: ChatMessage, template: "ChatTemplate", marks: Iterator[str]) -> Message:
    role = _ROLES.get(message.role, message.role)
    if role == "developer" and _HARMONY not in template.source:
        role = "system"
    has_media = isinstance(message.content, list) and any(part.type in MEDIA_TYPES for part in message.content)
    said = content_text(message.content, marks) if has_media else message.content
    stays_list = isinstance(said, list) and template.takes_parts
    content: Content = _parts(said) if stays_list or not template.takes_text else content_text(said)
    more: dict[str, Any] = {
        name: value for name in ("reasoning_content", "name", "tool_call_id") if (value := getattr(message, name))
    }
    if message.reasoning_content and "message.thinking" in template.source:
        # gpt-oss's word for it.
        more["thinking"] = message.reasoning_content
    if calls := _calls(message, template):
        more["tool_calls"] = calls
    return {"role": role, "content": content, **more}


_NAMED_RESULTS = "<start_function_response>"
"""Stands in templates, FunctionGemma's, that want the name of a function with what it returned. OpenAI's clients send none."""


def _with_names(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The messages, with the names of the functions whose results they tell."""
    names: dict[str, str] = {}
    named: list[ChatMessage] = []
    for message in messages:
        # An id may come again: a result is that of the last call before it.
        names |= {str(call.get("id") or ""): call["function"]["name"] for call in message.tool_calls or ()}
        is_nameless = message.role == "tool" and not message.name
        name = names.get(message.tool_call_id or "") if is_nameless else message.name
        named.append(msgspec.structs.replace(message, name=name) if is_nameless else message)
    return named


_ROLES = {"function": "tool"}
"""What roles were called before."""


def _calls(message: ChatMessage, template: "ChatTemplate") -> list[dict[str, Any]]:
    """What a message calls, its arguments as the template takes them."""
    given = message.tool_calls or ([] if message.function_call is None else [{"function": message.function_call}])
    return [{**call, "type": "function", "function": _called(call["function"], template)} for call in given]


def _called(function: dict[str, Any], template: "ChatTemplate") -> dict[str, Any]:
    arguments = function.get("arguments", "")
    if template.takes_calls and template.wants_objects:
        if isinstance(arguments, str):
            arguments = _object(function["name"], arguments)
    elif not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**function, "arguments": arguments or ("{}" if isinstance(arguments, str) else arguments)}


def _object(name: str, arguments: str) -> Any:  # noqa: ANN401 (any JSON)
    try:
        return msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        message = f"the arguments of a call of {shown(name)} are no JSON, which the chat template needs: {shown(arguments)}"
        raise InvalidRequest("messages", message) from None


def _parts(content: str | list[ContentPart] | msgspec.UnsetType | None) -> list[dict[str, str]]:
    parts = content if isinstance(content, list) else [ContentPart("text", content_text(content))]
    return [{"type": "text", "text": part.text or ""} for part in parts]


def _joined(told: Content, said: Content) -> Content:
    if isinstance(told, str) and isinstance(said, str):
        return f"{told}\n{said}"
    return [*_as_parts(told), *_as_parts(said)]


def _as_parts(content: Content) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
