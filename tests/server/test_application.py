"""What holds for every request, whatever its route: the engine must run, and HEAD is GET without a body."""

import asyncio
from collections.abc import Callable

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.helpers import wait_until
from tests.server.conftest import answers
from tests.server.matchers import Json
from tests.server.scripted import ScriptedEngine
from weft.chat.pipeline import ChatPipeline
from weft.errors import EngineStoppedError
from weft.server import create_app

LOADING = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
STOPPED = {"error": {"code": 503, "message": "the engine has stopped", "type": "unavailable_error"}}

ANY = [("GET", "/health"), ("POST", "/completion"), ("GET", "/v1/models"), ("GET", "/no/such/route"), ("GET", "/completion")]
"""Routes there are, one that there is not, and one with a method that it does not have."""


def errors_of_all_routes(error: Json, status: str) -> list[Json]:
    """What all of these answer: `/health` has a word of 2024 beside the error."""
    return [(503, error | ({"status": status} if route == "/health" else {})) for _, route in ANY]


async def test_also_a_route_or_method_there_is_not_is_503_while_the_model_is_loaded() -> None:
    async with AsyncTestClient(create_app(ScriptedEngine().as_engine())) as client:
        given = [await client.request(method, route) for method, route in ANY]
    assert [(answer.status_code, answer.json()) for answer in given] == errors_of_all_routes(LOADING, "loading model")


async def _is_all_503(client: httpx.AsyncClient) -> None:
    given = [await client.request(method, route) for method, route in ANY]
    assert [(answer.status_code, answer.json()) for answer in given] == errors_of_all_routes(STOPPED, "error")


async def test_every_route_is_503_once_the_engine_has_died_and_that_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine()
    engine.loaded.set()
    died: list[bool] = []
    async with AsyncTestClient(create_app(engine.as_engine(), on_died=lambda: died.append(True))) as client:
        await answers(client, 200)
        engine.is_running = False
        await _is_all_503(client)
        await wait_until(lambda: died == [True])
    assert [record.levelname for record in caplog.records if "the engine has died" in record.message] == ["CRITICAL"]


async def test_an_engine_whose_worker_ended_is_found_dead(caplog: pytest.LogCaptureFixture) -> None:
    engine = weft.Engine(n_slots=1, n_ctx=256, n_threads=1)
    died: list[bool] = []
    async with AsyncTestClient(create_app(engine, on_died=lambda: died.append(True))) as client:
        await answers(client, 200)
        assert engine._native is not None
        engine._native.stop()
        await _is_all_503(client)
        await wait_until(lambda: died == [True])
    assert "the engine has died" in caplog.text


async def test_an_engine_that_is_stopped_with_the_server_has_not_died(caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine()
    engine.loaded.set()
    died: list[bool] = []
    app = create_app(engine.as_engine(), on_died=lambda: died.append(True))
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        await app.service.stop_engine()
        await _is_all_503(client)
        with pytest.raises(AssertionError, match="not so within"):
            await wait_until(lambda: bool(died), 0.6)
    assert "the engine has died" not in caplog.text


def _started_before() -> weft.Engine:
    engine = ScriptedEngine()
    engine.failure = RuntimeError("the engine was already started")
    engine.loaded.set()
    return engine.as_engine()


def _no_such_file() -> weft.Engine:
    return weft.Engine("no-such.gguf")


@pytest.mark.parametrize(
    ("make", "message", "logged"),
    [
        pytest.param(_started_before, "internal error", "RuntimeError: the engine was already started", id="our bug"),
        pytest.param(
            _no_such_file,
            "cannot load the model no-such.gguf: there is no such file",
            "cannot load the model no-such.gguf: there is no such file",
            id="no model",
        ),
    ],
)
async def test_an_engine_that_cannot_be_started_is_logged_and_told(
    make: Callable[[], weft.Engine], message: str, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncTestClient(create_app(make())) as client:
        await answers(client, 500)
        in_log = caplog.text
        answer = await client.get("/no/such/route")
    assert logged in in_log
    assert answer.json() == {"error": {"code": 500, "message": message, "type": "server_error"}}


@pytest.mark.parametrize("route", ["/health", "/v1/models", "/props", "/slots", "/prefixes", "/cache", "/docs", "/openapi.json"])
async def test_head_is_get_without_a_body(client: httpx.AsyncClient, route: str) -> None:
    get, head = await client.get(route), await client.head(route)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers == get.headers


async def test_head_of_a_route_that_takes_only_posts_is_405_without_a_body(client: httpx.AsyncClient) -> None:
    head = await client.head("/completion")
    assert (head.status_code, head.content) == (405, b"")
    # A set of methods: their order says nothing (RFC 9110, section 10.2.1).
    assert sorted(head.headers["allow"].split(", ")) == ["OPTIONS", "POST"]


async def test_a_server_that_is_stopped_while_the_chat_template_is_compiled_logs_no_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def compile_too_late(_: ChatPipeline) -> None:
        loop.call_soon_threadsafe(is_asked.set)
        raise EngineStoppedError

    monkeypatch.setattr(ChatPipeline, "compile", compile_too_late)
    async with AsyncTestClient(create_app(weft.Engine(n_slots=1, n_ctx=256, n_threads=1))) as client:
        await answers(client, 200)
        await is_asked.wait()
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
