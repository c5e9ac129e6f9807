import asyncio
import copy
import json
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast, get_args

import httpx
import msgspec
import pytest
from litestar.exceptions import InternalServerException
from litestar.routes import HTTPRoute
from litestar.testing import AsyncTestClient

from tests.helpers import How
from tests.server.client_bodies import SENT
from tests.server.conftest import answers
from tests.server.matchers import SOME_TEXT, Json, matching
from tests.server.scripted import ScriptedEngine, Step, token
from tests.server.serving import in_shape_of
from weft import (
    ContextOverflowError,
    DecodeError,
    EngineStoppedError,
    InvalidRequestError,
    ModelLoadError,
    PinBudgetError,
    PrefixFileError,
    PrefixSaveError,
    QueueFullError,
    SlowConsumerError,
)
from weft.fields.excerpt import MAX_EXCERPT
from weft.server import create_app, docs
from weft.server.request_fields.fields import CompletionFields


def error_of(status: int, message: str, kind: str, **more: object) -> dict[str, object]:
    return {"error": {"code": status, "message": message, "type": kind, **more}}


ADVICE = "shorten the prompt, or start the server with a larger --ctx-size or a smaller --parallel"

ERRORS: dict[Exception, dict[str, object]] = {
    ContextOverflowError(70, 64): error_of(
        400,
        f"request (70 tokens) exceeds the available context size (64 tokens); {ADVICE}",
        "exceed_context_size_error",
        n_prompt_tokens=70,
        n_ctx=64,
    ),
    InvalidRequestError("n", "n is 0"): error_of(400, "n is 0", "invalid_request_error", param="n"),
    QueueFullError(9): error_of(429, "the queue is full (9 requests); retry later", "rate_limit_error"),
    EngineStoppedError(): error_of(503, "the engine has stopped", "unavailable_error"),
    DecodeError("out of memory"): error_of(500, "decoding failed: out of memory", "server_error"),
    PrefixFileError("a.bin", "it is truncated"): error_of(
        400, "cannot load the prefix in a.bin: it is truncated", "invalid_request_error"
    ),
    PinBudgetError(3, 2, 4): error_of(
        409, "cannot pin the prefix of 3 bytes: of at most 4 bytes, 2 are pinned; unpin another prefix", "conflict_error"
    ),
    PrefixSaveError("its state is not known"): error_of(500, "cannot save the prefix: its state is not known", "server_error"),
    SlowConsumerError(11, 10): error_of(
        500, "the stream was ended because its consumer is 11 events behind; at most 10 may be unread", "server_error"
    ),
    SlowConsumerError(21, 20, "bytes"): error_of(
        500, "the stream was ended because its consumer is 21 bytes behind; at most 20 may be unread", "server_error"
    ),
}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("when", ["refused", "first", "later"])
async def test_an_error_is_a_status_until_the_first_event_and_an_event_afterwards(
    error: Exception, when: str, path: str, how: How
) -> None:
    scripts: dict[str, Sequence[Step] | Exception] = {"refused": error, "first": [error], "later": [[token(0, "a")], error]}
    engine = ScriptedEngine(scripts[when])
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        answer = await client.post(path, json={"prompt": "abc", "stream": how == "stream"})
    if how == "stream" and when == "later":
        assert answer.status_code == 200
        first, second = answer.text.removesuffix("\n\n").split("\n\n")
        assert '"a"' in first
        assert json.loads(second.removeprefix("data: ")) == ERRORS[error]
    else:
        assert answer.json() == ERRORS[error]
        assert answer.status_code == answer.json()["error"]["code"]
    assert all(stream.is_closed for stream in engine.streams)


async def test_a_full_queue_says_when_to_try_again(path: str, how: How) -> None:
    engine = ScriptedEngine(QueueFullError(9))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        answer = await client.post(path, json={"prompt": "abc", "stream": how == "stream"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


async def test_our_own_bug_is_said_without_detail_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine(ZeroDivisionError("secret"))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        answer = await client.post("/completion", json={"prompt": "abc"})
    assert answer.status_code == 500
    assert answer.json() == {"error": {"code": 500, "message": "internal error", "type": "server_error"}}
    assert "secret" in caplog.text


async def test_several_prompts_are_submitted_all_or_none() -> None:
    engine = ScriptedEngine([[token(0, "a")]], QueueFullError(1))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        answer = await client.post("/completion", json={"prompt": ["abc", "abd"]})
    assert answer.status_code == 429
    assert [stream.is_closed for stream in engine.streams] == [True]


@pytest.mark.parametrize(
    ("method", "route", "error"),
    [
        ("GET", "/no/such/route", error_of(404, "Not Found", "not_found_error")),
        ("POST", "/", error_of(404, "Not Found", "not_found_error")),
        ("POST", "/v1/images/generations", error_of(404, "Not Found", "not_found_error")),
        ("GET", "/completion", error_of(405, "Method Not Allowed", "invalid_request_error")),
        ("POST", "/slots", error_of(405, "Method Not Allowed", "invalid_request_error")),
    ],
)
async def test_a_wrong_route_or_method_is_told_in_our_shape(
    client: httpx.AsyncClient, method: str, route: str, error: dict[str, dict[str, Json]]
) -> None:
    answer = await client.request(method, route)
    assert answer.json() == error
    assert answer.status_code == error["error"]["code"]


@pytest.mark.parametrize("route", ["/completion", "/v1/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize("body", [b"", b"{", b'{"prompt": "a"', b"[]", b"5", b"null", b'"text"', b'{"prompt": "\xff"}'], ids=repr)
async def test_a_body_that_is_no_json_object_is_told_in_our_shape(client: httpx.AsyncClient, route: str, body: bytes) -> None:
    answer = await client.post(route, content=body)
    assert answer.status_code == 400
    assert answer.json() == error_of(400, SOME_TEXT, "invalid_request_error")


@pytest.mark.parametrize("route", ["/completion", "/v1/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[" * 100_000, "the body is nested too deep"),
        (b'{"ignored": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "the body is nested too deep"),
        (b'{"ignored": ' + b'{"a":' * 100_000, "the body is nested too deep"),
        (b'{"ignored": "\xff"}', "the body is no UTF-8: invalid start byte"),
        (b'{"ignored": "\xed\xa0\x80"}', "the body is no UTF-8: invalid continuation byte"),
        (b'{"ignored": "\\ud800", "more": 1}', matching("the body is no JSON in UTF-8: .*surrogate.*")),
        (b'{"ignored": "\\udc00"}', matching("the body is no JSON in UTF-8: .*surrogate.*")),
        (b"{", "the body is no JSON in UTF-8: it ends at byte 1, within a value"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_a_body_that_cannot_be_read_is_told_why(client: httpx.AsyncClient, route: str, body: bytes, message: Json) -> None:
    answer = await client.post(route, content=body)
    assert answer.status_code == 400
    assert answer.json() == error_of(400, message, "invalid_request_error")


@pytest.mark.parametrize(
    "bug", [InternalServerException("secret"), RecursionError("secret"), "\ud800", b"\xff"], ids=lambda bug: type(bug).__name__
)
async def test_our_own_bug_is_not_told_as_a_bad_body(bug: Json, caplog: pytest.LogCaptureFixture, path: str) -> None:
    if isinstance(bug, bytes | str):
        with pytest.raises(UnicodeError) as raised:
            bug.decode() if isinstance(bug, bytes) else bug.encode()
        bug = raised.value
    engine = ScriptedEngine(bug)
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        answer = await client.post(path, json={"prompt": "abc"})
    assert answer.status_code == 500
    assert answer.json() == error_of(500, "internal error", "server_error")
    assert "a request failed" in caplog.text


async def test_a_body_that_ends_before_its_end_is_the_clients_error(path: str) -> None:
    engine = ScriptedEngine()
    engine.loaded.set()
    app = create_app(engine.as_engine())
    messages = iter([{"type": "http.request", "body": b'{"prompt"', "more_body": True}, {"type": "http.disconnect"}])
    sent: list[Json] = []

    async def receive() -> Json:
        return next(messages)

    async def send(message: Json) -> None:
        sent.append(message)

    async with AsyncTestClient(app) as client:
        assert (await client.get("/health")).status_code == 200
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": [], "http_version": "1.1"}
        await app(cast("Any", scope), receive, send)
    assert sent[0]["status"] == 400
    assert json.loads(sent[1]["body"]) == error_of(400, "the body was not sent to its end", "invalid_request_error")


async def test_a_prompt_of_the_whole_context_is_refused_with_both_numbers(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.post(path, json={"prompt": [300] * 1024})
    message = f"request (1024 tokens) exceeds the available context size (1024 tokens); {ADVICE}"
    assert answer.json() == error_of(400, message, "exceed_context_size_error", n_prompt_tokens=1024, n_ctx=1024)


async def test_a_grammar_that_is_none_is_a_bad_request(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.post(path, json={"prompt": "a", "grammar": "root ::= ("})
    [error] = answer.json().values()
    assert (answer.status_code, error["code"], error["type"], error["param"]) == (400, 400, "invalid_request_error", "grammar")


async def test_every_route_but_those_of_documents_is_503_while_the_model_is_loaded() -> None:
    engine = ScriptedEngine()
    app = create_app(engine.as_engine())
    routes = {
        (method, route.path)
        for route in app.litestar.routes
        if isinstance(route, HTTPRoute)
        for method in route.methods - {"OPTIONS"}
        if "{" not in route.path and not route.path.startswith("/documents")
    }
    assert {("GET", "/health"), ("POST", "/completion"), ("GET", "/v1/models")} <= routes
    async with AsyncTestClient(app) as client:
        for method, route in sorted(routes):
            answer = await client.request(method, route)
            assert (route, answer.status_code, answer.headers["retry-after"]) == (route, 503, "1")
            also = {"status": "loading model"} if route.endswith("/health") else {}
            assert answer.json() == in_shape_of(route, error_of(503, "Loading model", "unavailable_error")) | also
        engine.loaded.set()
        await answers(client, 200)
        assert (await client.get("/health")).json() == {"status": "ok", "slots_idle": 4, "slots_processing": 0}


async def test_a_model_that_cannot_be_loaded_is_told_by_every_route() -> None:
    engine = ScriptedEngine()
    engine.failure = ModelLoadError("a.gguf", "there is no such file")
    engine.loaded.set()
    told: list[BaseException | None] = []
    app = create_app(engine.as_engine(), on_started=told.append)
    async with AsyncTestClient(app) as client:
        await answers(client, 500)
        answer = await client.get("/health")
        other = await client.get("/props")
    error = error_of(500, "cannot load the model a.gguf: there is no such file", "server_error")
    assert (answer.json(), other.json()) == ({"status": "error"} | error, error)
    assert told == [engine.failure]


FILLER = "Q"
"""Nothing that the server says of its own has this letter."""

LONG = FILLER * 500

VERY_LONG = "\x00" * 500_000


def n_repeated(answer: httpx.Response) -> int:
    """Characters of the input that an error repeats, in its body and in its headers; none where it is no error."""
    if answer.status_code < 400 and '"error":{' not in answer.text and '{"error":"' not in answer.text:
        return 0
    assert answer.status_code < 500 or answer.status_code == 501
    return answer.text.count(FILLER) + sum(value.count(FILLER) for value in answer.headers.values())


BODIES: dict[str, Json] = dict.fromkeys(("prompt", "input", "content", "query", "input_prefix", "model"), "a")
BODIES |= {
    "messages": [{"role": "user", "content": "a"}],
    "documents": ["a"],
    "tokens": [1],
    "continuations": ["a"],
    "max_tokens": 1,
}
"""What a route may need beside the field that is wrong."""

WRONG: list[Json] = [LONG, [LONG], {LONG: LONG}, [[LONG]], [{LONG: LONG}], [{"type": LONG, "name": LONG, "content": LONG}]]


class Handler(NamedTuple):
    """What answers a method at a path."""

    name: str
    method: str
    path: str
    queries: Sequence[str]
    fields: Sequence[str]
    """Of its body. Those that all completions have are tried at `/completion`."""


def handlers() -> list[Handler]:
    """All of the application's, each by its first path."""
    found: dict[tuple[str, object], Handler] = {}
    for route in sorted(create_app(ScriptedEngine().as_engine()).litestar.routes, key=lambda route: route.path):
        if not isinstance(route, HTTPRoute):
            continue
        for method in sorted(route.methods - {"OPTIONS"}):
            handler, _ = route.route_handler_map[method]
            taken = handler.parsed_fn_signature.parameters
            queries = [name for name in taken if name not in ("data", "service", "request") and f"{{{name}:" not in route.path]
            fields: list[str] = []
            if "data" in taken:
                body = taken["data"].annotation
                kinds = [kind for kind in get_args(body) or [body] if issubclass(kind, msgspec.Struct)]
                common = (
                    set() if route.path == "/completion" else {field.name for field in msgspec.structs.fields(CompletionFields)}
                )
                fields = [
                    field.encode_name for kind in kinds for field in msgspec.structs.fields(kind) if field.name not in common
                ]
            made = Handler(f"{method} {route.path}", method, route.path, queries, fields)
            found.setdefault((method, handler.fn), made)
    return list(found.values())


def at(path: str, long: str | None = None) -> str:
    """A path with something in the place of its parameters, of which one may be long."""
    for place in re.findall(r"{.*?}", path):
        path = path.replace(place, LONG if place == long else "1")
    return path


@pytest.mark.parametrize("handler", handlers(), ids=lambda handler: handler.name)
async def test_an_error_repeats_at_most_200_characters_of_the_input(handler: Handler, client: httpx.AsyncClient) -> None:
    has_body = handler.method in ("POST", "PATCH")
    # Documents take JSON by its type alone.
    headers = {"content-type": "application/json"} if handler.path.startswith("/documents") else {}

    async def ask(path: str, body: Json) -> int:
        content = msgspec.json.encode(body) if has_body else None
        if path.startswith("/documents/events") and "max_s=" not in path:
            # The stream of events does not end on its own.
            path += f"{'&' if '?' in path else '?'}max_s=0.01"
        return n_repeated(await client.request(handler.method, path, content=content, headers=headers))

    repeated = {place: await ask(at(handler.path, place), {}) for place in re.findall(r"{.*?}", handler.path)}
    repeated |= {query: await ask(f"{at(handler.path)}?{query}={LONG}", {}) for query in (*handler.queries, LONG)}
    beside = {name: value for name, value in BODIES.items() if name in handler.fields}
    for field in handler.fields:
        repeated[field] = max([await ask(at(handler.path), beside | {field: wrong}) for wrong in WRONG])
    if has_body:
        repeated["no field"] = await ask(at(handler.path), beside | {LONG: 1})
    assert {what: n for what, n in repeated.items() if n > MAX_EXCERPT} == {}


def places(value: Json, outside: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The way to every value that is inside of a body's fields."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        if outside:
            yield (*outside, key)
        yield from places(part, (*outside, key))


def with_long(body: Json, place: Sequence[str | int], *, is_key: bool) -> Json:
    """A body with something long in the place of a value, or of its key."""
    changed = copy.deepcopy(body)
    around = changed
    for key in place[:-1]:
        around = around[key]
    if is_key:
        around[LONG] = around.pop(place[-1])
    else:
        around[place[-1]] = LONG
    return changed


def as_clients_send_it() -> Iterator[tuple[str, Sequence[str | int], Json]]:
    """Each kind of place in a body that clients send to a route, once."""
    known: set[object] = set()
    for sent in SENT.values():
        for place in places(sent.body):
            kind = (sent.route, *("each" if isinstance(key, int) else key for key in place))
            if kind not in known:
                known.add(kind)
                yield sent.route, place, sent.body | {"max_tokens": 1, "stream": False}


async def test_it_does_so_wherever_in_a_body_of_a_client_it_is(client: httpx.AsyncClient) -> None:
    repeated: dict[object, int] = {}
    for route, place, body in as_clients_send_it():
        for is_key in (False, True) if isinstance(place[-1], str) else (False,):
            answer = await client.post(route, content=msgspec.json.encode(with_long(body, place, is_key=is_key)))
            # A response tells in its `error` and beside it what it was asked for.
            repeated[route, place, is_key] = n_repeated(answer) if answer.status_code >= 400 else 0
    assert len(repeated) > 300
    assert {what: n for what, n in repeated.items() if n > MAX_EXCERPT} == {}


HELD: dict[str, Json] = {
    "a rule's name": {"grammar": f"root ::= {LONG}"},
    "a rule without its sign": {"grammar": f"{LONG} = [a]"},
    "a rule that begins with itself": {"grammar": f"root ::= {LONG}\n{LONG} ::= {LONG}"},
    "a token": {"grammar": f"root ::= <{LONG}>"},
    "a token's id": {"grammar": f"root ::= <[{LONG}]>"},
    "a type": {"json_schema": {"type": LONG}},
    "a list of types": {"json_schema": {"type": [LONG]}},
    "a pattern": {"json_schema": {"type": "string", "pattern": f"{LONG}("}},
    "a pattern of names": {"json_schema": {"patternProperties": {f"{LONG}(": {}}, "properties": {"a": {}}}},
    "a reference": {"json_schema": {"$ref": f"#/{LONG[:250]}"}},
    "a keyword": {"json_schema": {LONG: {"type": LONG}}},
    "a trigger": {
        "grammar": 'root ::= "a"',
        "grammar_lazy": True,
        "grammar_triggers": [{"type": 2, "value": f"{LONG}("}],
    },
    "a kind of diversity": {"n": 2, "diverse": LONG},
    "a sampler": {"samplers": [LONG]},
    "a branch": {"branches": [{LONG: 1, "grammar": f"root ::= {LONG}"}]},
    "a branch's schema": {"branches": [{"json_schema": {"type": LONG}}]},
}


@pytest.mark.parametrize("fields", HELD.values(), ids=HELD)
async def test_it_does_so_in_what_texts_are_held_to(client: httpx.AsyncClient, path: str, fields: Json) -> None:
    answer = await client.post(path, json={"prompt": "a", "max_tokens": 1} | fields)
    assert n_repeated(answer) <= MAX_EXCERPT


@pytest.mark.parametrize(
    "name", ["x-request-id", "x-conversation-id", "authorization", "x-api-key", "content-type", "anthropic-version"]
)
@pytest.mark.parametrize("route", ["/completion", "/v1/messages", "/v1/responses", "/slots", "/nothing"])
async def test_it_does_so_of_headers(client: httpx.AsyncClient, route: str, name: str) -> None:
    body = {"prompt": "a", "input": "a", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}
    answer = await client.post(route, content=msgspec.json.encode(body), headers={name: LONG})
    assert n_repeated(answer) <= MAX_EXCERPT


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/completion", {"prompt": "a", "samplers": [VERY_LONG]}),
        ("/completion", {"prompt": "a", "samplers": VERY_LONG}),
        ("/completion", {"prompt": "a", "logit_bias": {VERY_LONG: True}}),
        ("/completion", {"prompt": "a", "logit_bias": {"9" * 500_000: 1}}),
        ("/completion", {"prompt": "a", "grammar": VERY_LONG}),
        ("/completion", {"prompt": "a", "json_schema": {"type": VERY_LONG}}),
        ("/completion", {"prompt": "a", "stop": [{VERY_LONG: 1}]}),
        ("/completion", {"prompt": "a", "response_fields": VERY_LONG}),
        ("/completion", {"prompt": "a", "n": VERY_LONG}),
        ("/completion", {VERY_LONG: 1, "n": "many"}),
        ("/v1/completions", {"prompt": "a", "event_format": VERY_LONG}),
        ("/v1/completions", {"prompt": "a", "response_format": {"type": VERY_LONG}}),
        ("/v1/completions", {"prompt": "a", "n": 10**4000}),
        ("/v1/chat/completions", {"messages": [{"role": VERY_LONG, "content": "a"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": VERY_LONG}]}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "continue_final_message": VERY_LONG}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "continue_final_message": [[VERY_LONG] * 9]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "reasoning_effort": {VERY_LONG: VERY_LONG}}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "tool_choice": VERY_LONG}),
        ("/tokenize", {"content": [VERY_LONG, -1]}),
        ("/tokenize", {"content": {VERY_LONG: VERY_LONG}}),
        ("/slots/0?action=restore", {"filename": VERY_LONG}),
        ("/slots/0?action=restore", {"filename": "a/" + VERY_LONG}),
        (f"/slots/{'x' * 60_000}?action=erase", {}),
        (f"/slots/0?action={'x' * 60_000}", {}),
        (f"/cache?limit={'x' * 60_000}", None),
    ],
    ids=lambda value: repr(value)[:60],
)
async def test_what_an_error_repeats_of_half_a_megabyte_is_cut(client: httpx.AsyncClient, route: str, body: Json) -> None:
    if body is None:
        answer = await client.get(route)
    else:
        answer = await client.post(route, content=json.dumps(body).encode())
    assert len(answer.content) < 1500, "200 characters, each written as six and escaped, and what is said of them"
    assert answer.status_code < 500 or answer.status_code == 501


async def test_the_document_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make = docs._make

    def counted(*given: Json) -> bytes:
        made.append(threading.get_ident())
        return make(*given)

    monkeypatch.setattr(docs, "_make", counted)
    engine = ScriptedEngine()
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        await answers(client, 200)
        got = await asyncio.gather(*(client.get("/openapi.json") for _ in range(6)))
        assert (await client.get("/openapi.json/nothing")).json() == error_of(404, "Not Found", "not_found_error")
    assert [answer.status_code for answer in got] == [200] * 6
    assert made == [made[0]]
    assert made[0] != engine.loop_thread
