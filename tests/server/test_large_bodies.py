"""Bodies of more than 64 KiB: what is long in them is one object, and the event loop makes little of the rest."""

import asyncio
import json
import math
import random
import threading
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import msgspec
import pytest
from litestar.testing import AsyncTestClient
from litestar.types import Empty

from tests.helpers import wait_until
from tests.server.conftest import answers
from tests.server.matchers import Json, matching
from tests.server.scripted import FullEngine, ScriptedEngine
from weft import QueueFullError, Request
from weft._native import Biases, TokenIds, read_body
from weft.server import create_app, json_request
from weft.server.gateway import Gateway
from weft.server.json_request import LARGE_BODY, put_text
from weft.server.refusals import Reason
from weft.settings import Settings

FILLER = {"ignored": "x" * LARGE_BODY}
IDS = [index % 100 for index in range(40_000)]


Full = tuple[FullEngine, httpx.AsyncClient]


@pytest.fixture(scope="module")
async def full() -> AsyncIterator[Full]:
    engine = FullEngine()
    engine.model.n_vocab = 100_000
    engine.limits.n_ctx_slot = 1 << 20
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine(), Settings(max_body=8 << 20))) as client:
        await answers(client, 200)
        yield engine, client


async def requests_of(full: Full, path: str, body: Json) -> list[Request]:
    engine, client = full
    engine.requests.clear()
    answer = await client.post(path, content=body if isinstance(body, bytes) else json.dumps(body))
    assert answer.status_code == 429, answer.text
    return engine.requests


async def refused(full: Full, path: str, body: Json) -> Json:
    engine, client = full
    engine.requests.clear()
    answer = await client.post(path, content=body if isinstance(body, bytes) else json.dumps(body))
    assert answer.status_code == 400
    assert engine.requests == []
    return answer.json()["error"]


async def test_a_long_list_of_tokens_is_one_object(full: Full, path: str) -> None:
    [request] = await requests_of(full, path, {"prompt": IDS, "penalty_prompt": IDS, "seed": 3})
    assert isinstance(request.prompt, TokenIds)
    assert isinstance(request.penalty_prompt, TokenIds)
    assert list(cast("Any", request.prompt)) == list(cast("Any", request.penalty_prompt)) == IDS
    assert request.seed == 3


async def test_each_prompt_of_a_list_is_one_object(full: Full, path: str) -> None:
    # The engine refuses the first; what the second would have been is in the body that was read.
    [request] = await requests_of(full, path, {"prompt": [IDS[:20_000], IDS[:3]]})
    assert isinstance(request.prompt, TokenIds)
    assert list(cast("Any", request.prompt)) == IDS[:20_000]
    body = json.dumps({"prompt": [IDS, IDS[:3]]}).encode()
    rest, beside, texts = read_body(body, fields=["prompt"], tokens=["prompt"], biases=[])
    assert (rest, texts) == (b"{}", [])
    assert [list(cast("Any", prompt)) for prompt in cast("list[TokenIds]", beside["prompt"])] == [IDS, IDS[:3]]


LONG = 'ä"\\\n\N{GRINNING FACE}' * 20_000


@pytest.mark.parametrize("content", [LONG, [{"type": "text", "text": "a"}, {"type": "text", "text": LONG}]], ids=["text", "part"])
async def test_a_long_text_comes_whole_to_its_place(full: Full, content: Json) -> None:
    [request] = await requests_of(full, "/v1/chat/completions", {"messages": [{"role": "user", "content": content}]})
    assert LONG in "".join(map(chr, cast("list[int]", request.prompt)))


def value(draw: random.Random, depth: int) -> Json:
    """Any value, in which texts may be long."""
    kind = draw.randrange(6 if depth < 4 else 3)
    if kind < 2:
        return draw.choice(["", "…", "a, [b", LONG, LONG[:70_000], "x" * (1 << 16), "x" * ((1 << 16) - 2)])
    if kind == 2:
        return draw.choice([None, True, 1.5, -7, [], {}])
    if kind == 3:
        return [value(draw, depth + 1) for _ in range(draw.randrange(4))]
    names = ["a", "…", 'a "name"', "\n", "ä" * 40_000]
    return {draw.choice(names): value(draw, depth + 1) for _ in range(draw.randrange(4))}


class Held(msgspec.Struct):
    """Something that is in a body."""

    name: str = msgspec.field(default="", name="a name")
    rest: Any = None


class Sent(msgspec.Struct):
    """A body."""

    first: Any = None
    held: list[Held] = []


def test_every_long_text_is_put_where_it_was() -> None:
    draw = random.Random(7)
    n_long = 0
    for nth in range(200):
        held = [{"a name": draw.choice(["a", LONG]), "unknown": [LONG], "rest": value(draw, 1)} for _ in range(nth % 3)]
        body = json.dumps({"first": value(draw, 0), "held": held, "unknown": LONG}, ensure_ascii=bool(nth % 2)).encode()
        rest, _, texts = read_body(body, fields=["first", "held"], tokens=[], biases=[])
        assert len(max(rest.split(b'"'), key=len)) < 1 << 18, "what is long is no text, but perhaps a name"
        sent = msgspec.json.decode(rest, type=Sent)
        for way, text in reversed(texts):
            put_text(sent, way, text)
        assert sent == msgspec.json.decode(body, type=Sent)
        n_long += len(texts)
    assert n_long > 100


def test_of_two_texts_by_one_name_the_last_is_put() -> None:
    long, other = (json.dumps(letter * LARGE_BODY) for letter in "xy")
    for first, last in ((long, other), (long, "5"), ("5", long), (long, '{"b": 5}')):
        body = f'{{"first": {{"a": {first}, "a": {last}}}}}'.encode()
        rest, _, texts = read_body(body, fields=["first"], tokens=[], biases=[])
        sent = msgspec.json.decode(rest, type=Sent)
        for way, text in reversed(texts):
            put_text(sent, way, text)
        assert sent == msgspec.json.decode(body, type=Sent)


@pytest.mark.parametrize("as_object", [False, True], ids=["pairs", "object"])
async def test_many_biases_are_one_object(full: Full, path: str, as_object: bool) -> None:
    pairs = [(token, False if token % 2 else -1.5) for token in range(30_000)]
    biases = {str(token): bias for token, bias in pairs} if as_object else pairs
    [request] = await requests_of(full, path, {"prompt": "a", "logit_bias": biases})
    assert isinstance(request.logit_bias, Biases)
    told = sorted(cast("Any", request.logit_bias))
    assert told == [(token, -math.inf if bias is False else bias) for token, bias in pairs]
    assert json.loads(request.logit_bias.json())[:2] == [{"token": 0, "bias": -1.5}, {"token": 1, "bias": False}] or as_object


async def test_a_large_body_is_read_beside_the_event_loop(full: Full, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def read(*args: Json, **kwargs: Json) -> Json:
        threads.append(threading.get_ident())
        return read_body(*args, **kwargs)

    monkeypatch.setattr(json_request, "read_body", read)
    await requests_of(full, path, {"prompt": IDS})
    [thread] = threads
    assert thread != full[0].loop_thread


async def test_what_python_makes_objects_of_is_bounded(full: Full, path: str) -> None:
    error = await refused(full, path, {"prompt": "a", "stop": ["a"] * 70_000})
    assert error["message"] == matching("the body has too many values besides its token ids and biases: at most 65536 are read")
    # What nobody reads costs nothing.
    await requests_of(full, path, {"prompt": "a", "unknown": ["a"] * 70_000})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[" * 100_000, "the body is nested too deep"),
        (b'{"ignored": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "the body is nested too deep"),
        (b'{"ignored": "' + b"a" * 70_000 + b'\xff"}', "the body is no UTF-8: invalid start byte"),
        (b'{"ignored": "' + b"a" * 70_000 + b'\xed\xa0\x80"}', "the body is no UTF-8: invalid continuation byte"),
        (b'{"ignored": "' + b"a" * 70_000 + b"\xe2\x82", "the body is no UTF-8: unexpected end of data"),
        (b'{"ignored": "' + b"a" * 70_000 + b'\\ud800"}', matching("the body is no JSON in UTF-8: .*surrogate.*")),
        (b'{"ignored": "' + b"a" * 70_000 + b'\\udc00"}', matching("the body is no JSON in UTF-8: .*surrogate.*")),
        (b'{"ignored": "' + b"a" * 70_000, matching("the body is no JSON in UTF-8: .*")),
        (b"\xef\xbb\xbf{}" + b" " * 70_000, matching("the body is no JSON in UTF-8: .*")),
        (b'{"temperature": NaN}' + b" " * 70_000, matching("the body is no JSON in UTF-8: .*")),
        (b'{"prompt": [' + b"1," * 40_000 + b"]}", matching("the body is no JSON in UTF-8: .*")),
        (b"[]" + b" " * 70_000, "the body must be a JSON object"),
        (b'"a"' + b" " * 70_000, "the body must be a JSON object"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_what_is_wrong_with_a_large_body_is_said_as_of_a_small_one(
    full: Full, path: str, body: bytes, message: Json
) -> None:
    assert await refused(full, path, body) == {"code": 400, "message": message, "type": "invalid_request_error"}


@pytest.mark.parametrize(
    "body",
    [{"n": "a"}, {"stop": [1]}, {"stream_options": {"include_usage": 7}}, {"penalty_prompt": [[1] * 3000]}, {"prompt": 1.5}],
    ids=lambda body: next(iter(body)),
)
async def test_a_wrong_field_of_a_large_body_is_named_as_that_of_a_small_one(full: Full, body: Json) -> None:
    large = await refused(full, "/v1/completions", {"prompt": "a", **body, **FILLER})
    assert large["param"] == next(iter(body))
    if "penalty_prompt" not in body:
        assert large == await refused(full, "/v1/completions", {"prompt": "a", **body})


@pytest.mark.parametrize("body", [{"prompt": [1]}, {"add_special": [1]}], ids=["prompt", "add_special"])
async def test_tokens_where_none_can_be_are_refused_as_in_a_small_body(full: Full, body: Json) -> None:
    name, tokens = next(iter(body.items()))
    assert await refused(full, "/tokenize", {name: tokens * 40_000}) == await refused(full, "/tokenize", body)


@pytest.mark.parametrize("size", ["small", "large"])
async def test_of_two_values_by_one_name_the_last_holds(full: Full, path: str, size: str) -> None:
    body = b'{"prompt": "a", "seed": 1, "seed": 2' + b" " * (len(FILLER["ignored"]) * (size == "large")) + b"}"
    [request] = await requests_of(full, path, body)
    assert request.seed == 2


async def test_escapes_of_pairs_are_characters(full: Full, path: str) -> None:
    body = b'{"prompt": "\\ud83d\\ude00\\u0041\\\\u", "ignored": "' + b"a" * 70_000 + b'"}'
    [request] = await requests_of(full, path, body)
    assert list(cast("Any", request.prompt)) == [ord(character) for character in "\U0001f600A\\u"]


async def test_tokens_outside_of_the_vocabulary_are_found_in_a_large_body(full: Full) -> None:
    error = await refused(full, "/tokenize", {"content": [*IDS, 100_000]})
    assert error["message"] == "token 100000 is not in the vocabulary (100000 tokens)"


async def test_a_large_body_goes_through_the_other_routes(client: httpx.AsyncClient) -> None:
    ids = [300 + index % 100 for index in range(30_000)]
    tokenized = (await client.post("/tokenize", json={"content": ids, "with_pieces": True})).json()["tokens"]
    assert [piece["id"] for piece in tokenized] == ids
    text = (await client.post("/detokenize", json={"tokens": ids})).json()["content"]
    assert text == "".join(piece["piece"] for piece in tokenized)
    answer = await client.post("/prefixes", json={"prompt": ids})
    assert answer.json()["error"]["type"] == "exceed_context_size_error"


@pytest.mark.parametrize(
    ("settings", "limit"), [({}, (4 << 20) + 64 * 4_096 + 32 * 128), ({"max_body": 100_000}, 100_000)], ids=repr
)
async def test_a_body_is_as_long_as_it_may_be(path: str, settings: Json, limit: int) -> None:
    engine = ScriptedEngine(QueueFullError(1))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine(), Settings(**settings))) as client:
        await answers(client, 200)
        body = b'{"prompt": "a"}'
        assert (await client.post(path, content=body + b" " * (limit - len(body)))).status_code == 429
        answer = await client.post(path, content=body + b" " * (limit - len(body) + 1))
        message = f"the body has more than {limit} bytes; send less, or start the server with a larger --max-body"
        assert answer.status_code == 413
        assert answer.json() == {"error": {"code": 413, "message": message, "type": "invalid_request_error"}}


@pytest.mark.parametrize("is_announced", [True, False], ids=["announced", "streamed"])
async def test_a_body_that_is_too_large_is_not_read_to_its_end(path: str, is_announced: bool) -> None:
    engine = ScriptedEngine()
    engine.loaded.set()
    app = create_app(engine.as_engine(), Settings(max_body=100_000))
    n_read = 0
    sent: list[Json] = []

    async def receive() -> Json:
        nonlocal n_read
        n_read += 1
        return {"type": "http.request", "body": b" " * 60_000, "more_body": True}

    async def send(message: Json) -> None:
        sent.append(message)

    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        headers = [(b"content-length", b"600000")] if is_announced else []
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers, "http_version": "1.1"}
        await app(cast("Any", scope), receive, send)
    assert sent[0]["status"] == 413
    assert n_read == (0 if is_announced else 2)


class Sender:
    """A client that sends its body part by part, and waits before the last until it is told to go on."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = list(parts)
        self.n_read = 0
        self.may_end = asyncio.Event()
        self.has_left = asyncio.Event()
        self.sent: list[Json] = []

    async def receive(self) -> Json:
        if self.n_read == len(self._parts) - 1:
            await self.may_end.wait()
        if self.n_read == len(self._parts):
            await self.has_left.wait()
        if self.has_left.is_set():
            return {"type": "http.disconnect"}
        self.n_read += 1
        return {"type": "http.request", "body": self._parts[self.n_read - 1], "more_body": self.n_read < len(self._parts)}

    async def send(self, message: Json) -> None:
        self.sent.append(message)

    def ask(self, app: Gateway, path: str) -> asyncio.Task[None]:
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": [], "http_version": "1.1"}
        return asyncio.create_task(app(cast("Any", scope), self.receive, self.send))


def sender(n_bytes: int) -> Sender:
    """Of a body whose first part has so many bytes, and whose second is the rest of it."""
    begin = b'{"prompt": "a", "ignored": "'
    return Sender(begin + b"x" * (n_bytes - len(begin)), b'"}')


@pytest.fixture
async def crowded(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gateway]:
    """Its queue is full, and there is room for 100,000 bytes of bodies beside the small part of each."""
    monkeypatch.setattr(json_request, "MAX_TOGETHER_BYTES", 100_000)
    engine = ScriptedEngine(*[QueueFullError(1)] * 9)
    engine.loaded.set()
    app = create_app(engine.as_engine(), Settings(max_body=8 << 20))
    await app.service.lifecycle.start()
    yield app
    await app.service.stop()


TOO_MANY = {
    "code": 429,
    "message": "request bodies that are being received use 100000 bytes, which is the limit; try again later",
    "type": "rate_limit_error",
}


async def test_bodies_that_are_being_sent_are_bounded_together_but_small_ones_are_not_refused(
    crowded: Gateway, path: str
) -> None:
    first, second, small = sender(LARGE_BODY + 60_000), sender(LARGE_BODY + 50_000), sender(LARGE_BODY - 2)
    asking = first.ask(crowded, path)
    await wait_until(lambda: crowded.litestar.state.bodies.n_bytes == 60_000)
    await second.ask(crowded, path)
    assert (second.sent[0]["status"], dict(second.sent[0]["headers"])[b"retry-after"]) == (429, b"1")
    assert json.loads(second.sent[1]["body"]) == {"error": TOO_MANY}
    assert second.n_read == 1, "it is refused at once"
    assert crowded.service.refusals.counts[Reason.TOO_MANY_BODIES] == 1
    assert crowded.litestar.state.bodies.n_bytes == 60_000
    small.may_end.set()
    await small.ask(crowded, path)
    first.may_end.set()
    await asking
    # Both were read: it is the engine that refuses them.
    assert crowded.service.refusals.counts[Reason.QUEUE_FULL] == 2
    assert crowded.litestar.state.bodies.n_bytes == 0


async def test_one_body_alone_has_its_room_however_large_it_may_be(crowded: Gateway, path: str) -> None:
    alone = sender(LARGE_BODY + 150_000)
    asking = alone.ask(crowded, path)
    await wait_until(lambda: crowded.litestar.state.bodies.n_bytes == 150_000)
    other = sender(LARGE_BODY + 1)
    await other.ask(crowded, path)
    assert json.loads(other.sent[1]["body"]) == {"error": TOO_MANY}
    alone.may_end.set()
    await asking
    assert crowded.service.refusals.counts[Reason.QUEUE_FULL] == 1
    assert crowded.litestar.state.bodies.n_bytes == 0


async def test_a_client_that_leaves_in_the_middle_of_its_body_gives_its_room_back(crowded: Gateway, path: str) -> None:
    leaving = sender(LARGE_BODY + 60_000)
    asking = leaving.ask(crowded, path)
    await wait_until(lambda: crowded.litestar.state.bodies.n_bytes == 60_000)
    leaving.has_left.set()
    leaving.may_end.set()
    await asking
    assert crowded.litestar.state.bodies.n_bytes == 0


@pytest.mark.parametrize("n_more", [60_000, -2], ids=["large", "small"])
async def test_the_bytes_of_a_body_are_let_go_before_its_request_is_answered(
    path: str, n_more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ScriptedEngine([[]])
    engine.loaded.set()
    app = create_app(engine.as_engine(), Settings(max_body=8 << 20))
    requests: list[json_request.JsonRequest] = []
    read = json_request.JsonRequest.json

    async def noted(request: json_request.JsonRequest) -> Json:
        requests.append(request)
        return await read(request)

    monkeypatch.setattr(json_request.JsonRequest, "json", noted)
    await app.service.lifecycle.start()
    waiting = sender(LARGE_BODY + n_more)
    waiting.may_end.set()
    asking = waiting.ask(app, path)
    await wait_until(lambda: engine.streams != [])
    [request] = requests
    assert request._body is Empty
    assert request._connection_state.body is Empty
    assert app.litestar.state.bodies.n_bytes == 0
    waiting.has_left.set()
    await asking
    await app.service.stop()
