"""Conversion of response bodies to chats, and to the initial response object. No I/O here."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from weft import InvalidRequestError
from weft.chat.conversation import ChatMessage
from weft.fields.excerpt import excerpt, truncate
from weft.fields.validation import check_range
from weft.server.request_fields import requests, unsupported
from weft.server.request_fields.chat import ChatFields
from weft.server.request_fields.fields import SamplingFields
from weft.server.responses import schemas
from weft.server.responses.items import BELOW, new_id
from weft.server.responses.writing import OPAQUE
from weft.settings import Settings

MAX_METADATA = (16, 64, 512)
"""Maximum number of metadata texts, characters of a name, and characters of a text; as in OpenAI's API."""

LOGPROBS = "message.output_text.logprobs"

_INCLUDABLE = (
    *(LOGPROBS, OPAQUE, "message.input_image.image_url"),
    # Outputs of server-side tools. This server has no such tools, so these are accepted without effect.
    *("file_search_call.results", "web_search_call.results", "web_search_call.action.sources"),
    *("computer_call_output.output.image_url", "code_interpreter_call.outputs"),
)

_COMPACT = (
    "Sum up the conversation above for somebody who goes on with it and has seen none of it: what was asked, what was found,"
    " decided and done, what is still open, and every name, path and number that will be needed. Write nothing but the summary."
)


_REASONING = {
    "context": ("auto",),
    "generate_summary": ("auto",),
    "mode": ("standard",),
    "summary": ("auto",),
}
"""Accepted fields other than the effort."""

_TEXT = {"verbosity": ("medium",)}
"""Accepted fields other than the format."""

_SHARED_FIELDS = (
    *(field.name for field in msgspec.structs.fields(SamplingFields)),
    *("chat_template_kwargs", "parallel_tool_calls", "seed", "stop", "priority", "max_token_gap_ms", "t_max_predict_ms"),
    *("cache_prompt", "id_slot", "lora", "grammar", "sse_ping_interval", "explain_cache"),
)
"""Fields with the same name in chats."""

_REPEATED = (
    *("instructions", "max_output_tokens", "max_tool_calls", "previous_response_id", "prompt_cache_key", "safety_identifier"),
)
"""Fields that the response repeats unchanged."""


def check(data: schemas.ResponseFields) -> None:
    """Refuses unsupported fields and contradictions, before anything is looked up.

    Raises:
        InvalidRequestError: A field is unsupported or contradicts another.
    """
    unsupported.refuse_unsupported(data)
    _check_object("reasoning", data.reasoning, _REASONING, but=("effort",))
    _check_object("text", data.text, _TEXT, but=("format",))
    if data.truncation not in (None, "auto", "disabled"):
        raise InvalidRequestError("truncation", f"truncation is {excerpt(data.truncation)}; it must be 'auto' or 'disabled'")
    if data.previous_response_id is not None and data.conversation is not None:
        raise InvalidRequestError("conversation", "conversation cannot be combined with previous_response_id; give one of them")
    if isinstance(data, schemas.GenerationFields):
        check_range("max_output_tokens", data.max_output_tokens, 1)
    if isinstance(data, schemas.CreateResponse):
        _check_response(data)


def _check_response(data: schemas.CreateResponse) -> None:
    if unknown := [name for name in data.include or () if name not in _INCLUDABLE]:
        raise InvalidRequestError("include", f"include has {excerpt(unknown[0])}; the values are {', '.join(_INCLUDABLE)}")
    requests.check_top_logprobs(data.top_logprobs)
    if data.top_logprobs and LOGPROBS not in (data.include or ()):
        raise InvalidRequestError("top_logprobs", f"top_logprobs requires {LOGPROBS!r} in include")
    check_range("max_tool_calls", data.max_tool_calls, 1)
    if data.background and data.store is False:
        raise InvalidRequestError("background", "a background response must be stored; leave store out")
    check_metadata(data.metadata)


def _check_object(
    name: str, given: Mapping[str, Any] | None, accepted: Mapping[str, Sequence[Any]], *, but: Sequence[str]
) -> None:
    for key, value in (given or {}).items():
        if key not in but and value is not None and value not in accepted.get(key, ()):
            message = f"{name}.{truncate(f'{key} is {excerpt(value)}')}, which is not supported; leave it out"
            raise InvalidRequestError(name, message)


def check_metadata(metadata: Mapping[str, str] | None) -> None:
    """Refuses metadata with too many or too long texts.

    Raises:
        InvalidRequestError: A limit is exceeded.
    """
    most, longest_name, longest = MAX_METADATA
    for what, found, limit in (
        ("texts", len(metadata or {}), most),
        ("characters in a key", max(map(len, metadata or ()), default=0), longest_name),
        ("characters in a value", max(map(len, (metadata or {}).values()), default=0), longest),
    ):
        if found > limit:
            raise InvalidRequestError("metadata", f"metadata has {found} {what}; at most {limit} are allowed")


def conversation_id(data: schemas.ResponseFields) -> str | None:
    """Returns the id of the conversation that a body refers to, or None.

    Raises:
        InvalidRequestError: The reference is malformed.
    """
    match data.conversation:
        case None | str():
            return data.conversation
        case {"id": str() as name}:
            return name
    message = f"conversation is {excerpt(data.conversation)}; it must be an id, or an object with one"
    raise InvalidRequestError("conversation", message)


def chat(data: schemas.ResponseFields, messages: Sequence[ChatMessage]) -> ChatFields:
    """Returns the chat of a body with these messages.

    Raises:
        InvalidRequestError: A tool or format is invalid.
    """
    tools = [known for position, tool in enumerate(data.tools or ()) for known in _tools(tool, f"tools[{position}]")]
    tool_choice = _tool_choice(data.tool_choice)
    if isinstance(data.tool_choice, dict) and data.tool_choice.get("type") == "allowed_tools":
        tools, tool_choice = _allowed(tools, data.tool_choice)
    same = {name: getattr(data, name, None) for name in _SHARED_FIELDS}
    fields = ChatFields(
        **same,
        # The API returns one response, regardless of the server's default.
        n=1,
        messages=list(messages),
        tools=tools or None,
        tool_choice=tool_choice,
        reasoning_effort=_effort(data),
        response_format=_format(data),
    )
    if isinstance(data, schemas.CreateResponse):
        fields.max_completion_tokens = data.max_output_tokens
        if LOGPROBS in (data.include or ()):
            fields.logprobs, fields.top_logprobs = True, data.top_logprobs or 0
        # Progress events show when a queued response has started.
        fields.return_progress = data.background is True or data.return_progress is True
        fields.stream = data.stream is True or data.background is True
    return fields


def compaction(data: schemas.CompactBody, fields: ChatFields) -> ChatFields:
    """Returns the chat in which the model summarizes another."""
    return msgspec.structs.replace(
        fields,
        messages=[*(fields.messages or ()), ChatMessage(role="user", content=_COMPACT)],
        max_completion_tokens=data.max_output_tokens,
        # The functions stay in the prompt, which is cached; the summary must not call any.
        tool_choice=None if fields.tools is None else "none",
    )


def turns(fields: ChatFields) -> list[int]:
    """Returns the positions at which turns begin: each at a user message, the first one after the system messages."""
    messages = fields.messages or []
    first_turn = next((nth for nth, message in enumerate(messages) if message.role not in ("system", "developer")), 0)
    return [first_turn, *(nth for nth, message in enumerate(messages) if nth > first_turn and message.role == "user")]


def without(fields: ChatFields, begins: Sequence[int], n_oldest: int) -> ChatFields:
    """Returns the chat without its oldest turns; leading system messages remain."""
    messages = fields.messages or []
    return msgspec.structs.replace(fields, messages=[*messages[: begins[0]], *messages[begins[n_oldest] :]])


def _tools(tool: dict[str, Any], location: str) -> list[dict[str, Any]]:
    """Returns a function, or the functions of a namespace, in the format of chats."""
    if tool.get("type") != "namespace":
        return [_tool(tool, location)]
    namespace, inner = tool.get("name"), tool.get("tools")
    if not isinstance(namespace, str) or not namespace or BELOW in namespace:
        raise InvalidRequestError("tools", f"{location}.name is {excerpt(namespace)}; it must be a name without '{BELOW}'")
    if not isinstance(inner, list) or not all(isinstance(one, dict) for one in inner):
        raise InvalidRequestError("tools", f"{location}.tools must be a list of functions")
    known = [_tool(one, f"{location}.tools[{position}]") for position, one in enumerate(inner)]
    for one in known:
        one["function"]["name"] = f"{namespace}{BELOW}{one['function']['name']}"
    return known


def _tool(tool: dict[str, Any], location: str) -> dict[str, Any]:
    """Returns a function in the format of chats."""
    if tool.get("type") != "function":
        kind = f"{location}.type is {excerpt(tool.get('type'))}; only functions are supported, and namespaces of them"
        raise InvalidRequestError("tools", kind)
    if not isinstance(tool.get("name"), str):
        raise InvalidRequestError("tools", f"{location}.name must be given")
    for name in ("allowed_callers", "async", "defer_loading", "output_schema"):
        if tool.get(name) and not (name == "allowed_callers" and tool[name] == ["direct"]):
            raise InvalidRequestError("tools", f"{location}.{name} is not supported; leave it out")
    function = {name: tool[name] for name in ("name", "description", "parameters", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    match choice:
        case None | str():
            return choice
        case {"type": "function", "name": str() as name}:
            return {"type": "function", "function": {"name": name}}
        case {"type": "allowed_tools"}:
            return None
    raise InvalidRequestError("tool_choice", f"tool_choice is {excerpt(choice)}, which is not supported; it must name a function")


def _allowed(tools: list[dict[str, Any]], choice: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """Returns the functions that may be called, and whether a call is required."""
    mode, allowed = choice.get("mode", "auto"), choice.get("tools")
    if mode not in ("auto", "required") or not isinstance(allowed, list):
        raise InvalidRequestError("tool_choice", "tool_choice of allowed_tools requires a mode, 'auto' or 'required', and tools")
    names = [tool.get("name") for tool in allowed if isinstance(tool, dict) and tool.get("type") == "function"]
    known = {tool["function"]["name"] for tool in tools}
    if len(names) < len(allowed) or not all(isinstance(name, str) for name in names) or not known.issuperset(names):
        raise InvalidRequestError("tool_choice", "tool_choice.tools names a function that is not in tools")
    return [tool for tool in tools if tool["function"]["name"] in names], mode


def _effort(data: schemas.ResponseFields) -> str | None:
    effort = (data.reasoning or {}).get("effort")
    if effort is None or isinstance(effort, str):
        return effort
    raise InvalidRequestError("reasoning", f"reasoning.effort is {excerpt(effort)}; it must be a string")


def _format(data: schemas.ResponseFields) -> dict[str, Any] | None:
    """Returns `text.format` in the format of chats."""
    match (data.text or {}).get("format"):
        case None:
            return None
        case {"type": "json_schema", "schema": schema, **more}:
            return {"type": "json_schema", "json_schema": {**more, "schema": schema}}
        case {"type": "json_schema"}:
            raise InvalidRequestError("text", "text.format.schema must be given")
        case {"type": "text" | "json_object" as kind}:
            return {"type": kind}
        case other:
            message = f"text.format is {excerpt(other)}; its type must be 'text', 'json_object' or 'json_schema'"
            raise InvalidRequestError("text", message)


def response(
    data: schemas.CreateResponse, settings: Settings, model: str, conversation: str | None, removed: list[schemas.Transformation]
) -> schemas.Response:
    """Returns a response without output."""
    return schemas.Response(
        id=new_id("resp"),
        created_at=int(time.time()),
        status="queued" if data.background else "in_progress",
        background=data.background is True,
        model=model,
        output=[],
        parallel_tool_calls=data.parallel_tool_calls is not False,
        conversation=None if conversation is None else schemas.ConversationRef(conversation),
        reasoning={"effort": None, "summary": None} | (data.reasoning or {}),
        store=data.store is not False,
        temperature=_setting(data, settings, "temperature"),
        text={"format": {"type": "text"}, "verbosity": "medium"} | {k: v for k, v in (data.text or {}).items() if v is not None},
        tool_choice=data.tool_choice or "auto",
        tools=[_tool_with_defaults(tool) for tool in data.tools or ()],
        top_logprobs=data.top_logprobs or 0,
        top_p=_setting(data, settings, "top_p"),
        truncation=data.truncation or "disabled",
        input_transformations=removed,
        user=msgspec.UNSET if data.user is None else data.user,
        metadata=data.metadata or {},
        **{name: getattr(data, name) for name in _REPEATED},
    )


def _setting(data: schemas.CreateResponse, settings: Settings, name: str) -> float | None:
    given = getattr(data, name)
    return getattr(settings.sampling, name) if given is None else given  # type: ignore[no-any-return]


def _tool_with_defaults(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") == "namespace":
        return {"description": "", **tool, "tools": [_tool_with_defaults(one) for one in tool["tools"]]}
    return {"strict": None, "parameters": None, "description": None} | tool
