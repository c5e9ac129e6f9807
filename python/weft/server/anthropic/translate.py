"""Conversion of Anthropic's messages to chats. No I/O here."""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from weft import InvalidRequestError
from weft.chat.conversation import ChatMessage, ContentPart, ImageUrl
from weft.fields.excerpt import excerpt
from weft.fields.validation import check_range
from weft.server.anthropic.schemas import Block, CountTokens, CreateMessage, Source, ToolParam
from weft.server.inference.submission import renamed
from weft.server.request_fields import unsupported
from weft.server.request_fields.chat import ChatFields

VERSION = "2023-06-01"
"""The first version with these events. Version 2026-10-21 only removes fields, which are still accepted here."""

TTLS_S = {None: 300.0, "5m": 300.0, "1h": 3600.0}
"""Lifetime of marked prefixes since the last request for them, in seconds."""


_SENT_AS = {
    "stop": "stop_sequences",
    "n_predict": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "json_schema": "output_config.format.schema",
    "reasoning_effort": "output_config.effort",
    "reasoning_budget_tokens": "thinking.budget_tokens",
    "enable_thinking": "thinking",
}
"""Anthropic's names of chat fields."""


_SHARED_FIELDS = ("max_tokens", "stream", "temperature", "top_k", "top_p", "explain_cache")
"""Fields with the same name in chats."""


class ParsedRequest(NamedTuple):
    """A parsed chat."""

    fields: ChatFields
    turns: "Sequence[_Turn]"
    """Turns from which the messages were built."""
    marked: "MarkedPrefix | None" = None
    """The prefix marked for reuse, if any."""

    def rename_parameter(self, error: InvalidRequestError) -> InvalidRequestError:
        """Returns the error with the names of the body's fields."""
        named = renamed(error, _SENT_AS)
        message = _TOOL_LOCATION.sub(lambda found: f"{found[1]}{_OF_TOOLS[found[2]]}", named.message)
        return InvalidRequestError(named.param, _LOCATION.sub(self._location, message))

    def _location(self, found: re.Match[str]) -> str:
        position, part = int(found[1]), found[2]
        if position >= len(self.turns):
            return found[0]
        return self.turns[position].location if part is None else self.turns[position].image_location(int(part))


class MarkedPrefix(NamedTuple):
    """A prefix of tools and system messages, which other chats may share."""

    key: bytes
    """Identifies the prefix."""
    seconds: float
    """Lifetime."""
    fields: ChatFields
    """A chat with this prefix and an empty message."""


_LOCATION = re.compile(r"\bmessages\[(\d{1,9})\](?:\.content\[(\d{1,9})\]\.image_url\.url)?")
"""Location in a chat, in error messages."""

_OF_TOOLS = {"": "", ".name": ".name", ".parameters": ".input_schema", ".strict": ".strict"}
"""Anthropic's names of function fields."""

_TOOL_LOCATION = re.compile(r"\b(tools\[\d{1,9}\])\.function(\.name|\.parameters|\.strict|)\b")
"""Location in a tool, in error messages."""


def check_version(version: str | None) -> None:
    """Refuses unsupported versions of the API. None is accepted."""
    if version is not None and (re.fullmatch(r"\d{4}-\d{2}-\d{2}", version) is None or version < VERSION):
        raise InvalidRequestError("anthropic-version", f"anthropic-version is {excerpt(version)}; it must be {VERSION} or later")


def parse(data: CountTokens, lasting: Callable[[ChatMessage], ChatMessage] = lambda message: message) -> ParsedRequest:
    """Returns the chat of a body.

    Args:
        data: The body.
        lasting: Returns the part of the system message with which every prompt begins.

    Raises:
        InvalidRequestError: A field is unsupported.
    """
    unsupported.refuse_unsupported(data)
    if data.messages is None:
        raise InvalidRequestError("messages", "messages must be given")
    builder = _MessageBuilder()
    if data.system:
        builder.add("system", "system", data.system)
    for position, message in enumerate(data.messages):
        builder.add(f"messages[{position}]", message.role, message.content)
    messages = [turn.message() for turn in builder.turns]
    fields = ChatFields(messages=messages, **_options(data), **_tools(data), **_writing(data))
    return ParsedRequest(fields, builder.turns, _marked_prefix(data, fields, lasting))


def _marked_prefix(data: CountTokens, fields: ChatFields, lasting: Callable[[ChatMessage], ChatMessage]) -> MarkedPrefix | None:
    """Returns the marked prefix of tools and system messages.

    Marks in messages need no pin, as recent messages are evicted last.
    """
    blocks = data.system if isinstance(data.system, list) else []
    marks = [one.cache_control for one in (*(data.tools or ()), *blocks) if one.cache_control is not None]
    if not marks:
        return None
    system = [lasting(message) for message in (fields.messages or ())[:1] if message.role == "system"]
    empty = [*system, ChatMessage(role="user", content="")]
    chat = msgspec.structs.replace(fields, messages=empty, add_generation_prompt=False)
    kept = (system, fields.tools, fields.tool_choice, fields.enable_thinking, fields.reasoning_effort)
    key = hashlib.sha256(msgspec.json.encode(kept)).digest()
    return MarkedPrefix(key, max(TTLS_S[mark.ttl] for mark in marks), chat)


def _options(data: CountTokens) -> dict[str, Any]:
    """Returns the fields for reasoning and output constraints."""
    config, thinking = data.output_config, data.thinking
    form = data.output_format if config is None or config.format is None else config.format
    options: dict[str, Any] = {
        "json_schema": None if form is None else form.json_schema,
        "reasoning_effort": None if config is None else config.effort,
    }
    if thinking is None:
        return options
    if thinking.budget_tokens is not None and (thinking.type != "enabled" or thinking.budget_tokens < 0):
        message = f"is {thinking.budget_tokens}; it must be 0 or more, and is only allowed with the type 'enabled'"
        raise InvalidRequestError("thinking", f"thinking.budget_tokens {message}")
    return options | {
        "enable_thinking": thinking.type != "disabled",
        "reasoning_budget_tokens": thinking.budget_tokens,
    }


def _tools(data: CountTokens) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if data.tools:
        fields["tools"] = [_tool(f"tools[{position}]", tool) for position, tool in enumerate(data.tools)]
    if (choice := data.tool_choice) is None:
        return fields
    if choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    if choice.type == "tool":
        if not choice.name:
            raise InvalidRequestError("tool_choice", "tool_choice.name must be given with the type 'tool'")
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    else:
        fields["tool_choice"] = choice.type
    return fields


def _tool(location: str, tool: ToolParam) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        message = f"{location}.type is {excerpt(tool.type)}; only client tools, of the type 'custom', are supported"
        raise InvalidRequestError("tools", message)
    if tool.defer_loading:
        raise InvalidRequestError("tools", f"{location}.defer_loading is not supported; leave it out")
    if tool.input_schema is None:
        raise InvalidRequestError("tools", f"{location}.input_schema must be given")
    given = {"name": tool.name, "parameters": tool.input_schema, "description": tool.description, "strict": tool.strict}
    return {"type": "function", "function": {name: value for name, value in given.items() if value is not None}}


def _writing(data: CountTokens) -> dict[str, Any]:
    """Returns the fields for generating, or none if the body only counts tokens."""
    if not isinstance(data, CreateMessage):
        return {}
    check_range("max_tokens", data.max_tokens, 0)
    return {
        **{name: getattr(data, name) for name in _SHARED_FIELDS},
        "n": 1,
        "stop": data.stop_sequences,
        # The first event reports the number of cached tokens.
        "return_progress": data.stream,
    }


class _Turn:
    """A message under construction."""

    def __init__(self, location: str, role: str) -> None:
        self.location = location
        """Location in the body."""
        self.role = role
        self.parts: list[ContentPart] = []
        self.image_locations: list[str] = []
        """Locations of its images, in order."""
        self.reasoning: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.call_id: str | None = None
        """Id of the call that this result belongs to."""
        self.name: str | None = None

    def message(self) -> ChatMessage:
        """Returns the message."""
        return ChatMessage(
            role=self.role,
            content=self._content(),
            reasoning_content="".join(self.reasoning) or None,
            name=self.name,
            tool_calls=self.calls or None,
            tool_call_id=self.call_id,
        )

    def _content(self) -> str | list[ContentPart]:
        if self.role == "assistant":
            # Generated as one text.
            return "".join([part.text or "" for part in self.parts])
        if not self.parts:
            return ""
        return self.parts[0].text or "" if len(self.parts) == 1 and self.parts[0].type == "text" else self.parts

    def image_location(self, part: int) -> str:
        """Returns the location in the body of the image that is this part of the message."""
        nth = sum(before.type != "text" for before in self.parts[:part])
        return f"{self.image_locations[nth]}.source"


_KINDS = {
    "system": ("text",),
    "user": ("text", "image", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
}
"""Types of blocks by role."""


class _MessageBuilder:
    """Messages under construction. Consecutive messages of the same role are merged."""

    def __init__(self) -> None:
        self.turns: list[_Turn] = []
        self._names: dict[str, str] = {}
        """Tool names by call id."""

    def add(self, location: str, role: str, content: str | list[Block]) -> None:
        """Adds a message."""
        if role not in _KINDS:
            message = f"{location}.role is {excerpt(role)}; it must be 'user', 'assistant' or 'system'"
            raise InvalidRequestError("messages", message)
        blocks = list(_blocks(location if location == "system" else f"{location}.content", content))
        if role != "user" or not blocks:
            self._turn(location, role)
        for where, block in blocks:
            if block.type == "tool_result" and role == "user":
                self._result(where, block)
            else:
                self._take(self._turn(location, role), where, block, _KINDS[role])

    def _result(self, location: str, block: Block) -> None:
        if not block.tool_use_id:
            raise InvalidRequestError("messages", f"{location}.tool_use_id must be given")
        turn = _Turn(location, "tool")
        turn.call_id, turn.name = block.tool_use_id, self._names.get(block.tool_use_id)
        if block.is_error:
            # Templates have no other representation of errors.
            turn.parts.append(ContentPart("text", "Error:"))
        for where, part in _blocks(f"{location}.content", block.content or ""):
            self._take(turn, where, part, ("text", "image"))
        self.turns.append(turn)

    def _take(self, turn: _Turn, location: str, block: Block, known: Sequence[str]) -> None:
        """Adds a block of one of the known types."""
        match block.type if block.type in known else None:
            case "text":
                turn.parts.append(_text(location, block))
            case "image":
                turn.parts.append(_image(location, block))
                turn.image_locations.append(location)
            case "thinking":
                turn.reasoning.append(block.thinking or "")
            case "redacted_thinking":
                pass  # Only its author can decrypt it.
            case "tool_use":
                turn.calls.append(self._call(location, block))
            case _:
                kinds = " and ".join(filter(None, (", ".join(known[:-1]), known[-1])))
                kind = f"blocks of the type {excerpt(block.type)} are not supported here, only {kinds}"
                raise InvalidRequestError(_field(location), f"{location}: {kind}")

    def _call(self, location: str, block: Block) -> dict[str, Any]:
        if not block.id or not block.name:
            raise InvalidRequestError("messages", f"{location}.{'name' if block.id else 'id'} must be given")
        self._names[block.id] = block.name
        arguments = msgspec.json.encode(block.input or {}).decode()
        return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}

    def _turn(self, location: str, role: str) -> _Turn:
        """Returns the last message if it has this role, else a new one."""
        if not self.turns or self.turns[-1].role != role:
            self.turns.append(_Turn(location, role))
        return self.turns[-1]


def _blocks(location: str, content: str | list[Block]) -> Iterator[tuple[str, Block]]:
    """Yields the blocks of a content with their locations."""
    if isinstance(content, str):
        if content:
            yield location, Block(type="text", text=content)
        return
    for index, block in enumerate(content):
        yield f"{location}[{index}]", block


def _field(location: str) -> str:
    """Returns the body's field that contains a location."""
    return re.split(r"[.\[]", location, maxsplit=1)[0]


def _text(location: str, block: Block) -> ContentPart:
    if block.text is None:
        raise InvalidRequestError(_field(location), f"{location}.text must be given")
    return ContentPart("text", block.text)


def _image(location: str, block: Block) -> ContentPart:
    match block.source:
        case Source(type="base64", data=str() as data):
            # Not decoded here; the format is detected from the data.
            return ContentPart("image_url", image_url=ImageUrl(data))
        case Source(type="url", url=str() as url):
            return ContentPart("image_url", image_url=ImageUrl(url))
    kinds = "of the type 'base64' with its data, or 'url' with its url"
    raise InvalidRequestError("messages", f"{location}.source must be given, {kinds}")
