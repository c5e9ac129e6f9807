"""`response_fields` that lead into a schema: each schema is read once, and beside the event loop."""

import json
import random
import threading
from collections import Counter
from typing import Any

import httpx
import msgspec
import pytest

from tests.helpers import How
from tests.server.conftest import PROMPT
from tests.server.matchers import Json
from tests.server.test_requests import ENDLESS, Running
from weft.server.inference import schema_parts
from weft.server.inference.schema_parts import SCHEMA, SchemaParts

NULL: Json = {"type": "null"}


def schema_of(**properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": [*properties]}


SCHEMAS = [schema_of(a=NULL), schema_of(a={"type": "boolean"}, b=NULL)]
PATHS = ["type", "properties/a", "properties/b/type", "properties/a/type/x", "no/such", "required/0", ""]


async def ends(client: httpx.AsyncClient, how: How, **body: Json) -> list[Json]:
    """What is told of each branch at its end, in the order of their numbers."""
    body |= {"prompt": PROMPT, "stream": how == "stream", "response_fields": ["index", *(SCHEMA + path for path in PATHS)]}
    answer = await client.post("/completion", json=body)
    assert answer.status_code == 200, answer.text
    if how == "whole":
        told = answer.json()
        return told if isinstance(told, list) else [told]
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]
    return sorted((event for event in events if "content" not in event), key=lambda event: event["index"])


def told_of(schema: Json) -> Json:
    """What is told of a schema at `PATHS`."""
    properties = schema["properties"]
    told = {"type": "object", "properties/a": properties["a"]}
    if "b" in properties:
        told["properties/b/type"] = properties["b"]["type"]
    return {SCHEMA + path: part for path, part in told.items()}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, str]]:
    """What was read of schemas, and on which threads."""
    reads: list[tuple[bytes, str]] = []
    read = schema_parts._object

    def noted(value: msgspec.Raw) -> dict[str, msgspec.Raw]:
        reads.append((bytes(value), threading.current_thread().name))
        return read(value)

    monkeypatch.setattr(schema_parts, "_object", noted)
    return reads


@pytest.mark.parametrize("n", [1, 4])
async def test_a_schema_is_read_once_for_all_paths_and_branches_and_beside_the_event_loop(
    client: httpx.AsyncClient, how: How, reads: list[tuple[bytes, str]], n: int
) -> None:
    told = await ends(client, how, json_schema=SCHEMAS[1], n=n)
    assert told == [{"index": index} | told_of(SCHEMAS[1]) for index in range(n)]
    read = Counter(json.loads(value)["type"] if value.startswith(b'{"type"') else value[:1] for value, _ in reads)
    # The schema, its properties, both of these; what is no object is looked at and left.
    assert read == {"object": 1, b"{": 1, "boolean": 1, "null": 1, b"[": 1, b'"': 1}
    assert all(thread.startswith("weft-prompt") for _, thread in reads)


async def test_branches_that_differ_tell_their_own_schemas(
    client: httpx.AsyncClient, how: How, reads: list[tuple[bytes, str]]
) -> None:
    branches = [{"json_schema": SCHEMAS[index]} for index in (0, 1, 0)]
    told = await ends(client, how, branches=branches)
    assert told == [{"index": index} | told_of(SCHEMAS[of]) for index, of in enumerate((0, 1, 0))]
    assert sum(b'"required"' in value for value, _ in reads) == 2
    assert all(thread.startswith("weft-prompt") for _, thread in reads)


async def test_a_branch_without_a_schema_tells_nothing_of_one(client: httpx.AsyncClient, how: How) -> None:
    told = await ends(client, how, n_predict=1, n=2)
    assert told == [{"index": 0}, {"index": 1}]


async def test_a_fork_tells_the_schema_that_it_was_forked_with(live: Any) -> None:  # noqa: ANN401 (a live server)
    fields = ["index", "content", "stop", SCHEMA + "properties/b"]
    async with (
        httpx.AsyncClient(base_url=live.url, timeout=60) as client,
        client.stream("POST", "/completion", json=ENDLESS | {"response_fields": fields}) as answer,
    ):
        stream = Running(answer)
        await stream.read(4)
        made = await client.post(f"/requests/{stream.id}/branches/0/fork", json={"json_schema": SCHEMAS[1], "ignore_eos": False})
        assert made.json() == {"indices": [1]}, made.text
        while 1 not in stream.ends:
            await stream.read(1)
    assert stream.ends[1][SCHEMA + "properties/b"] == NULL


def some_json(numbers: random.Random, depth: int) -> Json:
    kinds = ["number", "text", "list", "object", "object"] if depth else ["number", "text"]
    match numbers.choice(kinds):
        case "number":
            return numbers.choice([0, -1.5, 1e300, None, True])
        case "text":
            return numbers.choice(["", "a", "/", '"', "\u00e4", "\\"])
        case "list":
            return [some_json(numbers, depth - 1) for _ in range(numbers.randrange(3))]
        case _:
            return {numbers.choice("abc\u00e4"): some_json(numbers, depth - 1) for _ in range(numbers.randrange(5))}


def at(value: Json, steps: list[str]) -> list[Json]:
    """The part of a value at a path, if there is one."""
    for step in steps:
        if not isinstance(value, dict) or step not in value:
            return []
        value = value[step]
    return [value]


@pytest.mark.parametrize("seed", range(50))
def test_the_parts_are_those_of_the_schema_that_is_read_as_a_whole(seed: int) -> None:
    numbers = random.Random(seed)
    schema = some_json(numbers, 6)
    paths = ["/".join(numbers.choices("abc\u00e4", k=numbers.randrange(1, 6))) for _ in range(100)]
    told = SchemaParts([*(SCHEMA + path for path in paths), "content"]).of(json.dumps(schema, indent=numbers.choice([None, 1])))
    parts = {SCHEMA + path: part for path in paths for part in at(schema, path.split("/"))}
    assert {path: json.loads(bytes(part)) for path, part in told.items()} == parts
