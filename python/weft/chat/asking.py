"""What a chat asks of its answer besides its messages: which tools may be called, and whether the model thinks first."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from weft.chat.answer.reader import Thoughts
from weft.chat.answer.tools import Tool, ToolUse
from weft.chat.conversation import Chat
from weft.errors import InvalidRequest
from weft.fields.shown import shown

__all__ = ["MAX_TOOLS", "MAX_TOOL_BYTES", "REASONING_FORMATS", "AskedTools", "Thinking", "asked_thinking", "asked_tools"]

MAX_TOOLS = 128
"""Most tools of a chat; OpenAI's number."""

MAX_TOOL_BYTES = 512 * 1024
"""Most bytes of their JSON together."""

MAX_BUDGET = 2**32 - 1
"""Most tokens that a budget can be of, which is more than any context has; a larger one is this one."""

REASONING_FORMATS = {"auto": Thoughts.APART, **{where.value: where for where in Thoughts}}
"""Where a thought is told, by llama-server's words."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:-]{0,127}")

_ON = {"enabled": True, "adaptive": True, "auto": None, "disabled": False}


class AskedTools(msgspec.Struct, frozen=True):
    """The tools of a chat."""

    use: ToolUse | None
    """Those that may be called, and how; None where they are only shown."""
    shown: list[dict[str, Any]]
    """The tools as templates take them, those that may not be called now among them: what they were told before stays so."""


class Thinking(msgspec.Struct, frozen=True):
    """Whether a model thinks before it answers, and how it is told."""

    is_on: bool | None = None
    """None leaves it to the template."""
    budget: int | None = None
    """Most tokens of a thought, below 0 any number; None leaves it to the server."""
    told: Thoughts = Thoughts.APART


def asked_tools(data: Chat) -> AskedTools | None:
    """The tools of a chat; None where it has none.

    Raises:
        InvalidRequest: they are not what they must be, or it chooses one that is not there.
    """
    given, choice, names = data.tools, data.tool_choice, ("tools", "tool_choice")
    if data.functions or data.function_call not in (None, "none", "auto"):
        if given or choice not in (None, "none", "auto"):
            old = "functions" if data.functions else "function_call"
            raise InvalidRequest(old, f"{old} is the old way to say what tools and tool_choice say; give one of the two")
        given = [{"type": "function", "function": entry} for entry in data.functions or ()]
        choice, names = _choice_of_before(data.function_call), ("functions", "function_call")
    if not given:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest(names[1], f"{names[1]} is {shown(choice)}, and there are no {names[0]} to choose from")
        return None
    tools = [_tool(entry, nth, names[0]) for nth, entry in enumerate(_bounded(given, names[0]))]
    if len({tool.name for tool in tools}) < len(tools):
        raise InvalidRequest(names[0], f"{names[0]} has two of the same name; each must have its own")
    if choice == "none":
        # They stay in the prompt, as in llama-server: without them all that follows would be computed anew.
        return AskedTools(None, [_shown(entry) for entry in given])
    is_required, chosen = _chosen(choice, [tool.name for tool in tools], names[1])
    parallel = names[0] == "tools" and data.parallel_tool_calls is not False
    use = ToolUse(tuple(tool for tool in tools if tool.name in chosen), is_required=is_required, is_parallel=parallel)
    return AskedTools(use, [_shown(entry) for entry in given])


def _choice_of_before(function_call: Any) -> Any:  # noqa: ANN401 (any JSON)
    return {"type": "function", "function": function_call} if isinstance(function_call, Mapping) else function_call


def _bounded(given: Sequence[Any], name: str) -> Sequence[Any]:
    if len(given) > MAX_TOOLS:
        raise InvalidRequest(name, f"there are {len(given)} {name}; at most {MAX_TOOLS} are taken")
    try:
        n_bytes = len(msgspec.json.encode(given))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(name, f"{name} are no JSON: {error}") from None
    if n_bytes > MAX_TOOL_BYTES:
        raise InvalidRequest(name, f"{name} are {n_bytes} bytes of JSON; at most {MAX_TOOL_BYTES} are taken")
    return given


def _tool(entry: Any, nth: int, field: str) -> Tool:  # noqa: ANN401 (any JSON)
    place = f"{field}[{nth}]"
    if not isinstance(entry, Mapping):
        raise InvalidRequest(field, f"{place} is {shown(entry)}; it must be an object")
    if entry.get("type", "function") != "function":
        raise InvalidRequest(field, f"{place}.type is {shown(entry['type'])}; only tools of type 'function' are there")
    function = entry.get("function", entry)
    if not isinstance(function, Mapping):
        raise InvalidRequest(field, f"{place}.function is {shown(function)}; it must be an object")
    name = function.get("name")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        rule = "it must be a name of letters, digits, '_', '-', '.', '/' and ':', at most 128 of them"
        raise InvalidRequest(field, f"{place}.function.name is {shown(name)}; {rule}")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise InvalidRequest(field, f"{place}.function.parameters is {shown(parameters)}; it must be a JSON schema of an object")
    schema = dict(parameters or {})
    if schema.get("type", "object") != "object":
        message = f"{place}.function.parameters.type is {shown(schema['type'])}; arguments are an object"
        raise InvalidRequest(field, message)
    if not _SAYS & schema.keys():
        schema["type"] = "object"
    if not isinstance(function.get("strict"), bool | None):
        raise InvalidRequest(field, f"{place}.function.strict is {shown(function['strict'])}; it must be a boolean")
    return Tool(name, schema, is_strict=function.get("strict") is True)


_SAYS = {"type", "properties", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"}
"""Words of a schema that say what a value is."""


def _shown(entry: Mapping[str, Any]) -> dict[str, Any]:
    function = entry.get("function", {key: value for key, value in entry.items() if key != "type"})
    # Templates look them up without asking whether they are there.
    expected = {
        "name": function["name"],
        "description": function.get("description") or "",
        "parameters": function.get("parameters") or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": expected | {key: value for key, value in function.items() if key not in expected}}


def _chosen(choice: Any, names: Sequence[str], field: str) -> tuple[bool, Sequence[str]]:  # noqa: ANN401 (any JSON)
    """Whether a tool must be called, and which may be."""
    match choice:
        case None | "auto":
            return False, names
        case "required" | "any":
            return True, names
        case {"type": "function", "function": {"name": str() as name}} | {"type": "function", "name": str() as name}:
            return True, [_known(name, names, field)]
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [*allowed]}} if allowed:
            return mode == "required", [_known(_allowed(entry), names, field) for entry in allowed]
    right = "it must be 'none', 'auto', 'required' or an object that names a function"
    raise InvalidRequest(field, f"{field} is {shown(choice)}; {right}")


def _allowed(entry: Any) -> Any:  # noqa: ANN401 (any JSON)
    match entry:
        case {"function": {"name": name}} | {"name": name}:
            return name
    return None


def _known(name: Any, names: Sequence[str], field: str) -> str:  # noqa: ANN401 (any JSON)
    if name not in names:
        raise InvalidRequest(field, f"{field} names {shown(name)}, which is none of the tools")
    return str(name)


def asked_thinking(data: Chat, default_form: str) -> Thinking:
    """Whether a model is to think, how long, and how its thought is told.

    Raises:
        InvalidRequest: a field is not what it must be.
    """
    form = data.reasoning_format or default_form
    if form not in REASONING_FORMATS:
        known = ", ".join(map(repr, REASONING_FORMATS))
        raise InvalidRequest("reasoning_format", f"reasoning_format is {shown(form)}; it must be one of {known}")
    is_on = data.enable_thinking
    budget: Any = None
    match data.thinking:
        case None:
            pass
        case bool() as told:
            is_on = told if is_on is None else is_on
        case {"type": "enabled" | "disabled" | "adaptive" | "auto" as kind, **more}:
            is_on = _ON[kind] if is_on is None else is_on
            budget = more.get("budget_tokens")
        case _:
            right = "it must be a boolean, or an object whose type is 'enabled' or 'disabled'"
            raise InvalidRequest("thinking", f"thinking is {shown(data.thinking)}; {right}")
    if is_on is None and data.reasoning_effort == "none":
        is_on = False
    if budget is not None and (not isinstance(budget, int) or isinstance(budget, bool)):
        raise InvalidRequest("thinking", f"thinking.budget_tokens is {shown(budget)}; it must be a whole number")
    given = next((b for b in (data.reasoning_budget_tokens, data.thinking_budget_tokens, budget) if b is not None), None)
    return Thinking(is_on, None if given is None else min(given, MAX_BUDGET), REASONING_FORMATS[form])
