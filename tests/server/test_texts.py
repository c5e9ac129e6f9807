"""Work on texts: none keeps other work waiting, what cannot fit is not read, and what nobody waits for is not begun."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from granian.constants import Interfaces
from granian.server.embed import Server as EmbeddedServer
from litestar.testing import AsyncTestClient
from litestar.types import HTTPReceiveMessage, Message

import weft
from tests.helpers import niceness, niceness_of_computing, wait_until
from tests.server.conftest import answers
from tests.server.live import free_port
from tests.server.matchers import Json
from tests.server.scripted import ScriptedEngine, connect, finished
from weft.server import create_app, executor
from weft.server.errors import ClientDisconnectedError
from weft.server.executor import VERY_LONG_TEXT, Purpose
from weft.server.gateway import Gateway
from weft.server.refusals import Reason
from weft.server.static import Files
from weft.server.streaming.client_timeouts import ClientTimeouts
from weft.settings import Settings
from weft.work.threads import LONG_TEXT

LONG = "a" * (LONG_TEXT + 1)


class SlowEngine(ScriptedEngine):
    """Tokenizes a text that begins with `b` only when it is let."""

    def __init__(self, *scripts: Any) -> None:  # noqa: ANN401 (as the scripted one's)
        super().__init__(*scripts)
        self.may_go_on = threading.Event()
        self.begun: list[str] = []
        self.limits.n_ctx_slot = 2**30

    def tokenize(self, text: str, **more: bool) -> list[int]:
        self.begun.append(text)
        if text.startswith("b"):
            assert self.may_go_on.wait(20), "nobody has let it"
        return super().tokenize(text, **more)


@asynccontextmanager
async def running(engine: ScriptedEngine, **settings: Json) -> AsyncIterator[tuple[httpx.AsyncClient, Gateway]]:
    """A client that asks one thing after the other."""
    engine.loaded.set()
    app = create_app(engine.as_engine(), Settings(**settings))
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        yield client, app


class Server:
    """The application on this event loop, so that several clients ask at once."""

    def __init__(self, app: Gateway) -> None:
        self.counts = app.service.refusals
        self.app = app

    async def post(self, path: str, body: Json) -> int:
        """The status of the answer."""
        sent = await connect(self.app, path, body, lambda _: False)
        return int(sent[0]["status"])

    async def get(self, path: str) -> int:
        """The status of the answer."""
        sent: list[Json] = []
        arrived = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> Json:
            for message in arrived:
                return message
            return await asyncio.get_running_loop().create_future()

        async def send(message: Json) -> None:
            sent.append(message)

        scope: Json = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [], "http_version": "1.1"}
        await self.app(scope, receive, send)
        return int(sent[0]["status"])

    async def post_and_leave(self, path: str, body: Json) -> list[Json]:
        """What is sent to a client that leaves as soon as it has asked."""
        return await connect(self.app, path, body, lambda _: True)


@asynccontextmanager
async def serving_many(engine: SlowEngine, **settings: Json) -> AsyncIterator[Server]:
    engine.loaded.set()
    app = create_app(engine.as_engine(), Settings(**settings))
    await app.service.lifecycle.start()
    try:
        yield Server(app)
    finally:
        engine.may_go_on.set()
        await app.service.stop()


@pytest.fixture
def slow() -> SlowEngine:
    return SlowEngine([[finished(0)], []], [[finished(0)], []])


def is_refused_for_length(answer: httpx.Response, n_least: int) -> bool:
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["n_prompt_tokens"]) == (400, "exceed_context_size_error", n_least)
    assert error["message"].startswith(f"request (at least {n_least} tokens) exceeds the available context size (64 tokens)")
    return True


def pieces_of_four() -> ScriptedEngine:
    """An engine with a context of 64 tokens that stand for 4 bytes at most."""
    engine = ScriptedEngine()
    engine.limits.n_ctx_slot = 64
    engine.model.longest_piece = 4
    return engine


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/completion", {"prompt": "a" * 256}),
        ("/completion", {"prompt": ["a" * 200, *range(14)]}),
        ("/completion", {"prompt": ["a", "a" * 256]}),
        ("/v1/completions", {"prompt": "a" * 256}),
        ("/prefixes", {"prompt": "a" * 256}),
        ("/score", {"prompt": "a" * 200, "continuations": ["b" * 56]}),
    ],
    ids=["llamacpp", "with tokens", "one of two", "openai", "pin", "score"],
)
async def test_a_prompt_that_cannot_fit_is_not_tokenized(route: str, body: Json) -> None:
    engine = pieces_of_four()
    async with running(engine) as (client, app):
        assert is_refused_for_length(await client.post(route, json=body), 64)
        assert app.service.refusals.counts[Reason.CONTEXT_TOO_LONG] == 1
    assert engine.threads == set()


async def test_a_prompt_that_could_fit_is_tokenized() -> None:
    engine = ScriptedEngine()
    engine.limits.n_ctx_slot = 64
    engine.model.longest_piece = 4
    async with running(engine) as (client, _):
        assert (await client.post("/completion", json={"prompt": "a" * 252})).status_code == 400
    assert len(engine.refused_on) == 1, "by the engine, which counts tokens"


ROUTES = ["/v1/chat/completions", "/apply-template"]


@pytest.mark.parametrize("route", ROUTES)
async def test_more_messages_than_the_context_has_tokens_are_not_rendered(route: str) -> None:
    engine = ScriptedEngine()
    engine.limits.n_ctx_slot = 64
    async with running(engine, chat_template="{{ raise_exception('it is rendered') }}") as (client, _):
        answer = await client.post(route, json={"messages": [{"role": "user", "content": ""}] * 5000})
    assert is_refused_for_length(answer, 5000)
    assert engine.threads == set()


@pytest.mark.parametrize("route", ROUTES)
async def test_a_chat_that_cannot_fit_is_neither_rendered_to_its_end_nor_tokenized(route: str) -> None:
    engine = pieces_of_four()
    template = "{{ told * messages | length }}{% for m in messages %}{{ raise_exception('it goes on') }}{% endfor %}"
    body = {"messages": [{"role": "user", "content": ""}] * 10, "chat_template_kwargs": {"told": "a" * 26}}
    async with running(engine, chat_template=template) as (client, _):
        assert is_refused_for_length(await client.post(route, json=body), 65)
    assert engine.threads == set()


async def test_an_answer_that_goes_on_counts_too() -> None:
    engine = pieces_of_four()
    async with running(engine, chat_template="{% for m in messages %}{{ m.content }}{% endfor %}") as (client, _):
        body = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a" * 256}]}
        assert is_refused_for_length(await client.post("/v1/chat/completions", json=body), 65)


async def test_stretches_are_read_only_as_long_as_they_fit() -> None:
    engine = ScriptedEngine()
    engine.limits.n_ctx_slot = 64
    engine.model.control_tokens = lambda: [ord("<")]
    async with running(engine, chat_template="{% for m in messages %}{{ m.content }}{% endfor %}") as (client, _):
        answer = await client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "<" * 500}]})
    assert is_refused_for_length(answer, 64)


SLOW = {"content": "b" + LONG}


@pytest.mark.parametrize("body", [{"prompt": LONG}, {"prompt": "a", "grammar": 'root ::= "a"'}], ids=["a prompt", "a grammar"])
async def test_a_request_does_not_wait_for_texts_that_are_tokenized(slow: SlowEngine, body: Json) -> None:
    async with serving_many(slow) as server:
        waiting = [asyncio.create_task(server.post("/tokenize", SLOW)) for _ in range(8)]
        await wait_until(lambda: slow.begun != [])
        async with asyncio.timeout(5):
            assert await server.post("/completion", body) == 200
        slow.may_go_on.set()
        assert await asyncio.gather(*waiting) == [200] * 8


async def test_a_long_text_does_not_wait_for_a_very_long_one(slow: SlowEngine) -> None:
    async with serving_many(slow) as server:
        waiting = asyncio.create_task(server.post("/tokenize", {"content": "b" + "a" * VERY_LONG_TEXT}))
        await wait_until(lambda: slow.begun != [])
        async with asyncio.timeout(5):
            assert await server.post("/tokenize", {"content": LONG}) == 200
        slow.may_go_on.set()
        assert await waiting == 200


async def test_health_needs_no_thread_where_files_are_served(
    slow: SlowEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_many(slow, static_path=str(tmp_path)) as server:
        is_looking = threading.Event()

        def find(*_: object) -> None:
            is_looking.set()
            assert slow.may_go_on.wait(20), "nobody has let it"

        monkeypatch.setattr(Files, "_find", find)
        looking = asyncio.create_task(server.get("/a"))
        await wait_until(is_looking.is_set)
        for path in ("/health", "/v1/health"):
            async with asyncio.timeout(5):
                assert await server.get(path) == 200
        slow.may_go_on.set()
        assert await looking == 404


@pytest.mark.parametrize(("route", "name"), [("/tokenize", "content"), ("/completion", "prompt"), ("/prefixes", "prompt")])
async def test_what_a_client_has_left_is_not_begun(slow: SlowEngine, route: str, name: str) -> None:
    purpose = "/tokenize" if route == "/tokenize" else "/completion"
    async with serving_many(slow) as server:
        before = asyncio.create_task(server.post(purpose, SLOW | {"prompt": SLOW["content"]}))
        await wait_until(lambda: slow.begun != [])
        async with asyncio.timeout(5):
            assert await server.post_and_leave(route, {name: "c" + LONG}) == []
        slow.may_go_on.set()
        assert await before == 200
        # What is asked now comes after all that was asked before.
        assert await server.post(purpose, {"content": "d" + LONG, "prompt": "d" + LONG}) == 200
    assert [text[0] for text in slow.begun] == ["b", "d"]


async def test_beyond_what_may_wait_texts_are_refused(slow: SlowEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_many(slow) as server:
        # Prompts wait for the chat template, which is compiled on their thread.
        assert await server.post("/completion", {"prompt": LONG}) == 200
        monkeypatch.setattr(executor, "MAX_WAITING", 2 * len(SLOW["content"]))
        waiting = [asyncio.create_task(server.post("/tokenize", SLOW)) for _ in range(2)]
        await wait_until(lambda: slow.begun != [])
        assert await server.post("/tokenize", {"content": LONG}) == 429
        assert server.counts.counts[Reason.TEXTS_WAITING] == 1
        # Others have room of their own.
        assert await server.post("/completion", {"prompt": LONG}) == 200
        slow.may_go_on.set()
        assert await asyncio.gather(*waiting) == [200, 200]
        assert await server.post("/tokenize", {"content": LONG}) == 200


async def test_a_client_that_has_left_makes_room(slow: SlowEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "MAX_WAITING", 2 * len(SLOW["content"]))
    async with serving_many(slow) as server:
        waiting = asyncio.create_task(server.post("/tokenize", SLOW))
        await wait_until(lambda: slow.begun != [])
        for n_left in range(1, 4):
            assert await server.post_and_leave("/tokenize", {"content": LONG}) == []
            assert server.counts.counts[Reason.CLIENT_LEFT] == n_left
        slow.may_go_on.set()
        assert await waiting == 200


def niceness_of_work() -> int | None:
    """Of the thread that does the engine's work on a text, while there is one."""
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            if (task / "comm").read_text() == "weft-background\n":
                return niceness(int(task.name))
    return None


@pytest.mark.parametrize(
    ("purpose", "size", "levels"),
    [
        # Somebody waits for the first token of a prompt of a usual length; nothing else is as urgent as the next one.
        (executor.Purpose.PROMPT, 1, executor.NICENESS_OF_PROMPTS),
        (executor.Purpose.PROMPT, VERY_LONG_TEXT + 1, executor.NICENESS),
        (executor.Purpose.TEXT, 1, executor.NICENESS),
    ],
)
async def test_work_on_texts_steps_back_for_those_that_compute_but_no_thread_of_pythons_does(
    engine: weft.Engine, purpose: executor.Purpose, size: int, levels: int
) -> None:
    threads = executor.Executor()
    text = "word " * 20_000
    own = niceness(0)
    wanted = min(own + niceness_of_computing() + levels, 19)
    seen: set[int] = set()
    deadline = time.monotonic() + 20

    def work() -> int:
        """Works until it was seen at it."""
        while wanted not in seen and time.monotonic() < deadline:
            engine.model.token_ids(text)
        return niceness(threading.get_native_id())

    working = asyncio.create_task(threads.run_in_thread(purpose, size, work))
    while not working.done():
        seen.add(niceness_of_work() or 0)
        await asyncio.sleep(0.001)
    threads.close()
    assert await working == own
    assert wanted in seen


@pytest.mark.parametrize("how", ["the client leaves", "the caller is cancelled"])
@pytest.mark.parametrize("size", [1, VERY_LONG_TEXT + 1])
async def test_a_text_that_is_being_tokenized_is_given_up_when_nobody_waits_for_it(
    engine: weft.Engine, how: str, size: int
) -> None:
    threads, has_left = executor.Executor(), asyncio.Event()
    begun, may_tokenize = threading.Event(), threading.Event()
    raised: list[Exception] = []

    def work() -> None:
        begun.set()
        may_tokenize.wait()
        try:
            engine.model.token_ids("日" * 40_000)
        except weft.WorkCancelledError as error:
            raised.append(error)

    async def receive() -> HTTPReceiveMessage:
        await has_left.wait()
        return {"type": "http.disconnect"}

    async def send(_: Message) -> None:
        raise AssertionError

    with ClientTimeouts(receive, send, 10, has_body=False):
        caller = asyncio.create_task(threads.run_in_thread(Purpose.PROMPT, size, work))
        await wait_until(begun.is_set)
        if how == "the client leaves":
            has_left.set()
        else:
            caller.cancel()
        with pytest.raises((ClientDisconnectedError, asyncio.CancelledError)):
            await caller
    may_tokenize.set()
    await wait_until(lambda: raised != [])
    threads.close()


@asynccontextmanager
async def listening(app: Gateway) -> AsyncIterator[int]:
    """The port on which Granian serves the application, on this event loop."""
    port = free_port()
    server = EmbeddedServer(app, port=port, interface=Interfaces.ASGINL)
    serving = asyncio.create_task(server.serve())
    await wait_until(lambda: is_listening(port))
    yield port
    server.stop()  # type: ignore[no-untyped-call]
    await serving


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_over_a_connection_too_what_a_client_has_left_is_not_begun_and_makes_room(
    slow: SlowEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "MAX_WAITING", 2 * len(SLOW["content"]))
    async with (
        serving_many(slow) as server,
        listening(server.app) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client,
    ):
        lane = server.app.service.executor._pools[Purpose.TEXT, False]
        waiting = asyncio.create_task(client.post("/tokenize", json=SLOW))
        await wait_until(lambda: slow.begun != [])
        for n_left in range(1, 4):
            leaving = asyncio.create_task(client.post("/tokenize", json={"content": "c" + LONG}))
            await wait_until(lambda: lane.size > len(SLOW["content"]))
            leaving.cancel()
            await wait_until(lambda n=n_left: server.counts.counts[Reason.CLIENT_LEFT] == n)  # type: ignore[misc]
            assert lane.size == len(SLOW["content"])
        slow.may_go_on.set()
        assert (await waiting).status_code == 200
        assert (await client.post("/tokenize", json={"content": "d" + LONG})).status_code == 200
    assert [text[0] for text in slow.begun] == ["b", "d"]
