"""What clients have sent, sent again: every request is answered, in the shape that its client reads."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.live import LiveServer, events_of
from tests.server.matchers import Json

TRAFFIC = {path.stem: path for path in sorted((Path(__file__).parent / "traffic").glob("*.json"))}


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveServer]:
    log = tmp_path_factory.mktemp("traffic") / "log"
    with LiveServer(log, "-np", "4", program=("-m", "tests.clients.actor")) as server:
        await server.ready()
        yield server
        assert "ERROR" not in server.log


def is_chat(answer: Json) -> bool:
    [choice, *_] = answer["choices"]
    is_message = choice["message"]["role"] == "assistant" and bool(
        choice["message"]["content"] or choice["message"]["tool_calls"]
    )
    return answer["object"] == "chat.completion" and is_message and choice["finish_reason"] is not None


def is_chat_stream(text: str) -> bool:
    *frames, done = events_of(text)
    chunks = [json.loads(frame) for frame in frames]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    says = any(delta.get("content") or delta.get("tool_calls") for delta in deltas)
    return done == "[DONE]" and says and bool(reasons)


def named_events(text: str) -> list[Any]:
    """The events of a stream whose events have names, which the data repeats."""
    events = []
    for frame in text.strip().split("\n\n"):
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name.removeprefix("event: ") == event["type"]
        events.append(event)
    return events


def is_message_stream(text: str) -> bool:
    events = [event for event in named_events(text) if event["type"] != "ping"]
    begins = events[0]["type"] == "message_start" and events[0]["message"]["role"] == "assistant"
    ends = [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    return begins and ends and "content_block_start" in {event["type"] for event in events}


def is_response_stream(text: str) -> bool:
    events = named_events(text)
    numbers = [event["sequence_number"] for event in events]
    is_whole = events[0]["type"] == "response.created" and events[-1]["type"] == "response.completed"
    return is_whole and numbers == sorted(set(numbers)) and bool(events[-1]["response"]["output"])


def is_completion_stream(text: str) -> bool:
    *tokens, end = [json.loads(event) for event in events_of(text)]
    return bool(tokens) and end["stop"] is True and "timings" in end


def is_ollama_stream(text: str) -> bool:
    chunks = [json.loads(line) for line in text.splitlines()]
    is_whole = [chunk["done"] for chunk in chunks] == [*[False] * (len(chunks) - 1), True]
    return is_whole and any(chunk["message"]["content"] for chunk in chunks) and chunks[-1]["eval_count"] > 0


def is_models(answer: Json) -> bool:
    return answer["object"] == "list" and [model["object"] for model in answer["data"]] == ["model"]


def is_vectors(answer: Json) -> bool:
    return [len(each["embedding"]) > 8 for each in answer["data"]] == [True, True]


WHOLE: dict[str, Callable[[Json], bool]] = {
    "/v1/models": is_models,
    "/models": is_models,
    "/props": lambda answer: isinstance(answer["chat_template"], str) and answer["default_generation_settings"]["n_ctx"] > 0,
    "/slots": lambda answer: [slot["id"] for slot in answer] == [0, 1, 2, 3],
    "/tokenize": lambda answer: bool(answer["tokens"]),
    "/v1/chat/completions": is_chat,
    "/chat/completions": is_chat,
    "/v1/embeddings": is_vectors,
    "/v1/messages": lambda answer: (answer["type"], answer["role"]) == ("message", "assistant") and bool(answer["stop_reason"]),
    "/v1/messages/count_tokens": lambda answer: answer["input_tokens"] > 0,
    "/api/version": lambda answer: bool(answer["version"]),
    "/api/tags": lambda answer: [model["details"]["format"] for model in answer["models"]] == ["gguf"],
    "/api/ps": lambda answer: len(answer["models"]) == 1,
    "/api/embed": lambda answer: [len(vector) > 8 for vector in answer["embeddings"]] == [True, True],
}
"""Whether an answer has the shape that is read."""

STREAMED: dict[str, Callable[[str], bool]] = {
    "/completion": is_completion_stream,
    "/v1/chat/completions": is_chat_stream,
    "/chat/completions": is_chat_stream,
    "/v1/messages": is_message_stream,
    "/v1/responses": is_response_stream,
    "/api/chat": is_ollama_stream,
}
"""The same of streams."""


@pytest.mark.parametrize("client", TRAFFIC)
async def test_what_clients_have_sent_is_answered_as_they_read_it(server: LiveServer, client: str) -> None:
    recorded = json.loads(TRAFFIC[client].read_text(encoding="utf-8"))
    assert recorded["requests"]
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as sender:
        for request in recorded["requests"]:
            body = request["body"]
            answer = await sender.request(request["method"], request["path"], headers=request["headers"], json=body)
            assert answer.status_code == 200, answer.text
            path = request["path"].partition("?")[0]
            if body is not None and body.get("stream"):
                assert STREAMED[path](answer.text), answer.text
            else:
                assert WHOLE[path](answer.json()), answer.text
