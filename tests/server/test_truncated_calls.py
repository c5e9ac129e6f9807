"""Answers that `max_tokens` cuts off within a call of a tool: every dialect, whole and as a stream, at every token."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.helpers import How
from tests.scripted import N_CHARACTERS, Answer, AnsweringEngine, Script
from tests.server.matchers import Json
from tests.server.scripted import PlainStream, finished, token
from weft.chat.answer.form import ChatForm
from weft.chat.answer.formats import GENERIC
from weft.chat.answer.tools import Tool, ToolUse
from weft.server import create_app
from weft.settings import Settings

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}"
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}{% endfor %}{% endfor %}<assistant>"
)
SAID = "I look."
FIRST = '{"city": "Rome"}'
SECOND = '{"city": "Oslo"}'
TEXT = (
    f'{SAID}\n<tool_call>\n{{"name": "look", "arguments": {FIRST}}}\n</tool_call>\n'
    f'<tool_call>\n{{"name": "look", "arguments": {SECOND}}}\n</tool_call>'
)
N_TOKENS = -(-len(TEXT) // N_CHARACTERS)
SCHEMA: Json = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: Json = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": SCHEMA}}]
MESSAGES: Json = [{"role": "user", "content": "Rome?"}]


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A client of a model that calls two tools."""
    engine = AnsweringEngine(Script([Answer(TEXT)], TEMPLATE))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine(), Settings())) as client:
        yield client


def check(content: str, arguments: list[str], reason: str, *, is_whole: bool, cut_reason: str, whole_reason: str) -> None:
    """The content has no markup, and the calls are those of the answer as far as they came."""
    assert f"{SAID}\n".startswith(content)
    assert len(arguments) <= 2
    for given, whole in zip(arguments, (FIRST, SECOND), strict=False):
        assert whole.startswith(given)
    if len(arguments) == 2:
        assert arguments[0] == FIRST
    assert reason == (whole_reason if is_whole else cut_reason)


def events_of(text: str) -> list[Json]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]


async def post(client: httpx.AsyncClient, path: str, body: Json, how: How) -> httpx.Response:
    answer = await client.post(path, json={**body, "stream": how == "stream"})
    assert answer.status_code == 200, answer.text
    return answer


def each_cut() -> list[int]:
    return list(range(1, N_TOKENS + 1))


async def test_openai(client: httpx.AsyncClient, how: How) -> None:
    for n in each_cut():
        body = {"messages": MESSAGES, "tools": TOOLS, "max_tokens": n}
        answer = await post(client, "/v1/chat/completions", body, how)
        if how == "whole":
            [choice] = answer.json()["choices"]
            content, reason = choice["message"]["content"] or "", choice["finish_reason"]
            arguments = [call["function"]["arguments"] for call in choice["message"].get("tool_calls", [])]
        else:
            content, arguments, reason = "", [], ""
            for event in events_of(answer.text):
                [choice] = event["choices"]
                content += choice["delta"].get("content") or ""
                for call in choice["delta"].get("tool_calls", []):
                    arguments += [""] * (call["index"] == len(arguments))
                    arguments[call["index"]] += call["function"]["arguments"]
                reason = choice["finish_reason"] or reason
        check(content, arguments, reason, is_whole=n == N_TOKENS, cut_reason="length", whole_reason="tool_calls")


async def test_responses(client: httpx.AsyncClient, how: How) -> None:
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    for n in each_cut():
        body = {"input": "Rome?", "tools": tools, "max_output_tokens": n, "store": False}
        answer = await post(client, "/v1/responses", body, how)
        response = answer.json() if how == "whole" else events_of(answer.text)[-1]["response"]
        items = response["output"]
        content = "".join(item["content"][0]["text"] for item in items if item["type"] == "message")
        calls = [item for item in items if item["type"] == "function_call"]
        arguments = [call["arguments"] for call in calls]
        check(content, arguments, response["status"], is_whole=n == N_TOKENS, cut_reason="incomplete", whole_reason="completed")
        assert [call["status"] for call in calls[:-1]] == ["completed"] * len(calls[:-1])
        if how == "stream":
            deltas = [event for event in events_of(answer.text) if event["type"] == "response.function_call_arguments.delta"]
            assert "".join(event["delta"] for event in deltas) == "".join(arguments)


async def test_anthropic(client: httpx.AsyncClient, how: How) -> None:
    tools = [{"name": "look", "description": "Looks.", "input_schema": SCHEMA}]
    for n in each_cut():
        answer = await post(client, "/v1/messages", {"messages": MESSAGES, "tools": tools, "max_tokens": n}, how)
        content, arguments = "", []
        if how == "whole":
            for block in answer.json()["content"]:
                if block["type"] == "text":
                    content += block["text"]
                else:
                    given = block["input"]
                    arguments.append(given.get("INVALID_JSON", json.dumps(given) if given else ""))
            reason = answer.json()["stop_reason"]
        else:
            for event in events_of(answer.text):
                delta = event.get("delta", {})
                content += delta.get("text", "")
                arguments += [""] * (event.get("content_block", {}).get("type") == "tool_use")
                if delta.get("type") == "input_json_delta":
                    arguments[-1] += delta["partial_json"]
                reason = delta.get("stop_reason") or ""
                if reason:
                    break
        check(content, arguments, reason, is_whole=n == N_TOKENS, cut_reason="max_tokens", whole_reason="tool_use")


async def test_ollama(client: httpx.AsyncClient, how: How) -> None:
    for n in each_cut():
        body = {"messages": MESSAGES, "tools": TOOLS, "options": {"num_predict": n}}
        answer = await post(client, "/api/chat", body, how)
        lines = [json.loads(line) for line in answer.text.splitlines()]
        content = "".join(line["message"]["content"] for line in lines)
        calls = [call["function"] for line in lines for call in line["message"].get("tool_calls", [])]
        arguments = [json.dumps(call["arguments"]) for call in calls]
        check(content, arguments, lines[-1]["done_reason"], is_whole=n == N_TOKENS, cut_reason="length", whole_reason="stop")


@pytest.mark.parametrize("reason", ["length", "cancelled"])
async def test_python(reason: str) -> None:
    form = ChatForm(GENERIC, None, ToolUse((Tool("look", SCHEMA),)))
    for cut in range(len(TEXT)):
        stream = PlainStream(
            [
                [token(0, TEXT[:cut], 1)],
                [finished(0, reason=reason)],
            ]
        )
        message = (await weft.ChatStream(stream, 1, form, lambda _: "").collect()).message  # type: ignore[arg-type]
        assert f"{SAID}\n".startswith(message.content)
        assert [call.name for call in message.tool_calls] == ["look"] * len(message.tool_calls)
        for call, whole in zip(message.tool_calls, (FIRST, SECOND), strict=False):
            assert whole.startswith(call.arguments)
