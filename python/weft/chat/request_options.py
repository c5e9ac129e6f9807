"""Options of a chat: the tools that may be called, and reasoning."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from weft.chat.answer.reader import ReasoningFormat
from weft.chat.answer.tools import NO_TOOLS, Tool, ToolUse
from weft.chat.conversation import ChatRequest
from weft.errors import InvalidRequestError
from weft.fields.excerpt import excerpt
from weft.settings.chat import ChatSettings

MAX_TOOLS = 128
"""Maximum number of tools in a chat. OpenAI has the same limit."""

MAX_TOOL_BYTES = 512 * 1024
"""Maximum size of all tools together, in bytes of JSON."""

MAX_BUDGET = 2**32 - 1
"""Upper bound of a reasoning budget, in tokens. Larger values are clamped; no context is this long."""

REASONING_FORMATS = {"auto": ReasoningFormat.SEPARATE, **{form.value: form for form in ReasoningFormat}}
"""The values of `reasoning_format`, as in llama-server."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:-]{0,127}")

_ON = {"enabled": True, "adaptive": True, "auto": None, "disabled": False}


class RequestedTools(msgspec.Struct, frozen=True):
    """The tools of a chat request."""

    use: ToolUse = NO_TOOLS
    """The tools that may be called, and how."""
    shown: Sequence[dict[str, Any]] = ()
    """All tools in the template's format. Tools that may not be called now are included, which keeps the cached prefix valid."""


class ReasoningOptions(msgspec.Struct, frozen=True):
    """Options of the model's reasoning, and of its representation in the answer."""

    is_on: bool | None = None
    """None uses the template's default."""
    budget: int | None = None
    """Maximum tokens of the reasoning; None or negative for no limit."""
    budget_message: str | None = None
    """Text inserted at the end of reasoning whose budget is exhausted; None uses the server's default."""
    format: ReasoningFormat = ReasoningFormat.SEPARATE


def requested_tools(data: ChatRequest) -> RequestedTools:
    """Returns the tools of a chat.

    Raises:
        InvalidRequestError: A tool is invalid, or `tool_choice` names a tool that is not in the list.
    """
    given, choice, names = data.tools, data.tool_choice, ("tools", "tool_choice")
    if data.functions or data.function_call not in (None, "none", "auto"):
        if given or choice not in (None, "none", "auto"):
            old = "functions" if data.functions else "function_call"
            raise InvalidRequestError(old, f"{old} is the deprecated form of tools and tool_choice; give only one of them")
        given = [{"type": "function", "function": entry} for entry in data.functions or ()]
        choice, names = data.function_call, ("functions", "function_call")
        if isinstance(choice, Mapping):
            choice = {"type": "function", "function": choice}
    if not given:
        if choice not in (None, "none", "auto"):
            raise InvalidRequestError(names[1], f"{names[1]} is {excerpt(choice)}, but the request has no {names[0]}")
        return RequestedTools()
    tools = [_parse_tool(entry, nth, names[0]) for nth, entry in enumerate(_check_size(given, names[0]))]
    if len({tool.name for tool in tools}) < len(tools):
        raise InvalidRequestError(names[0], f"{names[0]} has two tools of the same name; names must be unique")
    if choice == "none":
        # The tools stay in the prompt, as in llama-server: removing them would discard the cached prefix.
        return RequestedTools(NO_TOOLS, [_template_tool(entry) for entry in given])
    is_required, chosen = _parse_choice(choice, [tool.name for tool in tools], names[1])
    parallel = names[0] == "tools" and data.parallel_tool_calls is not False
    use = ToolUse(tuple(tool for tool in tools if tool.name in chosen), is_required=is_required, is_parallel=parallel)
    return RequestedTools(use, [_template_tool(entry) for entry in given])


def _check_size(given: Sequence[Any], name: str) -> Sequence[Any]:
    if len(given) > MAX_TOOLS:
        raise InvalidRequestError(name, f"there are {len(given)} {name}; at most {MAX_TOOLS} are allowed")
    try:
        n_bytes = len(msgspec.json.encode(given))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(name, f"{name} are not JSON: {error}") from None
    if n_bytes > MAX_TOOL_BYTES:
        raise InvalidRequestError(name, f"{name} are {n_bytes} bytes of JSON; at most {MAX_TOOL_BYTES} are allowed")
    return given


def _parse_tool(entry: Any, nth: int, field: str) -> Tool:  # noqa: ANN401 (any JSON)
    place = f"{field}[{nth}]"
    if not isinstance(entry, Mapping):
        raise InvalidRequestError(field, f"{place} is {excerpt(entry)}; it must be an object")
    if entry.get("type", "function") != "function":
        raise InvalidRequestError(field, f"{place}.type is {excerpt(entry['type'])}; only the type 'function' is supported")
    function = entry.get("function", entry)
    if not isinstance(function, Mapping):
        raise InvalidRequestError(field, f"{place}.function is {excerpt(function)}; it must be an object")
    name = function.get("name")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        rule = "it must be a name of letters, digits, '_', '-', '.', '/' and ':', at most 128 of them"
        raise InvalidRequestError(field, f"{place}.function.name is {excerpt(name)}; {rule}")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        message = f"{place}.function.parameters is {excerpt(parameters)}; it must be a JSON schema of an object"
        raise InvalidRequestError(field, message)
    schema = dict(parameters or {})
    if schema.get("type", "object") != "object":
        message = f"{place}.function.parameters.type is {excerpt(schema['type'])}; arguments are an object"
        raise InvalidRequestError(field, message)
    if not _TYPE_KEYWORDS & schema.keys():
        schema["type"] = "object"
    if not isinstance(function.get("strict"), bool | None):
        raise InvalidRequestError(field, f"{place}.function.strict is {excerpt(function['strict'])}; it must be a boolean")
    return Tool(name, schema, is_strict=function.get("strict") is True)


_TYPE_KEYWORDS = {"type", "properties", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"}
"""Keywords of a schema that determine the type of a value."""


def _template_tool(entry: Mapping[str, Any]) -> dict[str, Any]:
    function = entry.get("function", {key: value for key, value in entry.items() if key != "type"})
    # Templates read these without checking that they are defined.
    expected = {
        "name": function["name"],
        "description": function.get("description") or "",
        "parameters": function.get("parameters") or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": expected | {key: value for key, value in function.items() if key not in expected}}


def _parse_choice(choice: Any, names: Sequence[str], field: str) -> tuple[bool, Sequence[str]]:  # noqa: ANN401 (any JSON)
    """Returns whether a tool must be called, and the names of the tools that may be called."""
    match choice:
        case None | "auto":
            return False, names
        case "required" | "any":
            return True, names
        case {"type": "function", "function": {"name": str() as name}} | {"type": "function", "name": str() as name}:
            return True, [_checked_name(name, names, field)]
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [*allowed]}} if allowed:
            return mode == "required", [_checked_name(_allowed_name(entry), names, field) for entry in allowed]
    right = "it must be 'none', 'auto', 'required' or an object that names a function"
    raise InvalidRequestError(field, f"{field} is {excerpt(choice)}; {right}")


def _allowed_name(entry: Any) -> Any:  # noqa: ANN401 (any JSON)
    match entry:
        case {"function": {"name": name}} | {"name": name}:
            return name
    return None


def _checked_name(name: Any, names: Sequence[str], field: str) -> str:  # noqa: ANN401 (any JSON)
    if name not in names:
        raise InvalidRequestError(field, f"{field} names {excerpt(name)}, which is not among the tools")
    return str(name)


def reasoning_options(data: ChatRequest, settings: ChatSettings) -> ReasoningOptions:
    """Returns the reasoning options of a chat.

    Raises:
        InvalidRequestError: A field has an invalid value.
    """
    form = data.reasoning_format or settings.reasoning_format
    if form not in REASONING_FORMATS:
        known = ", ".join(map(repr, REASONING_FORMATS))
        raise InvalidRequestError("reasoning_format", f"reasoning_format is {excerpt(form)}; it must be one of {known}")
    thinking, budget = data.thinking, None
    match data.thinking:
        case {"type": "enabled" | "disabled" | "adaptive" | "auto" as kind, **more}:
            thinking, budget = _ON[kind], more.get("budget_tokens")
        case None | bool():
            pass
        case _:
            right = "it must be a boolean, or an object whose type is 'enabled' or 'disabled'"
            raise InvalidRequestError("thinking", f"thinking is {excerpt(data.thinking)}; {right}")
    if budget is not None and (not isinstance(budget, int) or isinstance(budget, bool)):
        raise InvalidRequestError("thinking", f"thinking.budget_tokens is {excerpt(budget)}; it must be a whole number")
    effort = False if data.reasoning_effort == "none" else None
    is_on = (data.chat_template_kwargs or {}).get("enable_thinking", _first(data.enable_thinking, thinking, effort))
    if not isinstance(is_on, bool | None):
        message = f"chat_template_kwargs.enable_thinking is {excerpt(is_on)}; it must be a boolean"
        raise InvalidRequestError("chat_template_kwargs", message)
    budget = _first(data.reasoning_budget_tokens, data.thinking_budget_tokens, budget)
    return ReasoningOptions(
        is_on=_first(is_on, settings.chat_template_kwargs.get("enable_thinking")),
        budget=settings.reasoning_budget if budget is None else min(budget, MAX_BUDGET),
        budget_message=data.reasoning_budget_message,
        format=REASONING_FORMATS[form],
    )


def _first(*values: Any) -> Any:  # noqa: ANN401 (any JSON)
    """Returns the first value that is not None."""
    return next((value for value in values if value is not None), None)


def budget_message(given: str | None, default: str, ends: Sequence[str]) -> str:
    """Returns the text inserted at the end of reasoning whose budget is exhausted.

    Args:
        given: The request's text, or None.
        default: The text of the settings.
        ends: End markers of the reasoning.

    Raises:
        InvalidRequestError: The text contains an end marker, which would show the rest of it to the user.
    """
    message = default if given is None else given
    if (found := next((end for end in ends if end in message), None)) is None:
        return message
    if given is None:
        # The request set the markers; markers of chat templates were checked at startup.
        message = (
            f"reasoning_budget_end_tags has {excerpt(found)}, which is in the server's reasoning_budget_message; replace one"
        )
        raise InvalidRequestError("reasoning_budget_end_tags", message)
    why = f"contains {excerpt(found)}, which ends reasoning and is appended to the message; leave it out"
    raise InvalidRequestError("reasoning_budget_message", f"reasoning_budget_message {why}")
