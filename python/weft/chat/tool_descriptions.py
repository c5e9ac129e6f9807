"""Descriptions of tools, calls and results as text, for templates that do not render them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from weft.chat.answer.call_format import CallFormat, json_call_text
from weft.chat.conversation import ChatMessage, ContentPart
from weft.chat.template_terms import Message

_TOOLS = """\
You can call these functions, each given as JSON:
<tools>
{tools}
</tools>
"""

_GENERIC_CALL = """\
To call one, write its name and its arguments as JSON between two tags, and nothing behind them:
<tool_call>
{"name": "…", "arguments": {…}}
</tool_call>
What comes of it is told to you between <tool_response> and </tool_response>."""

_CALL_LIKE = "To call one, write a call like this one, with its own name and arguments, and nothing behind it:\n"


def with_described_tools(
    messages: Sequence[ChatMessage], tools: Iterable[Mapping[str, Any]], example: str | None = None
) -> list[ChatMessage]:
    """Returns the messages, with a description of the tools at the end of the system message.

    Args:
        messages: The messages.
        tools: The tools, in the format of templates.
        example: A call in the model's format; None describes the generic format.
    """
    described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    description = _TOOLS.format(tools=described) + (_GENERIC_CALL if example is None else _CALL_LIKE + example)
    if not messages or messages[0].role not in ("system", "developer"):
        return [ChatMessage(role="system", content=description), *messages]
    first = messages[0]
    content: str | list[ContentPart]
    if isinstance(first.content, list):
        content = [*first.content, ContentPart("text", f"\n\n{description}")]
    else:
        content = f"{first.content}\n\n{description}" if first.content else description
    return [msgspec.structs.replace(first, content=content), *messages[1:]]


def with_calls_as_text(messages: Sequence[Message], call_format: CallFormat, *, has_results: bool) -> list[Message]:
    """Returns the messages with calls, and if necessary results, as text.

    Calls become part of the assistant's content, as the format writes them, else as JSON in tags. Results keep the role `tool` if
    the format writes calls and the template renders that role; otherwise they become messages of the user.

    Args:
        messages: The messages, in the template's format.
        call_format: How the model writes calls.
        has_results: Whether the template renders messages of the role `tool`.
    """
    write = call_format.write_calls
    keeps_results = has_results and write is not None
    result: list[Message] = []
    for message in messages:
        calls = message.get("tool_calls")
        if calls:
            functions = [call["function"] for call in calls]
            written = "\n".join(map(_call, functions)) if write is None else write(functions)
            rest = {name: value for name, value in message.items() if name != "tool_calls"}
            result.append(rest | {"content": _appended(message["content"], written)})
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
