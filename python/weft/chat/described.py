"""Tools as text, for templates that do not render them: what may be called, what was called, and what it returned."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from weft.chat.answer.call_text import json_call_text
from weft.chat.answer.family import Family
from weft.chat.conversation import ChatMessage, ContentPart
from weft.chat.template_terms import Message

__all__ = ["with_calls_told", "with_tools_told"]

_HOW = """\
You can call these functions, each given as JSON:
<tools>
{tools}
</tools>
To call one, write its name and its arguments as JSON between two tags, and nothing behind them:
<tool_call>
{{"name": "…", "arguments": {{…}}}}
</tool_call>
What comes of it is told to you between <tool_response> and </tool_response>."""

_HOW_AS_SHOWN = """\
You can call these functions, each given as JSON:
<tools>
{tools}
</tools>
To call one, write a call like this one, with its own name and arguments, and nothing behind it:
{example}"""


def with_tools_told(
    messages: Sequence[ChatMessage], tools: Iterable[Mapping[str, Any]], example: str | None = None
) -> list[ChatMessage]:
    """Returns the same messages, with a description of the tools in that of the system.

    Args:
        messages: The messages.
        tools: The tools, as templates take them.
        example: A call as the model writes it; None is the form that every model can be told of.
    """
    described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    told = _HOW.format(tools=described) if example is None else _HOW_AS_SHOWN.format(tools=described, example=example)
    if not messages or messages[0].role not in ("system", "developer"):
        return [ChatMessage(role="system", content=told), *messages]
    first = messages[0]
    content: str | list[ContentPart]
    if isinstance(first.content, list):
        content = [*first.content, ContentPart("text", f"\n\n{told}")]
    else:
        content = f"{first.content}\n\n{told}" if first.content else told
    return [msgspec.structs.replace(first, content=content), *messages[1:]]


def with_calls_told(messages: Sequence[Message], family: Family, *, has_results: bool) -> list[Message]:
    """The messages with calls as a part of what the assistant says.

    They are in the family's own format if the model was trained on one. Results stay messages of the role `tool` then, if the
    template renders those; otherwise the user says them.

    Args:
        messages: The messages as the template takes them.
        family: How the model writes calls.
        has_results: Whether the template renders messages of the role `tool`.
    """
    write = family.write_calls
    keeps_results = has_results and write is not None
    result: list[Message] = []
    for message in messages:
        calls = message.get("tool_calls")
        if calls:
            functions = [call["function"] for call in calls]
            written = "\n".join(map(_call, functions)) if write is None else write(functions)
            said = {name: value for name, value in message.items() if name != "tool_calls"}
            result.append(said | {"content": _appended(message["content"], written)})
        elif message["role"] == "tool" and not keeps_results:
            response = _appended("<tool_response>", _text(message["content"])) + "\n</tool_response>"
            if result and result[-1].get("is_response"):
                result[-1]["content"] = _appended(result[-1]["content"], response)
            else:
                result.append({"role": "user", "content": response, "is_response": True})
        else:
            result.append(message)
    return [{name: value for name, value in message.items() if name != "is_response"} for message in result]


def _call(function: Mapping[str, Any]) -> str:
    return f"<tool_call>\n{json_call_text(function)}\n</tool_call>"


def _text(content: Any) -> str:  # noqa: ANN401 (a text or parts)
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def _appended(content: Any, text: str) -> Any:  # noqa: ANN401 (a text or parts)
    if isinstance(content, str):
        return f"{content}\n{text}" if content else text
    return [*content, {"type": "text", "text": text}]
