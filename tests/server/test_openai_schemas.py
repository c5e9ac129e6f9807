"""Answers are what OpenAI's own document of its API says, but for what docs/reference/openai-schemas.md has a reason for."""

import base64
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import httpx
import jsonschema_rs
import pytest
from litestar.testing import AsyncTestClient

from tests.compare.differences import matches
from tests.scripted import Answer, AnsweringEngine, Script
from tests.server.conftest import answers
from tests.server.live import events_of
from tests.server.matchers import Json
from weft.server import create_app

DOCUMENT = json.loads((Path(__file__).parent / "openai_schemas.json").read_text(encoding="utf-8"))

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "openai-schemas.md"

EVENTS = "ResponseStreamEvent"


class Flaw(NamedTuple):
    """One place where an answer is not what its schema says."""

    answer: str
    place: str
    """As `choices[].text`; places in lists have no numbers."""
    told: str


class Reason(NamedTuple):
    """A row of the page."""

    answers: tuple[str, ...]
    places: tuple[str, ...]

    def explains(self, flaw: Flaw) -> bool:
        return any(matches(flaw.answer, one) for one in self.answers) and any(matches(flaw.place, one) for one in self.places)


def reasons() -> list[Reason]:
    [table] = re.findall(
        r"^\| answers \| field \| reason \|\n\|[- |]+\|\n((?:\|.*\n)+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    rows = [row.strip("|").split(" | ") for row in table.splitlines()]
    return [Reason(*(tuple(re.findall(r"`([^`]+)`", cell)) for cell in row[:2])) for row in rows]


@cache
def validator(name: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]})


@cache
def event_schemas() -> dict[str, str]:
    """The schemas of events by their types, so that what is wrong with one is told of it alone."""
    schemas = DOCUMENT["components"]["schemas"]
    names = [way["$ref"].rpartition("/")[2] for way in schemas[EVENTS]["anyOf"]]
    return {kind: name for name in names for kind in schemas[name]["properties"]["type"]["enum"]}


def flaws(answer: str, value: Json) -> Iterator[Flaw]:
    """Where an answer, or an event of one, is not what the document says of it."""
    name = DOCUMENT["answers"][answer]
    if name == EVENTS:
        name = event_schemas()[value["type"]]
    for error in validator(name).iter_errors(value):
        place = "".join("[]" if isinstance(step, int) else f".{step}" for step in error.instance_path).removeprefix(".")
        lacking = re.fullmatch(r'"(\w+)" is a required property', error.message)
        yield Flaw(answer, f"{place}.{lacking[1]}".removeprefix(".") if lacking else place, error.message[:300])


def test_what_is_no_answer_is_seen() -> None:
    chunk = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": None}
    assert list(flaws("post /chat/completions stream", {**chunk, "choices": [choice]})) == []
    broken = {**chunk, "created": "now", "choices": [choice | {"finish_reason": "tired"}, {"index": 1, "delta": {}}]}
    assert {flaw.place for flaw in flaws("post /chat/completions stream", broken)} == {
        "created",
        "choices[].finish_reason",
    }
    delta = {"type": "response.output_text.delta", "item_id": "a", "output_index": 0, "content_index": 0, "delta": "a"}
    assert {flaw.place for flaw in flaws("post /responses stream", delta)} == {"sequence_number", "logprobs"}


def test_every_row_of_the_page_says_why() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("| answers | field | reason |\n")[2]
    rows = [row.strip("|").split(" | ") for row in table.splitlines()[1:] if row.startswith("|")]
    assert rows
    assert all(len(row) == 3 and row[2].strip() for row in rows)


HELLO: Json = [{"role": "user", "content": "Who is it?"}]
CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Json = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": CITY}}]
FLAT_TOOLS: Json = [{"type": "function", "name": "look", "description": "Looks.", "parameters": CITY}]
MOOD: Json = {"type": "object", "properties": {"mood": {"enum": ["calm", "wild"]}}, "required": ["mood"]}

CHATS: Json = {
    "a chat": {},
    "cut off": {"max_tokens": 2},
    "a stop word": {"stop": ["e"]},
    "choices": {"n": 2},
    "log-probabilities": {"logprobs": True, "top_logprobs": 2, "n": 2},
    "log-probabilities alone": {"logprobs": True},
    "a schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "mood", "schema": MOOD}}, "max_tokens": 60},
    "what llama-server tells besides": {"verbose": True, "timings_per_token": True, "return_progress": True},
    "usage": {"stream_options": {"include_usage": True}},
    "why it was computed": {"explain_cache": True},
}

COMPLETIONS: Json = {
    "a completion": {},
    "a stop word": {"stop": ["e"]},
    "choices": {"n": 2},
    "several prompts": {"prompt": ["The dog", "The cat"]},
    "log-probabilities": {"logprobs": 2, "n": 2},
    "the prompt": {"echo": True, "logprobs": 2},
    "usage": {"stream_options": {"include_usage": True}},
    "what llama-server tells besides": {"verbose": True, "timings_per_token": True, "return_progress": True},
}

RESPONSES: Json = {
    "a response": {},
    "cut off": {"max_output_tokens": 3},
    "messages": {"input": HELLO, "instructions": "Be short."},
    "log-probabilities": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "a schema": {"text": {"format": {"type": "json_schema", "name": "mood", "schema": MOOD}}, "max_output_tokens": 60},
    "what is told again": {"metadata": {"a": "b"}, "user": "me", "prompt_cache_key": "k", "safety_identifier": "s"},
    "nothing kept": {"store": False, "truncation": "auto", "temperature": 0.5, "top_p": 0.9},
}

ERRORS: Json = {
    "/v1/chat/completions": [
        {"messages": HELLO, "temperature": "hot"},
        {},
        {"messages": [{"role": "user", "content": "a " * 9000}]},
    ],
    "/v1/completions": [{"prompt": "a", "n": -1}],
    "/v1/responses": [{"input": "a", "previous_response_id": "resp_none"}],
    "/v1/nothing": [{}],
}


class Asking:
    """Asks, and gathers what is wrong with the answers."""

    def __init__(self, client: httpx.AsyncClient, found: list[Flaw]) -> None:
        self._client = client
        self._found = found
        self.asked: set[str] = set()
        """The answers that were held to a schema."""

    def _hold(self, answer: str, value: Json) -> None:
        self.asked.add(answer)
        self._found += flaws(answer, value)

    async def whole(self, method: str, path: str, body: Json = None, *, of: str | None = None) -> Json:
        """An answer to a path below `/v1`, held to the schema `of` this route."""
        given = await self._client.request(method, f"/v1{path}", json=body)
        assert given.status_code == 200, given.text
        self._hold(f"{method} {of or path} whole", given.json())
        return given.json()

    async def streamed(self, path: str, body: Json) -> Json:
        """The same of each event of a stream."""
        given = await self._client.post(f"/v1{path}", json={**body, "stream": True})
        assert given.status_code == 200, given.text
        # A stream of completions has the shape of a whole one.
        answer = f"post {path} stream"
        answer = answer if answer in DOCUMENT["answers"] else f"post {path} whole"
        told = [json.loads(event) for event in events_of(given.text) if event != "[DONE]"]
        assert told
        for event in told:
            self._hold(answer, event)
        return told

    async def both(self, path: str, body: Json) -> Json:
        """An answer whole, after the same streamed."""
        await self.streamed(path, body)
        return await self.whole("post", path, body)

    async def refused(self, path: str, body: Json) -> None:
        """An answer that is an error."""
        given = await self._client.post(path, json=body)
        assert given.status_code >= 400, given.text
        self._hold("error", given.json())


TEMPLATE = """{% if tools %}<tool_call>{% endif %}{# <think> </think> #}
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{% for call in message.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"""

CALLS = (
    "<think>\nRain, maybe.\n</think>\n\nI look.\n"
    '<tool_call>\n{"name": "look", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look", "arguments": {"city": "Rome"}}\n</tool_call>'
)


@asynccontextmanager
async def calling() -> AsyncIterator[httpx.AsyncClient]:
    """A client of a model that thinks, and calls."""
    engine = AnsweringEngine(Script([Answer("It rains.", when="wet"), Answer(CALLS)], TEMPLATE))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        await answers(client, 200)
        yield client


async def ask_for_chats(asking: Asking) -> None:
    for body in CHATS.values():
        await asking.both("/chat/completions", {"messages": HELLO, "max_tokens": 8, **body})


async def ask_for_completions(asking: Asking) -> None:
    for body in COMPLETIONS.values():
        await asking.both("/completions", {"prompt": "The dog is", "max_tokens": 8, **body})
    await asking.whole("post", "/completions", {"prompt": "The dog is", "max_tokens": 4, "best_of": 3})


async def ask_for_models_and_vectors(asking: Asking) -> None:
    await asking.whole("get", "/models")
    await asking.whole("get", "/models/storyteller", of="/models/{model}")
    for encoding in ("float", "base64"):
        told = await asking.whole("post", "/embeddings", {"input": ["a", "b"], "encoding_format": encoding})
        assert len(told["data"]) == 2
    assert base64.b64decode(told["data"][0]["embedding"])


async def ask_for_responses(asking: Asking) -> None:
    told = {}
    for about, body in RESPONSES.items():
        told[about] = await asking.both("/responses", {"input": "Who is it?", "max_output_tokens": 8, **body})
    kept = told["a response"]["id"]
    await asking.whole("get", f"/responses/{kept}", of="/responses/{response_id}")
    await asking.whole("get", f"/responses/{kept}/input_items", of="/responses/{response_id}/input_items")
    await asking.both("/responses", {"input": "And now?", "previous_response_id": kept, "max_output_tokens": 4})
    background = await asking.whole("post", "/responses", {"input": "a", "background": True, "max_output_tokens": 200})
    await asking.whole("post", f"/responses/{background['id']}/cancel", of="/responses/{response_id}/cancel")
    await asking.whole("post", "/responses/input_tokens", {"input": "Who is it?"})
    await asking.whole("post", "/responses/compact", {"input": HELLO, "max_output_tokens": 8})


async def ask_for_conversations(asking: Asking) -> None:
    conversation = await asking.whole("post", "/conversations", {"items": HELLO, "metadata": {"a": "b"}})
    place, of = f"/conversations/{conversation['id']}", "/conversations/{conversation_id}"
    await asking.both("/responses", {"input": "And now?", "conversation": conversation["id"], "max_output_tokens": 4})
    await asking.whole("get", place, of=of)
    await asking.whole("post", place, {"metadata": {"a": "c"}}, of=of)
    await asking.whole("post", f"{place}/items", {"items": HELLO}, of=f"{of}/items")
    items = await asking.whole("get", f"{place}/items", of=f"{of}/items")
    item = items["data"][0]["id"]
    await asking.whole("get", f"{place}/items/{item}", of=f"{of}/items/{{item_id}}")
    await asking.whole("delete", f"{place}/items/{item}", of=f"{of}/items/{{item_id}}")
    await asking.whole("delete", place, of=of)


async def ask_for_errors(asking: Asking) -> None:
    for path, bodies in ERRORS.items():
        for body in bodies:
            await asking.refused(path, body)


async def ask_for_calls(asking: Asking) -> None:
    for body in (
        {"tools": TOOLS},
        {"tools": TOOLS, "n": 2},
        {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": TOOLS, "max_tokens": 30},
        {"functions": [TOOLS[0]["function"]]},
        {},
    ):
        told = await asking.both("/chat/completions", {"messages": HELLO, **body})
        assert told["choices"][0]["message"]["reasoning_content"]
    for body in ({}, {"include": ["reasoning.encrypted_content"], "store": False}, {"max_output_tokens": 30}):
        told = await asking.both("/responses", {"input": HELLO, "tools": FLAT_TOOLS, **body})
        assert {"reasoning", "function_call"} <= {item["type"] for item in told["output"]}
    first = await asking.whole("post", "/responses", {"input": HELLO, "tools": FLAT_TOOLS})
    called = [item["call_id"] for item in first["output"] if item["type"] == "function_call"]
    results = [{"type": "function_call_output", "call_id": call, "output": "wet"} for call in called]
    second = await asking.both("/responses", {"input": results, "tools": FLAT_TOOLS, "previous_response_id": first["id"]})
    await asking.whole("get", f"/responses/{second['id']}/input_items", of="/responses/{response_id}/input_items")


async def check(client: httpx.AsyncClient, ask: Callable[[Asking], Awaitable[None]]) -> None:
    found: list[Flaw] = []
    asking = Asking(client, found)
    await ask(asking)
    given = reasons()
    assert [flaw for flaw in dict.fromkeys(found) if not any(reason.explains(flaw) for reason in given)] == []
    # What differs in one way is asked for in one test.
    mine = [reason for reason in given if any(matches(answer, one) for answer in asking.asked for one in reason.answers)]
    assert [reason for reason in mine if not any(reason.explains(flaw) for flaw in found)] == [], "nothing differs by it any more"


@pytest.mark.parametrize(
    "ask",
    [ask_for_chats, ask_for_completions, ask_for_models_and_vectors, ask_for_responses, ask_for_conversations, ask_for_errors],
)
async def test_answers_are_what_openai_says_they_are(client: httpx.AsyncClient, ask: Callable[[Asking], Awaitable[None]]) -> None:
    await check(client, ask)


async def test_calls_and_thoughts_are_told_as_openai_says() -> None:
    async with calling() as client:
        await check(client, ask_for_calls)


@pytest.mark.parametrize("name", sorted(set(DOCUMENT["answers"].values())))
def test_the_document_names_nothing_that_is_not_kept(name: str) -> None:
    assert name in DOCUMENT["components"]["schemas"]
    # It is a schema.
    validator(name)
    assert not list(_lost(DOCUMENT["components"]["schemas"][name]))


def _lost(schema: Json) -> Iterator[str]:
    """References that lead nowhere."""
    if isinstance(schema, list):
        for one in schema:
            yield from _lost(one)
    elif isinstance(schema, dict):
        for name, one in schema.items():
            if name == "$ref" and isinstance(one, str) and one.rpartition("/")[2] not in DOCUMENT["components"]["schemas"]:
                yield one
            yield from _lost(one)
