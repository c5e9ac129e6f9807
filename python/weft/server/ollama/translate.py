"""Conversion of Ollama's bodies to chats. No I/O here."""

import math
import re
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from weft import InvalidRequestError
from weft.chat.conversation import ChatMessage, ContentPart, ImageUrl
from weft.fields.excerpt import excerpt
from weft.fields.validation import check_range
from weft.server.inference.submission import renamed
from weft.server.media.files import MediaPrompt
from weft.server.ollama import schemas
from weft.server.request_fields import media, requests, unsupported
from weft.server.request_fields.chat import ChatFields
from weft.server.request_fields.fields import CompletionFields

_OPTIONS = {
    field.name: field.encode_name
    for field in msgspec.structs.fields(schemas.Options)
    if field.name in CompletionFields.__struct_fields__
}
"""Options of completions, with their names in the body."""

_SENT_AS = {name: f"options.{option}" for name, option in _OPTIONS.items()} | {
    "n_batch": "options.num_batch",
    "json_schema": "format",
    "response_format": "format",
    "context_shift": "shift",
    "n_probs": "top_logprobs",
    "enable_thinking": "think",
    "reasoning_effort": "think",
    "image_data": "images",
}

_UNTIL_CONTEXT_IS_FULL = -2
"""Value of `num_predict`, equivalent to -1 here."""

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

_DURATION = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(ns|us|µs|ms|s|m|h)")


class ParsedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed body."""

    fields: ChatFields
    more: dict[str, Any]
    """Fields of the engine's request that chats do not have."""


def rename_parameter(error: InvalidRequestError, *, is_chat: bool = True) -> InvalidRequestError:
    """Returns the error with the names of the body's fields.

    Args:
        error: The error.
        is_chat: Whether the body has messages instead of a prompt.
    """
    error = renamed(error, _SENT_AS | {"prompt": "messages"} if is_chat else _SENT_AS)
    name, message = error.param, error.message
    # Images are the first parts of their message.
    place = r"\1.images[\2]" if is_chat else r"images[\2]"
    message = re.sub(r"(messages\[\d{1,9}\])\.content\[(\d{1,9})\]\.image_url\.url", place, message)
    message = re.sub(r"\bimage_data\[(\d{1,9})\]\.data\b", r"images[\1]", message)
    message = re.sub(r"\bimage_data\b", "images", message)
    if name == "messages" and not is_chat:
        name = "images" if message.startswith("images") else "prompt"
    return InvalidRequestError(name, message)


def chat(data: schemas.ChatBody, n_ctx: int) -> ParsedRequest:
    """Returns the chat of a body. `n_ctx` is the context of a completion, in tokens."""
    given = data.messages or []
    return _parse(data, n_ctx, messages=_messages(given), tools=data.tools or None)


def generate_chat(data: schemas.GenerateBody, n_ctx: int) -> ParsedRequest:
    """Returns a chat of the system message, if any, and one user message."""
    messages = [ChatMessage(role="system", content=data.system)] if data.system else []
    messages.append(_message(schemas.GivenMessage(role="user", content=data.prompt, images=data.images)))
    if data.images and data.context:
        raise InvalidRequestError("images", "images cannot be combined with context; leave one of them out")
    return _parse(data, n_ctx, messages=messages)


def raw(data: schemas.GenerateBody, n_ctx: int) -> ParsedRequest:
    """Returns a completion without chat template, or an infill."""
    kind = "raw" if data.raw else "suffix"
    for name in ("system", "context", *(() if data.raw else ("images",))):
        if getattr(data, name):
            raise InvalidRequestError(name, f"{name} cannot be combined with {kind}; leave one of them out")
    if data.think:
        raise InvalidRequestError("think", f"think cannot be combined with {kind}; leave one of them out")
    return _parse(data, n_ctx, prompt=data.prompt)


def raw_prompt_with_images(data: schemas.GenerateBody) -> MediaPrompt | None:
    """Returns a raw prompt with its images, or None if there are none."""
    if not data.images:
        return None
    prompt = data.prompt or ""
    if "[img-" not in prompt:
        prompt = "".join(f"[img-{number}]" for number in range(len(data.images))) + prompt
    return media.with_images(prompt, [{"data": image, "id": number} for number, image in enumerate(data.images)])


def _parse(data: schemas.GenerationFields, n_ctx: int, **fields: Any) -> ParsedRequest:  # noqa: ANN401 (each field has its own type)
    unsupported.refuse_unsupported(data)
    options = data.options or schemas.Options()
    _check_options(options, n_ctx)
    return ParsedRequest(
        fields=ChatFields(
            n=1,
            stream=data.stream is not False,
            explain_cache=data.explain_cache,
            speculative_n_max=options.draft_num_predict,
            **fields,
            **_written(options),
            **_format(data.format),
            **_thinking(data.think),
            **_logprobs(data),
        ),
        more={
            name: value for name, value in (("n_batch", options.num_batch), ("context_shift", data.shift)) if value is not None
        },
    )


def check_embedding(data: schemas.EmbedBody | schemas.EmbeddingsBody, n_ctx: int) -> None:
    """Refuses invalid or unsupported options of embedding requests."""
    if isinstance(data, schemas.EmbedBody):
        check_range("dimensions", data.dimensions, 0)
    _check_options(data.options or schemas.Options(), n_ctx)


def _check_options(options: schemas.Options, n_ctx: int) -> None:
    if (name := unsupported.first_unsupported(options)) is not None:
        raise InvalidRequestError("options", f"options.{name} is a setting of the server, not of a request; leave it out")
    if options.num_ctx is not None and options.num_ctx > n_ctx:
        message = f"options.num_ctx is {options.num_ctx}; a slot has {n_ctx} tokens of context"
        raise InvalidRequestError("options", f"{message}: leave it out, or start the server with a larger --ctx-size")
    check_range("options.num_batch", options.num_batch, 1, param="options")


def _written(options: schemas.Options) -> dict[str, Any]:
    fields = {name: getattr(options, name) for name in _OPTIONS}
    check_range("options.num_predict", options.n_predict, _UNTIL_CONTEXT_IS_FULL, param="options")
    if options.n_predict == _UNTIL_CONTEXT_IS_FULL:
        fields["n_predict"] = -1
    return fields


def _format(given: Any) -> dict[str, Any]:  # noqa: ANN401 (any JSON)
    if given in (None, ""):
        return {}
    if given == "json":
        return {"response_format": {"type": "json_object"}}
    if isinstance(given, dict):
        return {"json_schema": given}
    raise InvalidRequestError("format", f"format is {excerpt(given)}; it must be 'json', or a JSON schema")


def _thinking(think: bool | str | None) -> dict[str, Any]:
    if think in (None, ""):
        return {}
    if isinstance(think, bool):
        return {"enable_thinking": think}
    if think not in ("low", "medium", "high", "max"):
        raise InvalidRequestError("think", f"think is {excerpt(think)}; it must be a boolean, 'low', 'medium', 'high' or 'max'")
    return {"enable_thinking": True, "reasoning_effort": think}


def _logprobs(data: schemas.GenerationFields) -> dict[str, Any]:
    requests.check_top_logprobs(data.top_logprobs)
    # As in Ollama, `top_logprobs` alone does not enable logprobs.
    return {"logprobs": True, "top_logprobs": data.top_logprobs} if data.logprobs else {}


class _Calls:
    """Assigns ids to tool calls, and matches results that do not name their call."""

    def __init__(self) -> None:
        self._n = 0
        self._names: dict[str, str] = {}
        """Names by id."""
        self._waiting: dict[str, None] = {}
        """Ids of calls without a result, in order."""
        self._waiting_of: dict[str, deque[str]] = {}
        """Ids by name in order, including some that have a result already."""

    def add(self, call: schemas.GivenCall) -> dict[str, Any]:
        """Returns a call in the format of chats."""
        name, call_id = call.function.name, call.id or f"call_{self._n}"
        self._n += 1
        self._names[call_id] = name
        self._waiting[call_id] = None
        self._waiting_of.setdefault(name, deque()).append(call_id)
        arguments = msgspec.json.encode(call.function.arguments or {}).decode()
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    def answer(self, message: ChatMessage) -> None:
        """Sets the id of the call that a result belongs to, if it can be determined."""
        call_id = message.tool_call_id or (self._next_of(message.name) if message.name else next(iter(self._waiting), None))
        if call_id is not None:
            self._waiting.pop(call_id, None)
            message.tool_call_id, message.name = call_id, message.name or self._names.get(call_id)

    def _next_of(self, name: str) -> str | None:
        waiting = self._waiting_of.get(name, deque())
        while waiting:
            if (call_id := waiting.popleft()) in self._waiting:
                return call_id
        return None


def _messages(given: Sequence[schemas.GivenMessage]) -> list[ChatMessage]:
    messages, calls = [], _Calls()
    for one in given:
        message = _message(one)
        if one.tool_calls:
            message.tool_calls = [calls.add(call) for call in one.tool_calls]
        if message.role == "tool":
            calls.answer(message)
        messages.append(message)
    return messages


def _message(given: schemas.GivenMessage) -> ChatMessage:
    content: str | list[ContentPart] = given.content or ""
    if given.images:
        pictures = [ContentPart("image_url", image_url=ImageUrl(image)) for image in given.images]
        content = [*pictures, ContentPart("text", given.content or "")]
    return ChatMessage(
        role=given.role.lower(),
        content=content,
        reasoning_content=given.thinking or None,
        name=given.tool_name or None,
        tool_call_id=given.tool_call_id or None,
    )


def keep_alive_s(given: float | str | None) -> float | None:
    """Returns the seconds for which the model must stay loaded: infinity disables unloading, None keeps the server's setting.

    Raises:
        InvalidRequestError: The text is not a duration in Go's format.
    """
    if given is None or isinstance(given, int | float):
        return math.inf if given is not None and given < 0 else given
    text = given.strip()
    digits = text.lstrip("+-")
    parts = _DURATION.findall(digits)
    if digits != "0" and (not parts or "".join(number + unit for number, unit in parts) != digits):
        message = f"keep_alive is {excerpt(given)}; it must be seconds, or a text like '5m' or '1h30m'"
        raise InvalidRequestError("keep_alive", message)
    return math.inf if text.startswith("-") and digits != "0" else sum(float(number) * _UNITS_S[unit] for number, unit in parts)
