"""Converts the messages of a request to the format of templates. Nothing in this module renders a template."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from weft import InvalidRequestError
from weft.chat.answer.call_format import CallFormat
from weft.chat.answer.formats import GENERIC
from weft.chat.conversation import MEDIA_TYPES, ChatMessage, ContentPart
from weft.chat.template_terms import Message
from weft.chat.tool_descriptions import with_calls_as_text
from weft.fields.excerpt import excerpt

if TYPE_CHECKING:
    from weft.chat.template import ChatTemplate

Content = str | list[dict[str, str]]

_NO_MARKS: Iterator[str] = iter(())
"""Default for messages without media."""

_HARMONY = "<|channel|>"
"""Occurs in templates that support the role `developer` in addition to `system`."""


def check(messages: Sequence[ChatMessage] | None) -> list[ChatMessage]:
    """Returns the messages of a request after checking them.

    Raises:
        InvalidRequestError: There are no messages, or one is invalid.
    """
    if messages is None:
        raise InvalidRequestError("messages", "messages must be given")
    if not messages:
        raise InvalidRequestError("messages", "the list of messages is empty")
    for position, message in enumerate(messages):
        _check_message(f"messages[{position}]", message)
    return list(messages)


def _check_message(place: str, message: ChatMessage) -> None:
    # The template writes the role between control tokens, so it must not contain the spelling of one.
    if re.fullmatch("[A-Za-z0-9_-]{1,64}", message.role) is None:
        raise InvalidRequestError("messages", f"{place}.role is {excerpt(message.role)}; it must be a word, such as 'user'")
    calls = message.tool_calls or message.function_call
    if message.content is msgspec.UNSET and not (message.role == "assistant" and calls):
        raise InvalidRequestError("messages", f"{place}.content must be given")
    for index, call in enumerate(message.tool_calls or ()):
        _check_call(f"{place}.tool_calls[{index}].function", call.get("function"))
    if message.function_call is not None:
        _check_call(f"{place}.function_call", message.function_call)
    if isinstance(message.content, list):
        for index, part in enumerate(message.content):
            if part.type not in ("text", *MEDIA_TYPES):
                kind = f"parts of type {excerpt(part.type)} are not supported, only text, image_url and input_audio"
                raise InvalidRequestError("messages", f"{place}.content[{index}]: {kind}")
            if part.type == "text" and part.text is None:
                raise InvalidRequestError("messages", f"{place}.content[{index}].text must be given")


def _check_call(place: str, function: Any) -> None:  # noqa: ANN401 (any JSON)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequestError("messages", f"{place} must be an object with the name of a function")
    _arguments(function, place)


def _arguments(function: dict[str, Any], place: str) -> dict[str, Any]:
    """Returns the arguments of a call as an object, which is empty if they are missing.

    Raises:
        InvalidRequestError: The arguments are neither an object nor the JSON of one.
    """
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments) if arguments.strip() else None
        except msgspec.DecodeError as error:
            message = f"are not JSON ({str(error).lower()}): {excerpt(arguments)}"
            raise InvalidRequestError("messages", f"{place}.arguments of {excerpt(function['name'])} {message}") from None
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        message = f"must be an object or the JSON of one (got {excerpt(function['arguments'])})"
        raise InvalidRequestError("messages", f"{place}.arguments of {excerpt(function['name'])} {message}")
    return arguments


def media_parts(messages: Sequence[ChatMessage]) -> Iterator[tuple[str, ContentPart]]:
    """Yields the parts with images or audio in order, each with its location for error messages."""
    for position, message in enumerate(messages):
        for index, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if part.type in MEDIA_TYPES:
                yield f"messages[{position}].content[{index}]", part


def content_text(content: str | list[ContentPart] | msgspec.UnsetType | None, marks: Iterator[str] = _NO_MARKS) -> str:
    """Joins the content of a message to one text.

    Each text part begins a new line, except after an image or audio. Each image or audio becomes the next of `marks`.
    """
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    text, follows_media = "", True
    for part in content:
        is_media = part.type in MEDIA_TYPES
        text += next(marks) if is_media else (part.text or "") if follows_media else f"\n{part.text or ''}"
        follows_media = is_media
    return text


def for_template(
    messages: Sequence[ChatMessage], template: "ChatTemplate", marks: Iterator[str] = _NO_MARKS, call_format: CallFormat = GENERIC
) -> list[Message]:
    """Converts messages to the template's format.

    Content becomes a text or a list of parts. As in llama-server, a message with an image or audio becomes a text: llama.cpp adds
    the text that some templates would write around it. A system message is merged into the next one if the template has no such
    role.

    Args:
        messages: The messages.
        template: The template.
        marks: Placeholders for images and audio, in order.
        call_format: Format of calls, for a template that does not render them.
    """
    if _NAMED_RESULTS in template.source:
        messages = list(_with_names(messages))
    if _STEP_FUN in template.source:
        # The last message may be the beginning of an answer. Its trailing space is significant.
        *earlier, last = messages
        messages = [*map(_trim, earlier), last if last.role == "assistant" else _trim(last)]
    if _DEEPSEEK_4.fullmatch(template.source):
        messages = _sort_results(messages)
    result = [_for_template(message, template, marks) for message in messages]
    if _THINKING_PARTS.fullmatch(template.source):
        result = [_with_thinking_part(message) for message in result]
    if _GEMMA_4 in template.source and _GEMMA_4_RESULTS not in template.source:
        result = _with_results_in_turn(result)
    if not template.takes_calls:
        result = with_calls_as_text(result, call_format, has_results=template.takes_results)
        if not template.takes_text:
            result = [message | {"content": _as_parts(message["content"])} for message in result]
    if not template.takes_system and len(result) > 1 and result[0]["role"] == "system":
        system, first, *rest = result
        return [first | {"content": _join_content(system["content"], first["content"])}, *rest]
    return result


_STEP_FUN = "You have access to the following functions in JSONSchema format"
"""Occurs in the template of StepFun 3.5, whose model loops on space around messages: llama.cpp trims them (issue 24181)."""

_DEEPSEEK_4 = re.compile(r"(?s)(?=.*dsml_token)(?!.*function_calls).*")
"""Matches the template of DeepSeek V4, which renders results in the order of their calls."""

_THINKING_PARTS = re.compile(r"(?s)(?=.*\[SYSTEM_PROMPT\])(?=.*\[ARGS\])(?=.*\['thinking'\])(?!.*\[CALL_ID\]).*")
"""Matches the template of Ministral 3, which renders reasoning as a part of the content, of type `thinking`."""

_GEMMA_4, _GEMMA_4_RESULTS = "'<|tool_call>call:'", "{#- OpenAI Chat Completions:"
"""Texts in the templates of Gemma 4. Templates with the second one render messages of the role `tool`."""


def _trim(message: ChatMessage) -> ChatMessage:
    content, reasoning = message.content, message.reasoning_content
    if isinstance(content, str):
        content = content.strip()
    elif isinstance(content, list):
        content = [msgspec.structs.replace(part, text=part.text.strip()) if part.text else part for part in content]
    return msgspec.structs.replace(message, content=content, reasoning_content=reasoning and reasoning.strip())


def _sort_results(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Sorts the results between two answers into the order of the calls before them."""
    ordered: list[ChatMessage] = []
    order: dict[str, int] = {}
    for is_results, run in groupby(messages, key=lambda message: message.role in ("user", "tool")):
        alike = list(run)
        if is_results:
            results = iter(
                sorted((message for message in alike if message.role == "tool"), key=lambda m: order.get(m.tool_call_id or "", 0))
            )
            alike = [next(results) if message.role == "tool" else message for message in alike]
        for message in alike:
            if message.tool_calls:
                order = {str(call.get("id") or ""): nth for nth, call in enumerate(message.tool_calls)}
        ordered += alike
    return ordered


def _with_thinking_part(message: Message) -> Message:
    """Moves the reasoning of a system or assistant message into the first part of its content."""
    if message["role"] not in ("system", "assistant"):
        return message
    rest = {name: value for name, value in message.items() if name not in ("reasoning_content", "thinking")}
    reasoning = message.get("reasoning_content")
    thinking = [{"type": "thinking", "thinking": reasoning}] if reasoning else []
    return rest | {"content": [*thinking, *_as_parts(message["content"])]}


def _with_results_in_turn(messages: Sequence[Message]) -> list[Message]:
    """Moves results, and the answer to them, into the turn that calls."""
    result: list[Message] = []
    for message in messages:
        turn = result[-1] if result else {}
        if message.get("tool_calls") and message.get("content"):
            # The template renders content after the results.
            result += [{"role": "assistant", "content": message["content"]}, {**message, "content": ""}]
        elif message["role"] == "tool" and turn.get("tool_calls"):
            responses = turn.setdefault("tool_responses", [])
            calls = turn["tool_calls"]
            name = calls[len(responses)]["function"]["name"] if len(responses) < len(calls) else message.get("tool_call_id", "")
            responses.append({"name": name, "response": _decode_result(message["content"])})
        elif message["role"] == "assistant" and turn.get("tool_responses") and not message.get("tool_calls"):
            if message["content"]:
                turn["content"] = message["content"]
            else:
                result.append(message)
        else:
            result.append(dict(message))
    return result


def _decode_result(content: Content) -> Any:  # noqa: ANN401 (any JSON)
    """Returns the value of a tool's result if it is JSON, or its text."""
    try:
        return msgspec.json.decode(content) if isinstance(content, str) else content
    except msgspec.DecodeError:
        return content


def _for_template(message: ChatMessage, template: "ChatTemplate", marks: Iterator[str]) -> Message:
    role = _ROLES.get(message.role, message.role)
    if role == "developer" and _HARMONY not in template.source:
        role = "system"
    has_media = isinstance(message.content, list) and any(part.type in MEDIA_TYPES for part in message.content)
    source = content_text(message.content, marks) if has_media else message.content
    keeps_list = isinstance(source, list) and template.keeps_parts
    content: Content = _parts(source) if keeps_list or not template.takes_text else content_text(source)
    more: dict[str, Any] = {
        name: value for name in ("reasoning_content", "name", "tool_call_id") if (value := getattr(message, name))
    }
    if message.reasoning_content and "message.thinking" in template.source:
        # gpt-oss uses this name.
        more["thinking"] = message.reasoning_content
    if message.reasoning_content and _READS_REASONING.search(template.source):
        more["reasoning"] = message.reasoning_content
    if calls := _template_calls(message, template):
        more["tool_calls"] = calls
    if calls and message.reasoning_content and _HARMONY in template.source:
        # The template of gpt-oss raises an error if a message with calls has both content and reasoning.
        return {"role": role, **more}
    return {"role": role, "content": content, **more}


_READS_REASONING = re.compile(r"""\.reasoning\b|\[['"]reasoning['"]\]|\.get\(['"]reasoning['"]\)""")
"""Matches templates, such as Solar's, that read the reasoning of a message by OpenRouter's name."""

_NAMED_RESULTS = "<start_function_response>"
"""Occurs in FunctionGemma's templates, which require the name of the function in a result. OpenAI's clients send none."""


def _with_names(messages: Sequence[ChatMessage]) -> Iterator[ChatMessage]:
    """Adds the names of functions to the messages with their results."""
    names: dict[str, str] = {}
    for message in messages:
        # Ids may be reused: a result belongs to the latest call with its id.
        names |= {str(call.get("id") or ""): call["function"]["name"] for call in message.tool_calls or ()}
        is_nameless = message.role == "tool" and not message.name
        yield msgspec.structs.replace(message, name=names.get(message.tool_call_id or "")) if is_nameless else message


_ROLES = {"function": "tool"}
"""Deprecated names of roles."""


def _template_calls(message: ChatMessage, template: "ChatTemplate") -> list[dict[str, Any]]:
    """Returns the calls of a message, with arguments in the template's format."""
    given = message.tool_calls or ([] if message.function_call is None else [{"function": message.function_call}])
    return [{**call, "type": "function", "function": _template_function(call["function"], template)} for call in given]


def _template_function(function: dict[str, Any], template: "ChatTemplate") -> dict[str, Any]:
    arguments, given = _arguments(function, "function"), function.get("arguments")
    if template.takes_calls and template.wants_objects:
        return {**function, "arguments": arguments}
    # Preserves the model's spelling.
    return {**function, "arguments": given if isinstance(given, str) and arguments else json.dumps(arguments, ensure_ascii=False)}


def _parts(content: str | list[ContentPart] | msgspec.UnsetType | None) -> list[dict[str, str]]:
    parts = content if isinstance(content, list) else [ContentPart("text", content_text(content))]
    return [{"type": "text", "text": part.text or ""} for part in parts]


def _join_content(first: Content, second: Content) -> Content:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n{second}"
    return [*_as_parts(first), *_as_parts(second)]


def _as_parts(content: Content) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
