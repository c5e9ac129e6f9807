"""`litellm`, through each of the dialects that it may be told to speak with a server."""

import json
from collections.abc import Callable
from typing import Any

import litellm
from report import TOOL, feature, picture, run, url

litellm.num_retries = 0
litellm.suppress_debug_info = True

ROUTES = {
    "openai": {"model": "openai/weft", "api_base": f"{url()}/v1", "api_key": "none"},
    "anthropic": {"model": "anthropic/weft", "api_base": url(), "api_key": "none", "max_tokens": 3000},
    "ollama": {"model": "ollama_chat/weft", "api_base": url()},
}
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"], "additionalProperties": False}


def chat_of(text: Any, **more: Any) -> dict[str, Any]:  # noqa: ANN401 (a text or parts)
    """A chat of one message."""
    return {"messages": [{"role": "user", "content": text}], "timeout": 60, **more}


def checks(route: dict[str, Any]) -> dict[str, Callable[[], None]]:
    """What is tried through one of the dialects."""

    def chat() -> None:
        answer = litellm.completion(**route, **chat_of("Hello!"))
        assert answer.choices[0].message.content == "You said: Hello!"
        assert answer.usage.total_tokens > 0

    def stream() -> None:
        chunks = litellm.completion(**route, **chat_of("Hello!", stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "You said: Hello!"

    def tools() -> None:
        question = chat_of("What is the weather in Paris for 3 days?", tools=[{"type": "function", "function": TOOL}])
        answer = litellm.completion(**route, **question)
        assert answer.choices[0].finish_reason == "tool_calls"
        [call] = answer.choices[0].message.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Paris", "days": 3}
        chunks = list(litellm.completion(**route, **question, stream=True))
        [call] = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Paris", "days": 3}

    def schema() -> None:
        form = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA, "strict": True}}
        answer = litellm.completion(**route, **chat_of("It is 3 years old", response_format=form))
        assert json.loads(answer.choices[0].message.content) == {"age": 3}

    def vision() -> None:
        parts = [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture()}"}},
        ]
        assert "<__media__>" in litellm.completion(**route, **chat_of(parts)).choices[0].message.content

    return {"chat": chat, "stream": stream, "tools": tools, "JSON schema": schema, "vision": vision}


for dialect, route in ROUTES.items():
    for name, check in checks(route).items():
        feature(f"{name} ({dialect})")(check)


@feature("embeddings (openai)")
def embeddings() -> None:
    answer = litellm.embedding(
        "openai/weft", ["a fox", "a whale"], api_base=f"{url()}/v1", api_key="none", encoding_format="float"
    )
    assert len(answer.data) == 2


run()
