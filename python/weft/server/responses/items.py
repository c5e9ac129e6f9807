"""Items of responses: parsing, storage formats, and conversion to chat messages."""

import base64
import binascii
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from weft import InvalidRequestError
from weft.chat.conversation import ChatMessage, ContentPart, ImageUrl, InputAudio
from weft.fields.excerpt import excerpt
from weft.fields.validation import message_with_path
from weft.server.responses.schemas import Transformation

MAX_ITEMS = 10_000
"""Maximum items of a body."""

REASONING, _SUMMARY = "weft-thought-", "weft-summary-"
"""Prefixes of opaque texts, followed by base64. The contents are not secret from their holder."""


class Part(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A part of a message; OpenAI has a class for each type."""

    type: str
    text: str | msgspec.UnsetType = msgspec.UNSET
    annotations: list[Any] | msgspec.UnsetType = msgspec.UNSET
    logprobs: list[Any] | msgspec.UnsetType = msgspec.UNSET
    refusal: str | msgspec.UnsetType = msgspec.UNSET
    image_url: str | msgspec.UnsetType | None = msgspec.UNSET
    detail: str | msgspec.UnsetType | None = msgspec.UNSET
    file_id: str | msgspec.UnsetType | None = msgspec.UNSET
    input_audio: InputAudio | msgspec.UnsetType = msgspec.UNSET


class Message(msgspec.Struct, tag_field="type", tag="message", kw_only=True):
    """A message."""

    id: str = ""
    role: str
    status: str = "completed"
    content: str | list[Part]


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """A piece of reasoning."""

    text: str


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning", kw_only=True):
    """Reasoning. The opaque text repeats it for clients that return nothing else."""

    id: str = ""
    summary: list[dict[str, Any]] = []
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None
    status: str | None = "completed"


BELOW = "."
"""Separator between a namespace and a function's name, for the model."""


class Call(msgspec.Struct, tag_field="type", tag="function_call", kw_only=True):
    """A function call for the client to execute."""

    id: str | None = None
    call_id: str
    name: str
    namespace: str | msgspec.UnsetType | None = msgspec.UNSET
    """Namespace of the function, if a tool of type `namespace` defined it."""
    arguments: str
    status: str | None = "completed"


class CallOutput(msgspec.Struct, tag_field="type", tag="function_call_output", kw_only=True):
    """The result of a function call."""

    id: str | None = None
    call_id: str
    output: str | list[Part]
    status: str | None = "completed"


class Compaction(msgspec.Struct, tag_field="type", tag="compaction", kw_only=True):
    """Represents a compacted conversation."""

    id: str | None = None
    encrypted_content: str


class Reference(msgspec.Struct, tag_field="type", tag="item_reference", kw_only=True):
    """A reference to a stored item."""

    id: str


Item = Message | ReasoningItem | Call | CallOutput | Compaction

_TYPES = ("message", "reasoning", "function_call", "function_call_output", "compaction", "item_reference")

_PREFIXES = {Message: "msg", ReasoningItem: "rs", Call: "fc", CallOutput: "fco", Compaction: "cmp"}


def new_id(prefix: str) -> str:
    """Returns a unique id with this prefix."""
    return f"{prefix}_{uuid.uuid4().hex}"


def decoded(encoded: bytes) -> list[Item]:
    """Decodes stored items."""
    return msgspec.json.decode(encoded, type=list[Item])


def read(given: str | Sequence[dict[str, Any]], field: str = "input") -> list[Item | Reference]:
    """Returns the items of a body in normalized form: with ids, and with contents as lists.

    Raises:
        InvalidRequestError: An item is invalid or of an unknown type.
    """
    if isinstance(given, str):
        return [_named(Message(role="user", content=[Part(type="input_text", text=given)]))]
    if len(given) > MAX_ITEMS:
        raise InvalidRequestError(field, f"{field} has {len(given)} items; at most {MAX_ITEMS} are allowed")
    return [_read(item, f"{field}[{position}]", field) for position, item in enumerate(given)]


def _read(given: dict[str, Any], location: str, field: str) -> Item | Reference:
    kind = given.get("type") or ("message" if "role" in given else None)
    if kind not in _TYPES:
        message = f"{location}.type is {excerpt(kind)}; items of this type are not supported, only {', '.join(_TYPES)}"
        raise InvalidRequestError(field, message)
    try:
        item = msgspec.convert({**given, "type": kind, "id": given.get("id") or ""}, Item | Reference)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(field, message_with_path(error, location)) from None
    if isinstance(item, Message):
        item.content = [_part(part, item.role, f"{location}.content[{n}]", field) for n, part in enumerate(_parts(item))]
    if isinstance(item, CallOutput) and isinstance(item.output, list):
        item.output = [_part(part, "tool", f"{location}.output[{n}]", field) for n, part in enumerate(item.output)]
    return item if isinstance(item, Reference) else _named(item)


def _parts(message: Message) -> list[Part]:
    if isinstance(message.content, list):
        return message.content
    return [Part(type="output_text" if message.role == "assistant" else "input_text", text=message.content)]


def _part(part: Part, role: str, location: str, field: str) -> Part:
    match part.type:
        case "input_text" | "output_text" | "text" if isinstance(part.text, str):
            if role != "assistant":
                return Part(type="input_text", text=part.text)
            return Part(type="output_text", text=part.text, annotations=part.annotations or [], logprobs=part.logprobs)
        case "refusal" if isinstance(part.refusal, str) and role == "assistant":
            return Part(type="refusal", refusal=part.refusal)
        case "input_image" if isinstance(part.image_url, str) and part.image_url and role != "assistant":
            return Part(type="input_image", image_url=part.image_url, detail=part.detail or "auto")
        case "input_audio" if isinstance(part.input_audio, InputAudio) and role != "assistant":
            return Part(type="input_audio", input_audio=part.input_audio)
        case "input_text" | "output_text" | "text":
            raise InvalidRequestError(field, f"{location}.text must be given")
        case "input_image" if part.file_id:
            raise InvalidRequestError(field, f"{location}.file_id is not supported; use image_url")
        case "input_image":
            raise InvalidRequestError(field, f"{location}.image_url must be given")
        case _:
            kinds = "only input_text, output_text, refusal, input_image and input_audio"
            message = f"{location}: parts of type {excerpt(part.type)} are not supported for the role {role}, {kinds}"
            raise InvalidRequestError(field, message)


def _named(item: Item) -> Item:
    if not item.id:
        item.id = new_id(_PREFIXES[type(item)])
    return item


def compacted(summary: str) -> Compaction:
    """Returns an item that represents a summarized conversation."""
    return Compaction(id=new_id("cmp"), encrypted_content=packed(_SUMMARY, summary))


def packed(prefix: str, text: str) -> str:
    """Returns a text as an opaque one."""
    return prefix + base64.urlsafe_b64encode(text.encode()).decode()


def _unpacked(prefix: str, packed: str | None) -> str | None:
    """Returns the text, or None if it was not made by this server."""
    if packed is None or not packed.startswith(prefix):
        return None
    try:
        return base64.b64decode(packed.removeprefix(prefix), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def messages(items: Iterable[Item]) -> tuple[list[ChatMessage], list[Transformation]]:
    """Converts items to chat messages.

    Reasoning, the following text and function calls form one assistant message, as when they were generated. Incomplete calls are
    omitted.

    Returns:
        The messages, and the items that were omitted because only another server can read them.

    Raises:
        InvalidRequestError: A compacted conversation was made by another server.
    """
    result: list[ChatMessage] = []
    removed: list[Transformation] = []
    for item in items:
        match item:
            case Message(role="assistant"):
                _assistant_message(result, _is_silent).content = _content(item.content)
            case Message():
                result.append(ChatMessage(role=item.role, content=_content(item.content)))
            case ReasoningItem():
                if (reasoning := _reasoning_text(item)) is None:
                    removed.append(Transformation(item.id))
                elif reasoning:
                    _assistant_message(result, _has_not_begun).reasoning_content = reasoning
            case Call(status="incomplete"):
                # An interrupted call cannot have been executed, and its arguments are not valid JSON.
                continue
            case Call():
                own = _assistant_message(result, lambda _: True)
                own.tool_calls = [*(own.tool_calls or []), chat_call(item)]
            case CallOutput():
                result.append(ChatMessage(role="tool", tool_call_id=item.call_id, content=_content(item.output)))
            case Compaction():
                result.append(ChatMessage(role="user", content=_summary(item)))
    for message in result:
        if _is_silent(message):  # It was interrupted during reasoning.
            message.content = ""
    return result, removed


def _assistant_message(result: list[ChatMessage], accepts: Any) -> ChatMessage:  # noqa: ANN401 (a predicate)
    """Returns the current assistant message if the predicate accepts it, else a new one."""
    if not result or result[-1].role != "assistant" or not accepts(result[-1]):
        result.append(ChatMessage(role="assistant"))
    return result[-1]


def _is_silent(message: ChatMessage) -> bool:
    return message.content is msgspec.UNSET and not message.tool_calls


def _has_not_begun(message: ChatMessage) -> bool:
    return _is_silent(message) and message.reasoning_content is None


def _content(content: str | list[Part]) -> str | list[ContentPart]:
    """Returns the content in the format of chats; a single text part becomes a string."""
    if isinstance(content, str):
        return content
    parts = [_chat_part(part) for part in content]
    return parts[0].text or "" if len(parts) == 1 and parts[0].type == "text" else parts


def _chat_part(part: Part) -> ContentPart:
    if isinstance(part.image_url, str):
        return ContentPart("image_url", image_url=ImageUrl(part.image_url))
    if isinstance(part.input_audio, InputAudio):
        # Copied, because the audio data is removed from what the template receives.
        return ContentPart("input_audio", input_audio=InputAudio(part.input_audio.data, part.input_audio.format))
    return ContentPart("text", text=part.refusal if isinstance(part.refusal, str) else part.text or "")


def _reasoning_text(item: ReasoningItem) -> str | None:
    """Returns the text of reasoning, or else its summary; None if only another server can read it."""
    if item.content:
        return "".join(text.text for text in item.content)
    if (text := _unpacked(REASONING, item.encrypted_content)) is not None:
        return text
    if item.encrypted_content:
        return None
    return "\n\n".join(str(part.get("text", "")) for part in item.summary)


def chat_call(item: Call) -> dict[str, Any]:
    """Returns a function call in the format of chats."""
    name = f"{item.namespace}{BELOW}{item.name}" if item.namespace else item.name
    return {"id": item.call_id, "type": "function", "function": {"name": name, "arguments": item.arguments}}


def _summary(item: Compaction) -> str:
    if (summary := _unpacked(_SUMMARY, item.encrypted_content)) is None:
        raise InvalidRequestError(
            "input", "the encrypted_content of a compaction cannot be read, because another server created it"
        )
    return f"What was said before, in short:\n\n{summary}"


def system_first(result: Sequence[ChatMessage], instructions: str | None) -> list[ChatMessage]:
    """Returns the messages with the instructions first, merged with leading system messages.

    Many templates support a single system message at the beginning only.
    """
    leading = [] if instructions is None else [ChatMessage(role="system", content=instructions)]
    rest = list(result)
    while rest and rest[0].role in ("system", "developer") and isinstance(rest[0].content, str):
        leading.append(rest.pop(0))
    if len(leading) < 2:
        return [*leading, *rest]
    return [ChatMessage(role=leading[0].role, content="\n\n".join(str(message.content) for message in leading)), *rest]
