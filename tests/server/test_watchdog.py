"""Whatever is asked of any route is no error, and nobody else has to wait: neither who asks `/health` nor who reads a stream."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import pytest
from litestar.routes import HTTPRoute

from tests.helpers import wait_until
from tests.server.live import LiveServer
from tests.server.scripted import ScriptedEngine
from weft.server import create_app

MOST_HEALTH_MS = 50.0
"""The longest that an answer of `/health` may take, beside what it takes on a server that is asked nothing else."""

MOST_PAUSE_MS = 200.0
"""The longest pause of a stream, likewise: what `--max-token-gap` is without a flag."""

N_TRIES = 12
"""A machine that does something else makes one try slow, and not all of them."""

ANSWER_S = 0.7
"""How long an answer is waited for; then the client leaves."""

N_ALONE = 200
"""How often `/health` is asked on a server that is asked nothing else: about a second."""

MAX_BODY = 4 * 1024 * 1024
"""Bytes that any server takes."""

Body = Callable[[], bytes] | None
"""Makes a body when it is needed: together they would be some gigabytes."""


def filled(begin: str, element: str, end: str, n_bytes: int = MAX_BODY) -> Body:
    """A body of nearly so many bytes, most of them one element again and again."""
    n = (n_bytes - len(begin) - len(end)) // (len(element) + 1)

    def made() -> bytes:
        return f"{begin}{f'{element},' * (n - 1)}{element}{end}".encode()

    return made


def encoded(**fields: object) -> Body:
    """A body of some fields."""
    return lambda: json.dumps(fields).encode()


CHAT = '{"messages": [{"role": "user", "content": '
TEXTS: dict[str, Body] = {
    "a long text": filled('{"prompt": "', "word", '"}'),
    "a long content": filled('{"content": "', "word", '"}'),
    "control tokens": filled('{"prompt": "', "<s>", '"}', 1_000_000),
    "control tokens as content": filled('{"content": "', "<s>", '"}', 1_000_000),
}
MUCH = {"prompt": "Once upon a time,", "n_predict": 1000, "ignore_eos": True, "n_probs": 1000, "logprobs": 1000}
COMPLETIONS: dict[str, Body] = TEXTS | {
    "many tokens": filled('{"prompt": [', "12", "]}"),
    "many media": filled('{"prompt": {"prompt_string": "", "multimodal_data": [', '""', "]}}", 150_000),
    "many markers": filled('{"prompt": {"multimodal_data": [], "prompt_string": "', "<__media__>", '"}}'),
    "many markers of 2024": filled('{"image_data": [{"id": 1, "data": ""}], "prompt": "', "[img-1]", '"}'),
    "many prompts": filled('{"prompt": [', '"a"', "]}"),
    "many biases": filled('{"prompt": "a", "logit_bias": [', "[12, 1.5]", "]}"),
    "many stop strings": filled('{"prompt": "a", "stop": [', '"stop"', "]}"),
    "many fields of the answer": filled(
        '{"prompt": "a", "n_predict": 1, "n": 64, "response_fields": [', '"a/b"', "]}", 1_000_000
    ),
    "a large grammar": filled('{"prompt": "a", "grammar": "root ::= [a-z]+ # ', "comment", '"}', 1_000_000),
    "a large schema": filled('{"prompt": "a", "json_schema": {"enum": [', '"word"', "]}}", 250_000),
    "many parts of a large schema": encoded(
        prompt="a",
        n_predict=1,
        n=64,
        stream=True,
        verbose=True,
        json_schema={"type": "null", "default": {f"part-{nth}": ["word"] * 100 for nth in range(256)}},
        response_fields=[f"generation_settings/json_schema/default/part-{nth}" for nth in range(256)],
    ),
    "branches that differ": encoded(
        prompt="Once",
        branches=[{"suffix_prompt": f" upon {nth}", "n_predict": 2, "grammar": "root ::= [a-z ]+"} for nth in range(256)],
    ),
    "many branches with probabilities": encoded(n=256, stream=True, **MUCH),
    "the whole of them": encoded(n=16, **MUCH),
    "the prompt's probabilities": encoded(prompt=[300] * 1000, echo=True, logprobs=1000, n_probs=1000, max_tokens=1),
}
MANY_ARGUMENTS = {"type": "object", "properties": {f"argument-{nth}": {"type": "string", "maxLength": 99} for nth in range(40)}}
MANY_TOOLS = [{"type": "function", "function": {"name": f"tool-{nth}", "parameters": MANY_ARGUMENTS}} for nth in range(100)]
CHATS: dict[str, Body] = {
    "many messages": filled('{"messages": [', '{"role": "user", "content": ""}', "]}", 3_000_000),
    "a long message": filled(CHAT + '"', "word", '"}]}'),
    "many parts": filled(CHAT + "[", '{"type": "text", "text": ""}', "]}]}", 3_000_000),
    "many variables": filled(CHAT + '"a"}], "chat_template_kwargs": {"a": [', "12", "]}}", 3_000_000),
    "a large picture": filled(CHAT + '[{"type": "image_url", "image_url": {"url": "data:image/png;base64,', "AAA", '"}}]}]}'),
    "many pictures": filled(CHAT + "[", '{"type": "image_url", "image_url": {"url": "a"}}', "]}]}", 3_000_000),
    "many tools": filled(CHAT + '"a"}], "tools": [', '{"type": "function"}', "]}", 3_000_000),
    "tools with much to say": encoded(messages=[{"role": "user", "content": "a"}], tools=MANY_TOOLS, max_tokens=1),
}

CALL = '{"messages": [{"role": "assistant", "tool_calls": ['
MESSAGES: dict[str, Body] = {
    **{name: CHATS[name] for name in ("many messages", "a long message", "many parts")},
    "many pictures": filled(CHAT + "[", '{"type": "image", "source": {"type": "base64", "data": "AAAA"}}', "]}]}", 1_000_000),
    "many results": filled(CHAT + "[", '{"type": "tool_result", "tool_use_id": "a"}', "]}]}", 1_000_000),
    "many tools": filled(CHAT + '"a"}], "tools": [', '{"name": "a", "input_schema": {}}', "]}", 1_000_000),
    "a long system": filled('{"messages": [{"role": "user", "content": "a"}], "system": "', "word", '"}'),
    "many marks": filled(
        CHAT + '"a"}], "system": [', '{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}', "]}", 1_000_000
    ),
    "many stop sequences": filled(CHAT + '"a"}], "stop_sequences": [', '"stop"', "]}"),
}

ITEM = '{"role": "user", "content": "a"}'
RESPONSES: dict[str, Body] = {
    "a long text": filled('{"input": "', "word", '"}'),
    "many items": filled('{"input": [', ITEM, "]}", 3_000_000),
    "many parts": filled('{"input": [{"role": "user", "content": [', '{"type": "input_text", "text": ""}', "]}]}", 3_000_000),
    "a large picture": filled(
        '{"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,', "AAA", '"}]}]}'
    ),
    "many functions": filled('{"input": "a", "tools": [', '{"type": "function", "name": "a"}', "]}", 3_000_000),
}

VECTORS: dict[str, Body] = {
    "a long text": filled('{"input": "', "word", '"}'),
    "many texts": filled('{"input": [', '"a fox"', "]}"),
    "as many texts as may be": filled('{"input": [', '"a fox"', "]}", 2048 * 8),
    "many tokens": filled('{"input": [', "12", "]}"),
    "many lists of tokens": filled('{"input": [', "[12]", "]}"),
    "many media": filled('{"input": {"prompt_string": "", "multimodal_data": [', '""', "]}}", 150_000),
    "many markers": filled('{"input": {"multimodal_data": [], "prompt_string": "', "<__media__>", '"}}'),
}
PAIRS: dict[str, Body] = {
    "many texts": filled('{"query": "a", "documents": [', '"a fox"', "]}"),
    "a long query": filled('{"documents": ["a"], "query": "', "word", '"}'),
}

LARGEST: dict[str, dict[str, Body]] = {
    "POST /completion": COMPLETIONS,
    "POST /v1/completions": COMPLETIONS | {"a long suffix": filled('{"prompt": "a", "suffix": "', "word", '"}')},
    "POST /lora-adapters": {"many": filled("[", '{"id": 0, "scale": 1}', "]", 1_000_000)},
    "POST /stream": {"a long text": filled('{"prompt": "', "word", '"}')},
    "POST /infill": {
        "a long prefix": filled('{"input_prefix": "', "word", '"}'),
        "tokens": filled('{"input_prefix": [', "12", "]}"),
        "many snippets": filled('{"input_prefix": "a", "input_extra": [', '{"text": ""}', "]}", 1_000_000),
    },
    "POST /chat/completions": CHATS,
    "POST /apply-template": CHATS,
    "POST /tokenize": TEXTS | {"with pieces": filled('{"with_pieces": true, "content": "', "word", '"}', 3_000_000)},
    "POST /detokenize": {"many tokens": filled('{"tokens": [', "12", "]}")},
    "POST /prefixes": TEXTS | {"many tokens": filled('{"prompt": [', "12", "]}")},
    "POST /score": {
        "a long prompt": filled('{"continuations": ["a"], "prompt": "', "word", '"}'),
        "a long continuation": filled('{"prompt": "a", "continuations": ["', "word", '"]}'),
        "many continuations": filled('{"prompt": "a", "continuations": [', '"a fox"', "]}"),
        "as many continuations as may be": filled('{"prompt": "a", "continuations": [', '"a fox"', "]}", 4096 * 8),
        "many tokens": filled('{"prompt": "a", "continuations": [[', "12", "]]}"),
        "many tasks": filled('{"tasks": [', '{"prompt": "a", "continuations": []}', "]}", 1_000_000),
    },
    "POST /requests/{request_id:str}/branches/{index:int}/fork": {
        "a long text": filled('{"append": "', "word", '"}'),
        "many tokens": filled('{"append": [', "12", "]}"),
    },
    "POST /props": {"anything": filled('{"a": [', "12", "]}")},
    "POST /slots/{id_slot:str}": {"a long name": filled('{"filename": "', "word", '"}')},
    "GET /cache": {"all nodes": None},
    "POST /chat/completions/input_tokens": CHATS,
    "POST /responses": RESPONSES,
    "POST /responses/input_tokens": RESPONSES,
    "POST /v1/responses/compact": RESPONSES,
    "POST /v1/responses/{response_id:str}/cancel": {},
    "POST /v1/conversations": {"many items": filled('{"items": [', ITEM, "]}", 3_000_000)},
    "POST /v1/conversations/{conversation_id:str}": {"many texts": filled('{"metadata": {"a": [', "12", "]}}", 3_000_000)},
    "POST /v1/conversations/{conversation_id:str}/items": {"many items": filled('{"items": [', ITEM, "]}", 3_000_000)},
    "POST /v1/streams/lookup": {"many": filled('{"conversation_ids": [', '"a::b"', "]}", 3_000_000)},
    "POST /embedding": VECTORS
    | {
        "many markers of 2024": filled('{"image_data": [{"id": 1, "data": ""}], "content": "', "[img-1]", '"}'),
        "many pictures of 2024": filled('{"content": "[img-1]", "image_data": [', '{"id": 1, "data": ""}', "]}"),
    },
    "POST /v1/embeddings": VECTORS,
    "POST /rerank": PAIRS,
    "POST /v1/messages": MESSAGES,
    "POST /v1/messages/count_tokens": MESSAGES,
    "POST /api/generate": {
        "a long prompt": filled('{"prompt": "', "word", '"}'),
        "a long raw prompt": filled('{"raw": true, "prompt": "', "word", '"}'),
        "a long suffix": filled('{"prompt": "a", "suffix": "', "word", '"}'),
        "a long context": filled('{"prompt": "a", "context": [', "12", "]}"),
        "many pictures": filled('{"prompt": "a", "images": [', '"AAAA"', "]}", 1_000_000),
        "many pictures beside a raw prompt": filled('{"raw": true, "prompt": "a", "images": [', '"AAAA"', "]}", 1_000_000),
        "a large schema": filled('{"prompt": "a", "format": {"enum": [', '"word"', "]}}", 250_000),
    },
    "POST /api/chat": {
        **{name: CHATS[name] for name in ("many messages", "a long message", "many tools")},
        "many calls": filled(CALL, '{"function": {"name": "a", "arguments": {"a": 1}}}', "]}]}", 1_000_000),
        "many results": filled('{"messages": [', '{"role": "tool", "content": "", "tool_name": "a"}', "]}", 1_000_000),
    },
    "POST /api/show": {"a long name": filled('{"model": "', "word", '"}')},
    "POST /api/blobs/{digest:str}": {"a large file": filled("", "word", "")},
    "POST /api/embed": {name: VECTORS[name] for name in ("a long text", "many texts", "as many texts as may be")},
    "POST /api/embeddings": {"a long text": filled('{"prompt": "', "word", '"}')},
}
"""The largest that a route takes, or refuses for what it says and not for its size. Other routes take nothing but their query."""

QUERIES = {"GET /cache": "limit=10000", "POST /slots/{id_slot:str}": "action=save", "GET /health": "include_slots=1"}

GARBAGE: dict[str, Body] = {
    "no JSON": lambda: b"\xff" * 2**20,
    "deep JSON": lambda: b"[" * 2**20,
    "half of it": filled('{"prompt": [', "12", ""),
}


class Case(NamedTuple):
    """One thing to ask."""

    name: str
    head: str
    body: Body


def routes() -> list[str]:
    """Every handler of the application by its first path, as `POST /completion`."""
    found: dict[tuple[str, object], str] = {}
    for route in sorted(create_app(ScriptedEngine().as_engine()).routes, key=lambda route: route.path):
        if isinstance(route, HTTPRoute):
            for method in sorted(route.methods - {"OPTIONS"}):
                handler, _ = route.route_handler_map[method]
                found.setdefault((method, handler.fn), f"{method} {route.path}")
    return list(found.values())


ROUTES = routes()


def cases(route: str) -> list[Case]:
    """What is asked of a route: its query and its path as long as they may be, and every body."""
    method, path = route.split()
    query = QUERIES.get(route, "a=" + "x" * 20_000)
    filling = {"{id_slot:str}": "0", "{prefix_id:int}": "9" * 18, "{name:path}": "x" * 20_000, "{path:str}": "x" * 20_000}
    filling["{digest:str}"] = "x" * 20_000
    filling |= dict.fromkeys(("{response_id:str}", "{conversation_id:str}", "{item_id:str}"), "x" * 5_000)
    for name, text in filling.items():
        path = path.replace(f"/{name}", f"/{text}")
    bodies = LARGEST.get(route, {}) | (GARBAGE if method == "POST" else {"a long query": None})
    return [Case(name, f"{method} {path}?{query} HTTP/1.1\r\n", body) for name, body in bodies.items()]


class Probe:
    """A process that asks for little all the time."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.probe", str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def worst(self) -> dict[str, float]:
        """What the worst has been since this was last asked, in milliseconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline()))

    def after(self, n: int) -> dict[str, float]:
        """The same, once so many more answers have come."""
        worst = self.worst()
        while worst["n"] < n:
            worst = {
                name: worst[name] + value if name == "n" else max(worst[name], value) for name, value in self.worst().items()
            }
        return worst

    def close(self) -> None:
        self._process.communicate("")
        assert self._process.returncode == 0


class Watched(NamedTuple):
    """A server, whoever asks it for little, and how long that takes where nobody else asks."""

    server: LiveServer
    probe: Probe
    alone: dict[str, float]

    def slow(self, worst: dict[str, float]) -> dict[str, float]:
        """What of it took too long."""
        limits = {"health": MOST_HEALTH_MS, "stream": MOST_PAUSE_MS}
        return {what: worst[what] for what, limit in limits.items() if worst[what] > limit + self.alone[what]}


@pytest.fixture(scope="module")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Watched]":  # type: ignore[misc]
    folder = tmp_path_factory.mktemp("watched")
    flags = ("-np", "4", "-c", "4096", "--kv-unified", "--metrics", "--props", "--slot-save-path", str(folder))
    with LiveServer(folder / "log", *flags) as server:
        await server.ready()
        probe = Probe(server.port)
        await wait_until(lambda: server.busy_slots() != [])
        probe.worst()
        alone = probe.after(N_ALONE)
        yield Watched(server, probe, alone)
        probe.close()
        assert "ERROR" not in server.log


def test_every_route_that_takes_something_large_is_asked_for_it() -> None:
    assert LARGEST.keys() | QUERIES.keys() <= set(ROUTES)
    takes_a_body = {route for route in ROUTES if route.startswith("POST ")}
    assert takes_a_body <= LARGEST.keys()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("route", ROUTES)
async def test_nobody_waits_for_what_another_asks(watched: Watched, route: str) -> None:
    slow = {}
    for case in cases(route):
        if worst := await worst_of(watched, case):
            slow[case.name] = worst
    assert slow == {}


async def worst_of(watched: Watched, case: Case) -> dict[str, float]:
    """What took too long beside a question, each time that it was asked; nothing where it did not once."""
    for _ in range(N_TRIES):
        await wait_until(lambda: not watched.slow(watched.probe.after(5)))
        status = await ask(watched.server.port, case)
        assert not status.startswith(b"HTTP/1.1 500"), case.name
        if not (slow := watched.slow(watched.probe.after(2))):
            return {}
    return slow


async def ask(port: int, case: Case) -> bytes:
    """Asks, and reads the answer; leaves when it takes too long. Returns the line of its status, if there was one by then."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b"" if case.body is None else case.body()
    length = f"Content-Length: {len(body)}\r\n" if case.body is not None else ""
    writer.write(f"{case.head}Host: a\r\nConnection: close\r\n{length}\r\n".encode() + body)
    status = b""
    with suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(ANSWER_S):
            status = await reader.readline()
            await reader.read()
    writer.transport.abort()
    return status
