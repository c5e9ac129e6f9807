"""Tools in words, for templates that have no place for them: what may be called, what was called, and what came of it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

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


def with_calls_told(messages: Sequence[Message]) -> list[Message]:
    """The same messages, in which calls and what came of them are said by the assistant and the user."""
    result: list[Message] = []
    for message in messages:
        calls = message.get("tool_calls")
        if calls:
            written = "\n".join(_call(call["function"]) for call in calls)
            said = {name: value for name, value in message.items() if name != "tool_calls"}
            result.append(said | {"content": _appended(message["content"], written)})
        elif message["role"] == "tool":
            response = _appended("<tool_response>", _text(message["content"])) + "\n</tool_response>"
            if result and result[-1].get("is_response"):
                result[-1]["content"] = _appended(result[-1]["content"], response)
            else:
                result.append({"role": "user", "content": response, "is_response": True})
        else:
            result.append(message)
    return [{name: value for name, value in message.items() if name != "is_response"} for message in result]


def _call(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    told = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": {told}}}\n</tool_call>'


def _text(content: Any) -> str:  # noqa: ANN401 (a text or parts)
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def _appended(content: Any, text: str) -> Any:  # noqa: ANN401 (a text or parts)
    if isinstance(content, str):
        return f"{content}\n{text}" if content else text
    return [*content, {"type": "text", "text": text}]
