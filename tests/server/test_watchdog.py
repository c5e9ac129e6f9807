"""Whatever is asked of any route is no error, and nobody else has to wait: neither who asks `/health` nor who reads a stream."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest
from litestar.routes import HTTPRoute

from tests.helpers import wait_until
from tests.server.live import LiveServer
from tests.server.scripted import ScriptedEngine
from weft.server import create_app

MOST_MS = float(os.environ.get("WEFT_MOST_MS", "100"))
"""How much longer than on a server that is asked nothing else an answer of `/health` may take, and a pause of a stream.

It tells a loop that is held, as long as a text is, from one that is not, on a machine that may be slow and busy; `make watchdog`
asks for far less on a quiet one.
"""

PROBED = ("health", "stream")
"""What is measured."""

N_TRIES = 5
"""Each with the worst that was seen beside it, of which the median counts. It is known as soon as three are on one side."""

N_MORE_TRIES = 15
"""Where that median is too high, so many tell: what holds others does so every time, and a busy machine does not."""

ANSWER_S = 3.0
"""How long an answer is waited for; then the client leaves. Whoever leaves before a handler has been reached measures nothing."""

LEAVING_S = 0.3
"""The same, of what the engine alone works on for long."""

ENGINES = {
    *("branches that differ", "many branches with probabilities", "the whole of them"),
    *("as many texts as may be", "as many continuations as may be"),
}
"""Which cases these are."""

N_ALONE = 40
"""How often `/health` is asked in each try on a server that is asked nothing else: about as often as beside a question."""

N_SAMPLES_ALONE = 5
"""How often that is tried."""

MAX_BODY = 4 * 1024 * 1024
"""Bytes that any server takes."""

Body = Callable[[str], bytes] | None
"""Makes a body when it is needed, with a number that no other has: together they would be some gigabytes."""

NEW = "§"
"""Where that number goes in a body, so that nothing that is kept of another one spares any work. It is a token's too."""

NUMBERS = cycle(range(1000, 2048))
"""More of them than the cache has room for, in the order of their use."""


def filled(begin: str, element: str, end: str, n_bytes: int = MAX_BODY) -> Body:
    """A body of nearly so many bytes, most of them one element again and again; of these the first alone has the number."""
    assert NEW in begin + element + end
    other = element.replace(NEW, "")
    n = (n_bytes - len(begin) - len(end)) // (len(other) + 1)

    def made(number: str) -> bytes:
        first = (begin + element).replace(NEW, number)
        return f"{first}{f',{other}' * (n - 1)}{end.replace(NEW, number)}".encode()

    return made


def encoded(**fields: object) -> Body:
    """A body of some fields. A text that is the number alone is one number."""
    text = json.dumps(fields, ensure_ascii=False).replace(f'"{NEW}"', NEW)
    assert NEW in text
    return lambda number: text.replace(NEW, number).encode()


CHAT = '{"messages": [{"role": "user", "content": '
TEXTS: dict[str, Body] = {
    "a long text": filled('{"prompt": "§', "word", '"}'),
    "a long content": filled('{"content": "§', "word", '"}'),
    "control tokens": filled('{"prompt": "§', "<s>", '"}', 1_000_000),
    "control tokens as content": filled('{"content": "§', "<s>", '"}', 1_000_000),
}
MUCH = {"prompt": "§ Once upon a time,", "n_predict": 1000, "ignore_eos": True, "n_probs": 1000, "logprobs": 1000}
FIELDS = [
    *("content", "tokens", "prompt", "completion_probabilities", "generation_settings"),
    *(f"a/{nth}" for nth in range(251)),
]
MUCH_BESIDES = {"n": 4, "max_tokens": 16, "timings_per_token": True, "return_progress": True, "explain_cache": True}
PROMPT_TOO = {"prompt": [NEW, *[300] * 99], "n_predict": 16, "echo": True, "response_fields": FIELDS, "return_tokens": True}
EVERYTHING = MUCH | MUCH_BESIDES | PROMPT_TOO
COMPLETIONS: dict[str, Body] = TEXTS | {
    "many tokens": filled('{"prompt": [§, ', "12", "]}"),
    "many media": filled('{"prompt": {"prompt_string": "", "multimodal_data": [', '"§"', "]}}", 150_000),
    "many markers": filled('{"prompt": {"multimodal_data": [], "prompt_string": "§', "<__media__>", '"}}'),
    "many markers of 2024": filled('{"image_data": [{"id": 1, "data": ""}], "prompt": "§', "[img-1]", '"}'),
    "many prompts": filled('{"prompt": [', '"§a"', "]}"),
    "many biases": filled('{"prompt": "a", "logit_bias": [[§, 1.5], ', "[12, 1.5]", "]}"),
    "many stop strings": filled('{"prompt": "a", "stop": [', '"§stop"', "]}"),
    "many fields of the answer": filled(
        '{"prompt": "a", "n_predict": 1, "n": 64, "response_fields": [', '"§a/b"', "]}", 1_000_000
    ),
    "a large grammar": filled('{"prompt": "a", "grammar": "root ::= [a-z]+ # §', "comment", '"}', 1_000_000),
    "a large schema": filled('{"prompt": "a", "json_schema": {"enum": [', '"§word"', "]}}", 250_000),
    "many parts of a large schema": encoded(
        prompt="§ a",
        n_predict=1,
        n=64,
        stream=True,
        verbose=True,
        json_schema={"type": "null", "title": "§", "default": {f"part-{nth}": ["word"] * 100 for nth in range(256)}},
        response_fields=[f"generation_settings/json_schema/default/part-{nth}" for nth in range(256)],
    ),
    "branches that differ": encoded(
        prompt="§ Once",
        branches=[{"suffix_prompt": f" upon {nth}", "n_predict": 2, "grammar": "root ::= [a-z §]+"} for nth in range(256)],
    ),
    "many branches with probabilities": encoded(n=256, stream=True, **MUCH),
    "the whole of them": encoded(n=16, **MUCH),
    "the prompt's probabilities": encoded(prompt=[NEW, *[300] * 999], echo=True, logprobs=1000, n_probs=1000, max_tokens=1),
    "everything at once": encoded(**EVERYTHING),
    "everything at once, streamed": encoded(stream=True, **EVERYTHING),
}
MANY_ARGUMENTS = {"type": "object", "properties": {f"argument-{nth}": {"type": "string", "maxLength": 99} for nth in range(40)}}
MANY_TOOLS = [{"type": "function", "function": {"name": f"tool-{NEW}-{nth}", "parameters": MANY_ARGUMENTS}} for nth in range(100)]
A_TOOL = [{"type": "function", "function": {"name": f"tool-{NEW}", "parameters": {"type": "object", "properties": {}}}}]
ASKED = [{"role": "user", "content": "a§"}]
CHATS: dict[str, Body] = {
    "many messages": filled('{"messages": [', '{"role": "user", "content": "§"}', "]}", 3_000_000),
    "a long message": filled(CHAT + '"§', "word", '"}]}'),
    "many parts": filled(CHAT + "[", '{"type": "text", "text": "§"}', "]}]}", 3_000_000),
    "many variables": filled(CHAT + '"a"}], "chat_template_kwargs": {"a": [§, ', "12", "]}}", 3_000_000),
    "a large picture": filled(CHAT + '[{"type": "image_url", "image_url": {"url": "data:image/png;base64,§', "AAA", '"}}]}]}'),
    "many pictures": filled(CHAT + "[", '{"type": "image_url", "image_url": {"url": "a§"}}', "]}]}", 3_000_000),
    "many tools": filled(CHAT + '"§"}], "tools": [', '{"type": "function"}', "]}", 3_000_000),
    "tools with much to say": encoded(messages=ASKED, tools=MANY_TOOLS, max_tokens=1),
    "everything at once": encoded(messages=ASKED, tools=A_TOOL, logprobs=True, top_logprobs=20, **MUCH_BESIDES),
    "everything at once, streamed": encoded(messages=ASKED, stream=True, logprobs=True, top_logprobs=20, **MUCH_BESIDES),
}

CALL = '{"messages": [{"role": "assistant", "tool_calls": ['
MESSAGES: dict[str, Body] = {
    **{name: CHATS[name] for name in ("many messages", "a long message", "many parts")},
    "many pictures": filled(CHAT + "[", '{"type": "image", "source": {"type": "base64", "data": "§AAAA"}}', "]}]}", 1_000_000),
    "many results": filled(CHAT + "[", '{"type": "tool_result", "tool_use_id": "a§"}', "]}]}", 1_000_000),
    "many tools": filled(CHAT + '"a"}], "tools": [', '{"name": "a§", "input_schema": {}}', "]}", 1_000_000),
    "a long system": filled('{"messages": [{"role": "user", "content": "a"}], "system": "§', "word", '"}'),
    "many marks": filled(
        CHAT + '"a"}], "system": [', '{"type": "text", "text": "a§", "cache_control": {"type": "ephemeral"}}', "]}", 1_000_000
    ),
    "many stop sequences": filled(CHAT + '"a"}], "stop_sequences": [', '"§stop"', "]}"),
}

ITEM = '{"role": "user", "content": "a§"}'
RESPONSES: dict[str, Body] = {
    "a long text": filled('{"input": "§', "word", '"}'),
    "many items": filled('{"input": [', ITEM, "]}", 3_000_000),
    "many parts": filled('{"input": [{"role": "user", "content": [', '{"type": "input_text", "text": "§"}', "]}]}", 3_000_000),
    "a large picture": filled(
        '{"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,§', "AAA", '"}]}]}'
    ),
    "many functions": filled('{"input": "a", "tools": [', '{"type": "function", "name": "a§"}', "]}", 3_000_000),
}

VECTORS: dict[str, Body] = {
    "a long text": filled('{"input": "§', "word", '"}'),
    "many texts": filled('{"input": [', '"§a fox"', "]}"),
    "as many texts as may be": filled('{"input": [', '"§a fox"', "]}", 2048 * 8),
    "many tokens": filled('{"input": [§, ', "12", "]}"),
    "many lists of tokens": filled('{"input": [[§], ', "[12]", "]}"),
    "many media": filled('{"input": {"prompt_string": "", "multimodal_data": [', '"§"', "]}}", 150_000),
    "many markers": filled('{"input": {"multimodal_data": [], "prompt_string": "§', "<__media__>", '"}}'),
}
PAIRS: dict[str, Body] = {
    "many texts": filled('{"query": "a", "documents": [', '"§a fox"', "]}"),
    "a long query": filled('{"documents": ["a"], "query": "§', "word", '"}'),
}


def some(bodies: dict[str, Body], *names: str) -> dict[str, Body]:
    """A few of the bodies of a route that reads them as another one does, which is asked for all of them."""
    return {name: bodies[name] for name in names}


LIKE_COMPLETIONS = some(COMPLETIONS, "a long text", "many tokens", "many prompts", "many stop strings", "branches that differ")
LIKELY = some(COMPLETIONS, "many branches with probabilities", "the whole of them", "the prompt's probabilities")
AT_ONCE = some(COMPLETIONS, "everything at once", "everything at once, streamed")
LARGEST: dict[str, dict[str, Body]] = {
    "POST /completion": COMPLETIONS,
    "POST /v1/completions": LIKE_COMPLETIONS
    | LIKELY
    | AT_ONCE
    | {"a long suffix": filled('{"prompt": "a", "suffix": "§', "word", '"}')},
    "POST /lora-adapters": {"many": filled('[{"id": §, "scale": 1}, ', '{"id": 0, "scale": 1}', "]", 1_000_000)},
    "POST /stream": {"a long text": filled('{"prompt": "§', "word", '"}')},
    "POST /infill": {
        "a long prefix": filled('{"input_prefix": "§', "word", '"}'),
        "tokens": filled('{"input_prefix": [§, ', "12", "]}"),
        "many snippets": filled('{"input_prefix": "a", "input_extra": [', '{"text": "§"}', "]}", 1_000_000),
    },
    "POST /chat/completions": CHATS,
    "POST /apply-template": CHATS,
    "POST /tokenize": TEXTS | {"with pieces": filled('{"with_pieces": true, "content": "§', "word", '"}', 3_000_000)},
    "POST /detokenize": {"many tokens": filled('{"tokens": [§, ', "12", "]}")},
    "POST /prefixes": TEXTS | {"many tokens": filled('{"prompt": [§, ', "12", "]}")},
    "POST /score": {
        "a long prompt": filled('{"continuations": ["a"], "prompt": "§', "word", '"}'),
        "a long continuation": filled('{"prompt": "a", "continuations": ["§', "word", '"]}'),
        "many continuations": filled('{"prompt": "a", "continuations": [', '"§a fox"', "]}"),
        "as many continuations as may be": filled('{"prompt": "a", "continuations": [', '"§a fox"', "]}", 4096 * 8),
        "many tokens": filled('{"prompt": "a", "continuations": [[§, ', "12", "]]}"),
        "many tasks": filled('{"tasks": [', '{"prompt": "a§", "continuations": []}', "]}", 1_000_000),
    },
    "POST /requests/{request_id:str}/branches/{index:int}/fork": {
        "a long text": filled('{"append": "§', "word", '"}'),
        "many tokens": filled('{"append": [§, ', "12", "]}"),
    },
    "POST /props": {"anything": filled('{"a": [§, ', "12", "]}")},
    "POST /slots/{id_slot:str}": {"a long name": filled('{"filename": "§', "word", '"}')},
    "GET /cache": {"all nodes": None},
    "POST /chat/completions/input_tokens": some(CHATS, "many messages", "a long message", "many tools"),
    "POST /responses": RESPONSES,
    "POST /responses/input_tokens": some(RESPONSES, "a long text", "many items"),
    "POST /v1/responses/compact": some(RESPONSES, "a long text", "many items"),
    "POST /v1/responses/{response_id:str}/cancel": {},
    "POST /v1/conversations": {"many items": filled('{"items": [', ITEM, "]}", 3_000_000)},
    "POST /v1/conversations/{conversation_id:str}": {"many texts": filled('{"metadata": {"a": [§, ', "12", "]}}", 3_000_000)},
    "POST /v1/conversations/{conversation_id:str}/items": {"many items": filled('{"items": [', ITEM, "]}", 3_000_000)},
    "POST /v1/streams/lookup": {"many": filled('{"conversation_ids": [', '"§a::b"', "]}", 3_000_000)},
    "POST /embedding": VECTORS
    | {
        "many markers of 2024": filled('{"image_data": [{"id": 1, "data": ""}], "content": "§', "[img-1]", '"}'),
        "many pictures of 2024": filled('{"content": "[img-1]", "image_data": [', '{"id": 1, "data": "§"}', "]}"),
    },
    "POST /v1/embeddings": some(VECTORS, "many texts", "as many texts as may be", "many tokens"),
    "POST /rerank": PAIRS,
    "POST /documents": {
        "a long title": filled('{"title": "§', "word", '"}'),
        "many settings": filled('{"settings": {"a": [§, ', "12", "]}}", 3_000_000),
    },
    "POST /documents/import": {
        "a long text": filled('{"format": "text", "content": "§', "word", '"}'),
        "deep JSON": filled('{"format": "json", "content": "§', "[[[[", '"}'),
    },
    "PATCH /documents/{document_id:str}": {"many settings": filled('{"settings": {"a": [§, ', "12", "]}}", 3_000_000)},
    "POST /documents/{document_id:str}/duplicate": {"a long title": filled('{"title": "§', "word", '"}')},
    "POST /documents/{document_id:str}/resume": {"anything": filled('{"a": [§, ', "12", "]}")},
    "POST /documents/{document_id:str}/nodes": {"a long text": filled('{"text": "§', "word", '"}')},
    "PATCH /documents/{document_id:str}/nodes/{node_id:int}": {"a long text": filled('{"version": 1, "text": "§', "word", '"}')},
    "POST /documents/{document_id:str}/nodes/{node_id:int}/continue": {
        **some(COMPLETIONS, "a long text", "many tokens", "many stop strings", "a large schema"),
        "a long addition": filled('{"append": "§', "word", '"}'),
    },
    "POST /documents/{document_id:str}/nodes/{node_id:int}/resume": {"anything": filled('{"a": [§, ', "12", "]}")},
    "POST /documents/{document_id:str}/nodes/{node_id:int}/stop": {"anything": filled('{"a": [§, ', "12", "]}")},
    "POST /documents/{document_id:str}/nodes/{node_id:int}/split": {
        "a large position": filled('{"at": {"token": §', "9", "}}", 4_000)
    },
    "POST /documents/{document_id:str}/nodes/{node_id:int}/merge": {"anything": filled('{"a": [§, ', "12", "]}")},
    "POST /documents/{document_id:str}/nodes/{node_id:int}/move": {"anything": filled('{"parent": null, "a": [§, ', "12", "]}")},
    "POST /v1/messages": MESSAGES,
    "POST /v1/messages/count_tokens": some(MESSAGES, "many messages", "a long message", "a long system"),
    "POST /api/generate": {
        "a long prompt": filled('{"prompt": "§', "word", '"}'),
        "a long raw prompt": filled('{"raw": true, "prompt": "§', "word", '"}'),
        "a long suffix": filled('{"prompt": "a", "suffix": "§', "word", '"}'),
        "a long context": filled('{"prompt": "a", "context": [§, ', "12", "]}"),
        "many pictures": filled('{"prompt": "a", "images": [', '"§AAAA"', "]}", 1_000_000),
        "many pictures beside a raw prompt": filled('{"raw": true, "prompt": "a", "images": [', '"§AAAA"', "]}", 1_000_000),
        "a large schema": filled('{"prompt": "a", "format": {"enum": [', '"§word"', "]}}", 250_000),
    },
    "POST /api/chat": {
        **{name: CHATS[name] for name in ("many messages", "a long message", "many tools")},
        "many calls": filled(CALL, '{"function": {"name": "a§", "arguments": {"a": 1}}}', "]}]}", 1_000_000),
        "many results": filled('{"messages": [', '{"role": "tool", "content": "§", "tool_name": "a"}', "]}", 1_000_000),
    },
    "POST /api/show": {"a long name": filled('{"model": "§', "word", '"}')},
    "POST /api/blobs/{digest:str}": {"a large file": filled("§", "word", "")},
    "POST /api/embed": {name: VECTORS[name] for name in ("a long text", "many texts", "as many texts as may be")},
    "POST /api/embeddings": {"a long text": filled('{"prompt": "§', "word", '"}')},
}
"""The largest that a route takes, or refuses for what it says and not for its size. Other routes take nothing but their query."""

READS = {
    *("POST /completion", "POST /chat/completions", "POST /v1/messages", "POST /responses", "POST /api/chat", "POST /tokenize"),
    *("POST /rerank", "POST /slots/{id_slot:str}", "POST /api/blobs/{digest:str}"),
}
"""Of each of the ways in which bodies are read, a route or more."""

QUERIES = {
    "GET /documents/search": "q=" + "x" * 20_000,
    "GET /documents/events": "max_s=0.1&after=" + "x" * 20_000,
    "GET /cache": "limit=10000",
    "POST /slots/{id_slot:str}": "action=save",
    "GET /health": "include_slots=1",
}

GARBAGE: dict[str, Body] = {
    "no JSON": lambda number: number.encode() + b"\xff" * 2**20,
    "deep JSON": lambda number: f"[{number}, ".encode() + b"[" * 2**20,
    "half of it": filled('{"prompt": [§, ', "12", ""),
}


class Case(NamedTuple):
    """One thing to ask."""

    name: str
    head: str
    body: Body


def routes() -> list[str]:
    """Every handler of the application by its first path, as `POST /completion`."""
    found: dict[tuple[str, object], str] = {}
    for route in sorted(create_app(ScriptedEngine().as_engine()).litestar.routes, key=lambda route: route.path):
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
    filling = {
        "{id_slot:str}": "0",
        "{prefix_id:int}": "9" * 18,
        "{node_id:int}": "9" * 18,
        "{name:path}": "x" * 20_000,
        "{path:str}": "x" * 20_000,
    }
    filling["{digest:str}"] = "x" * 20_000
    filling |= dict.fromkeys(("{response_id:str}", "{conversation_id:str}", "{item_id:str}", "{document_id:str}"), "x" * 5_000)
    for name, text in filling.items():
        path = path.replace(f"/{name}", f"/{text}")
    bodies = (
        LARGEST.get(route, {})
        | (GARBAGE if route in READS else {})
        | ({"a long query": None} if method not in ("POST", "PATCH") else {})
    )
    # Documents take JSON by its type alone.
    kind = "Content-Type: application/json\r\n" if path.startswith("/documents") else ""
    return [Case(name, f"{method} {path}?{query} HTTP/1.1\r\n{kind}", body) for name, body in bodies.items()]


class Probe:
    """A process that asks for little all the time."""

    def __init__(self, port: int, worker: int) -> None:
        command = [sys.executable, "-m", "tests.server.probe", str(port), str(worker)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

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
    """A server, and whoever asks it for little."""

    server: LiveServer
    probe: Probe
    most: dict[str, float]
    """How long that may take, in milliseconds."""

    def slow(self, worst: dict[str, float]) -> dict[str, float]:
        """What of it took too long."""
        return {what: worst[what] for what, most in self.most.items() if worst[what] > most}


@asynccontextmanager
async def watching(folder: Path, *flags: str, most_ms: float = MOST_MS) -> AsyncIterator[Watched]:
    """A server, whose probe has told what it measures alone."""
    with LiveServer(folder / "log", "--documents", str(folder / "documents.sqlite"), *flags) as server:
        await server.ready()
        with closing(Probe(server.port, server.worker_id())) as probe:
            await wait_until(lambda: server.busy_slots() != [])
            probe.worst()
            alone = [probe.after(N_ALONE) for _ in range(N_SAMPLES_ALONE)]
            yield Watched(server, probe, {what: most_ms + median(one[what] for one in alone) for what in PROBED})
        assert "ERROR" not in server.log


FLAGS = ("-np", "4", "-c", "4096", "--kv-unified")


@pytest.fixture(scope="module")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    async with watching(folder, *FLAGS, "--metrics", "--props", "--slot-save-path", str(folder)) as watched:
        yield watched


@pytest.fixture(scope="module")
async def watched_with_files(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    """The same with `--path`: a folder that has a large file, and many."""
    site = tmp_path_factory.mktemp("site")
    (site / "index.html").write_text("<p>mine</p>")
    with (site / "large").open("wb") as large:
        large.truncate(64 * 1024 * 1024)
    for nth in range(1000):
        (site / f"{nth}.txt").touch()
    async with watching(tmp_path_factory.mktemp("watched"), *FLAGS, "--path", str(site)) as watched:
        yield watched


def test_every_route_that_takes_something_large_is_asked_for_it() -> None:
    assert LARGEST.keys() | QUERIES.keys() | READS <= set(ROUTES)
    takes_a_body = {route for route in ROUTES if route.startswith(("POST ", "PATCH "))}
    assert takes_a_body <= LARGEST.keys()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("route", ROUTES)
async def test_nobody_waits_for_what_another_asks(watched: Watched, route: str) -> None:
    await nobody_waits(watched, cases(route))


def in_front(*requests: str) -> list[Case]:
    return [Case(request[:40], f"{request} HTTP/1.1\r\n", None) for request in requests]


LONG = "x" * 20_000
DEEP = "/a" * 10_000
DOTS = "/%2e%2e/." * 2_000
FRONT = in_front(
    *("GET /", f"GET /?{LONG}", "GET /index.html", "GET /completion.js", "HEAD /", "HEAD /docs", "HEAD /openapi.json", "POST /"),
    *(f"OPTIONS /{LONG}", f"GET /{LONG}", f"GET {DEEP}", f"GET {DOTS}", f"DELETE /{LONG}", "GET /%00%ff", "HEAD /slots"),
)
"""What is answered before any route, or never comes to one."""
FILES = in_front("GET /large", "HEAD /large", "GET /999.txt", "GET /999.txt/", "GET /large%2f..%2flarge")


@pytest.mark.timeout(120)
async def test_nobody_waits_for_what_is_asked_in_front_of_the_routes(watched: Watched) -> None:
    await nobody_waits(watched, FRONT)


BESIDE_FILES = {
    "POST /completion": ("many prompts",),
    "POST /chat/completions": ("a long message",),
    "POST /tokenize": ("a long text",),
}


@pytest.mark.timeout(120)
async def test_nobody_waits_for_files_or_beside_them(watched_with_files: Watched) -> None:
    asked = [case for route in ROUTES if route.startswith("GET ") for case in cases(route)]
    asked += [case for route, names in BESIDE_FILES.items() for case in cases(route) if case.name in names]
    await nobody_waits(watched_with_files, [*FRONT, *FILES, *asked])


async def nobody_waits(watched: Watched, asked: Sequence[Case]) -> None:
    slow = {}
    for case in asked:
        if medians := await slow_beside(watched, case):
            slow[case.name] = medians
    assert slow == {}, f"in milliseconds, of which there may be {watched.most}"


async def slow_beside(watched: Watched, case: Case) -> dict[str, float]:
    """What took too long beside a question, by the median of tries; no more are made than tell on which side that is."""
    tries: list[dict[str, float]] = []
    slow: dict[str, float] = {}
    for n_tries in (N_TRIES, N_MORE_TRIES):
        while not is_known(n_tries, len(tries), [sum(what in watched.slow(one) for one in tries) for what in watched.most]):
            if not tries or watched.slow(tries[-1]):
                await wait_until(lambda: not watched.slow(watched.probe.after(2)))
            status = await ask(watched.server.port, case)
            assert not status.startswith(b"HTTP/1.1 500"), case.name
            tries.append(watched.probe.after(2))
        if not (slow := watched.slow({what: median(one[what] for one in tries) for what in watched.most})):
            break
    return slow


def is_known(n_tries: int, n: int, n_slow: Sequence[int]) -> bool:
    """Whether `n` of them tell on which side the median of all would be, of each probe that was slow in so many of them."""
    return all(max(slow, n - slow) > n_tries // 2 for slow in n_slow)


async def ask(port: int, case: Case) -> bytes:
    """Asks, and reads the answer; leaves when it takes too long. Returns the line of its status, if there was one by then."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b"" if case.body is None else case.body(str(next(NUMBERS)))
    length = f"Content-Length: {len(body)}\r\n" if case.body is not None else ""
    writer.write(f"{case.head}Host: localhost\r\nConnection: close\r\n{length}\r\n".encode() + body)
    status = b""
    with suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(LEAVING_S if case.name in ENGINES else ANSWER_S):
            status = await reader.readline()
            await reader.read()
    writer.transport.abort()
    return status
