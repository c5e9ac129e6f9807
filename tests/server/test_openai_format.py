"""What answers must look like: `response_format`, a schema or a grammar, in completions and in chats."""

import json

import httpx
import pytest

from tests.helpers import How
from tests.server.live import events_of
from tests.server.matchers import SOME_TEXT, Json

MOOD: Json = {
    "type": "object",
    "properties": {"mood": {"enum": ["calm", "wild"]}},
    "required": ["mood"],
    "additionalProperties": False,
}


@pytest.fixture(params=["/v1/completions", "/v1/chat/completions"], ids=["completions", "chat"])
def route(request: pytest.FixtureRequest) -> str:
    return str(request.param)


ASKED: Json = {"prompt": "The dog is", "messages": [{"role": "user", "content": "How is the dog?"}], "max_tokens": 200}
"""What either route reads."""


async def texts(client: httpx.AsyncClient, route: str, how: How, **body: Json) -> list[str]:
    given = await client.post(route, json={**ASKED, "stream": how == "stream", **body})
    assert given.status_code == 200, given.text
    if how == "whole":
        return [choice["text"] if "text" in choice else choice["message"]["content"] for choice in given.json()["choices"]]
    joined: dict[int, str] = {}
    for event in events_of(given.text)[:-1]:
        [choice] = json.loads(event)["choices"]
        said = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        joined[choice["index"]] = joined.get(choice["index"], "") + said
    return [joined[index] for index in sorted(joined)]


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "mood", "strict": True, "schema": MOOD}}},
        {"response_format": {"type": "json_object", "schema": MOOD}},
        {"json_schema": MOOD},
    ],
    ids=["json_schema", "json_object", "field"],
)
async def test_every_branch_follows_the_schema(client: httpx.AsyncClient, route: str, how: How, fields: Json) -> None:
    moods = [json.loads(text) for text in await texts(client, route, how, n=3, **fields)]
    assert len(moods) == 3
    assert all(mood in ({"mood": "calm"}, {"mood": "wild"}) for mood in moods)


async def test_any_object_is_an_object(client: httpx.AsyncClient, route: str, how: How) -> None:
    # No second value and no list keep the object short.
    short: Json = {"logit_bias": [[",", False], ["[", False]], "seed": 3}
    [text] = await texts(client, route, how, response_format={"type": "json_object"}, **short)
    assert text.startswith("{")


async def test_a_grammar_is_followed(client: httpx.AsyncClient, route: str, how: How) -> None:
    assert set(await texts(client, route, how, n=4, grammar='root ::= "yes" | "no"')) <= {"yes", "no"}


@pytest.mark.parametrize("response_format", [{"type": "text"}, {}, None], ids=str)
async def test_free_text_is_what_it_would_be(client: httpx.AsyncClient, route: str, how: How, response_format: Json) -> None:
    body = {"max_tokens": 8, "temperature": 0}
    assert await texts(client, route, how, **body, response_format=response_format) == await texts(client, route, how, **body)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "grammar": 'root ::= "a"'}, "response_format"),
        ({"json_schema": {"type": "nothing"}}, "json_schema"),
        ({"grammar": 'root = "a"'}, "grammar"),
        ({"grammar": "root ::= missing"}, "grammar"),
    ],
    ids=str,
)
async def test_a_broken_format_is_refused_by_its_field(client: httpx.AsyncClient, route: str, fields: Json, param: str) -> None:
    given = await client.post(route, json={**ASKED, **fields})
    assert given.status_code == 400
    assert given.json()["error"] == {"code": 400, "message": SOME_TEXT, "type": "invalid_request_error", "param": param}
