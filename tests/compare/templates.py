"""The prompts that both servers write with each chat template of llama.cpp's tree."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.compare.exchange import Case
from tests.compare.fetch_templates import FOLDER

__all__ = ["CHATS", "PATH", "template_cases", "template_files"]

Json = Any

PATH = "/apply-template"

SYSTEM = {"role": "system", "content": "Be brief."}
HI = {"role": "user", "content": "Hi"}
QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
NEXT = {"role": "user", "content": "And in Rome?"}
ANSWER = {"role": "assistant", "content": "It is sunny."}
REASONED = {**ANSWER, "reasoning_content": "The service reports sun."}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Returns the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city"},
                "days": {"type": "integer", "description": "Days ahead"},
            },
            "required": ["city"],
        },
    },
}
TIME = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Returns the time of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
        },
    },
}
TOOLS = [WEATHER, TIME]


def _call(number: int, name: str, arguments: str) -> Json:
    # Nine letters and digits, which some templates require.
    return {"id": f"call0000{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _calling(*calls: Json, content: str | None = None, **fields: Json) -> Json:
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **fields}


def _result(number: int, name: str, content: str) -> Json:
    return {"role": "tool", "tool_call_id": f"call0000{number}", "name": name, "content": content}


PARIS = _call(1, "get_weather", '{"city": "Paris", "days": 2}')
CLOCK = _call(2, "get_time", '{"city": "Paris"}')
SUN = _result(1, "get_weather", '{"sky": "sunny"}')
NOON = _result(2, "get_time", "12:00")


def _begun(**message: str) -> Json:
    return {"messages": [QUESTION, {"role": "assistant", **message}]}


CHATS: Mapping[str, Json] = {
    "a question": {"messages": [HI]},
    "a system message": {"messages": [SYSTEM, HI]},
    "a developer message": {"messages": [{**SYSTEM, "role": "developer"}, HI]},
    "several turns": {"messages": [SYSTEM, QUESTION, ANSWER, NEXT]},
    "no generation prompt": {"messages": [QUESTION, ANSWER, NEXT], "add_generation_prompt": False},
    "parts": {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]},
            {"role": "user", "content": [{"type": "text", "text": "Hi."}, {"type": "text", "text": "What is 1 + 1?"}]},
        ]
    },
    "tools": {"messages": [SYSTEM, QUESTION], "tools": TOOLS},
    "tools that may not be called": {"messages": [QUESTION], "tools": TOOLS, "tool_choice": "none"},
    "a call without content": {"messages": [QUESTION, _calling(PARIS), SUN], "tools": TOOLS},
    "a call with content": {"messages": [QUESTION, _calling(PARIS, content="One moment."), SUN, ANSWER, NEXT], "tools": TOOLS},
    "a call without tools": {"messages": [QUESTION, _calling(PARIS, content=""), SUN]},
    "parallel calls": {"messages": [QUESTION, _calling(PARIS, CLOCK), SUN, NOON], "tools": TOOLS},
    "reasoning before calls": {
        "messages": [QUESTION, _calling(PARIS, reasoning_content="I need the service."), SUN],
        "tools": TOOLS,
    },
    "reasoning in history": {"messages": [QUESTION, REASONED, NEXT, REASONED, {"role": "user", "content": "Thanks."}]},
    "thinking off": {"messages": [HI], "chat_template_kwargs": {"enable_thinking": False}},
    "thinking off with tools": {
        "messages": [QUESTION],
        "tools": TOOLS,
        "chat_template_kwargs": {"enable_thinking": False},
    },
    "thinking on": {"messages": [HI], "chat_template_kwargs": {"enable_thinking": True}},
    "no effort": {"messages": [HI], "reasoning_effort": "none"},
    "low effort": {"messages": [SYSTEM, HI], "reasoning_effort": "low"},
    "history forgotten": {
        "messages": [QUESTION, REASONED, NEXT],
        "chat_template_kwargs": {"preserve_reasoning": False},
    },
    "a partial answer": _begun(content="It is"),
    "a partial answer after reasoning": _begun(content="It is", reasoning_content="The service reports sun."),
    "partial reasoning": _begun(content="", reasoning_content="The service"),
    "partial reasoning by name": {
        **_begun(content="It is", reasoning_content="The service"),
        "continue_final_message": "reasoning_content",
        "add_generation_prompt": False,
    },
}
"""Bodies that are sent with every template."""


def template_files() -> Sequence[Path]:
    """The fetched templates, in order."""
    return sorted(FOLDER.glob("*.jinja"))


def template_cases() -> list[Case]:
    """Every chat with every template; the name of the server is the name of the template's file."""
    return [
        Case(file.name, "POST", PATH, f"{about}, {file.name}", body) for file in template_files() for about, body in CHATS.items()
    ]
