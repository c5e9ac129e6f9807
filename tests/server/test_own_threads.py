"""No route waits for threads that others may have taken; who asks about the cache waits in line, and holds nothing meanwhile."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from litestar.routes import HTTPRoute

import weft
from tests.helpers import wait_until
from tests.server.conftest import PROMPT
from tests.server.matchers import Json
from tests.server.scripted import ScriptedEngine
from weft.server import create_app, keyed_lock, slot_files
from weft.server.executor import Executor
from weft.server.gateway import Gateway
from weft.settings import Settings
from weft.work.threads import LONG_TEXT, ThreadPool

N_TAKEN = 64
"""More threads than asyncio has of its own: 32 at most."""

MESSAGES = [{"role": "user", "content": PROMPT}]
LONG = "word " * LONG_TEXT

ROUTES: dict[str, tuple[str, Json, int]] = {
    "POST /completion": ("/completion", {"prompt": PROMPT, "n_predict": 2}, 200),
    "POST /v1/completions": ("/v1/completions", {"prompt": PROMPT, "max_tokens": 2, "grammar": 'root ::= "a"'}, 200),
    "POST /chat/completions": ("/chat/completions", {"messages": MESSAGES, "max_tokens": 2}, 200),
    "GET /lora-adapters": ("/lora-adapters", None, 200),
    "POST /lora-adapters": ("/lora-adapters", [], 200),
    "POST /stream": ("/stream", {"prompt": PROMPT, "num_predict": 2}, 200),
    "POST /infill": ("/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 2}, 200),
    "POST /apply-template": ("/apply-template", {"messages": [{"role": "user", "content": "word " * 2_000}]}, 200),
    "POST /tokenize": ("/tokenize", {"content": LONG}, 200),
    "POST /detokenize": ("/detokenize", {"tokens": [300] * 10_000}, 200),
    "POST /embedding": ("/embedding", {"content": "a"}, 200),
    "POST /v1/embeddings": ("/v1/embeddings", {"input": ["a", "b"]}, 200),
    "POST /rerank": ("/rerank", {"query": "a", "documents": ["b"]}, 501),
    "GET /tokenizer_info": ("/tokenizer_info", None, 200),
    "GET /health": ("/health", None, 200),
    "GET /slots": ("/slots", None, 200),
    "POST /slots/{id_slot:str}": ("/slots/0?action=save", {"filename": "a"}, 200),
    "GET /metrics": ("/metrics", None, 200),
    "GET /props": ("/props", None, 200),
    "POST /props": ("/props", {}, 200),
    "GET /models": ("/models", None, 200),
    "GET /v1/models/{name:path}": ("/v1/models/a", None, 200),
    "POST /prefixes": ("/prefixes", {"prompt": PROMPT}, 200),
    "GET /prefixes": ("/prefixes", None, 200),
    "DELETE /prefixes/{prefix_id:int}": ("/prefixes/99", None, 404),
    "GET /cache": ("/cache", None, 200),
    "POST /score": ("/score", {"prompt": PROMPT, "continuations": [" a", LONG[:100]]}, 200),
    "GET /requests": ("/requests", None, 200),
    "GET /requests/{request_id:str}": ("/requests/a", None, 404),
    "DELETE /requests/{request_id:str}": ("/requests/a", None, 404),
    "DELETE /requests/{request_id:str}/branches/{index:int}": ("/requests/a/branches/0", None, 404),
    "POST /requests/{request_id:str}/branches/{index:int}/fork": ("/requests/a/branches/0/fork", {"n": 2}, 404),
    "POST /chat/completions/input_tokens": ("/chat/completions/input_tokens", {"messages": MESSAGES}, 200),
    "GET /v1/stream": ("/v1/stream?conv_id=a", None, 404),
    "DELETE /v1/stream": ("/v1/stream?conv_id=a", None, 204),
    "POST /v1/streams/lookup": ("/v1/streams/lookup", {"conversation_ids": ["a"]}, 200),
    "POST /responses": ("/responses", {"input": PROMPT, "max_output_tokens": 2}, 200),
    "POST /responses/input_tokens": ("/responses/input_tokens", {"input": LONG}, 400),
    "POST /v1/responses/compact": ("/v1/responses/compact", {"input": PROMPT, "max_output_tokens": 2}, 200),
    "GET /v1/responses/{response_id:str}": ("/v1/responses/a", None, 404),
    "DELETE /v1/responses/{response_id:str}": ("/v1/responses/a", None, 404),
    "POST /v1/responses/{response_id:str}/cancel": ("/v1/responses/a/cancel", None, 404),
    "GET /v1/responses/{response_id:str}/input_items": ("/v1/responses/a/input_items", None, 404),
    "POST /v1/conversations": ("/v1/conversations", {}, 200),
    "GET /v1/conversations/{conversation_id:str}": ("/v1/conversations/a", None, 404),
    "POST /v1/conversations/{conversation_id:str}": ("/v1/conversations/a", {"metadata": {}}, 404),
    "DELETE /v1/conversations/{conversation_id:str}": ("/v1/conversations/a", None, 404),
    "GET /v1/conversations/{conversation_id:str}/items": ("/v1/conversations/a/items", None, 404),
    "POST /v1/conversations/{conversation_id:str}/items": ("/v1/conversations/a/items", {"items": []}, 404),
    "GET /v1/conversations/{conversation_id:str}/items/{item_id:str}": ("/v1/conversations/a/items/b", None, 404),
    "DELETE /v1/conversations/{conversation_id:str}/items/{item_id:str}": ("/v1/conversations/a/items/b", None, 404),
    "GET /documents": ("/documents", None, 200),
    "POST /documents": ("/documents", {"title": "a"}, 201),
    "GET /documents/events": ("/documents/events?max_s=0.01", None, 200),
    "GET /documents/search": ("/documents/search?q=a", None, 200),
    "POST /documents/import": ("/documents/import", {"format": "text", "content": LONG}, 201),
    "GET /documents/{document_id:str}": ("/documents/a", None, 404),
    "PATCH /documents/{document_id:str}": ("/documents/a", {"title": "b"}, 404),
    "DELETE /documents/{document_id:str}": ("/documents/a", None, 404),
    "POST /documents/{document_id:str}/duplicate": ("/documents/a/duplicate", {}, 404),
    "POST /documents/{document_id:str}/resume": ("/documents/a/resume", {}, 404),
    "GET /documents/{document_id:str}/export": ("/documents/a/export", None, 404),
    "GET /documents/{document_id:str}/nodes": ("/documents/a/nodes", None, 404),
    "POST /documents/{document_id:str}/nodes": ("/documents/a/nodes", {"text": LONG}, 404),
    "GET /documents/{document_id:str}/nodes/{node_id:int}": ("/documents/a/nodes/1", None, 404),
    "PATCH /documents/{document_id:str}/nodes/{node_id:int}": ("/documents/a/nodes/1", {"note": "b"}, 404),
    "DELETE /documents/{document_id:str}/nodes/{node_id:int}": ("/documents/a/nodes/1", None, 404),
    "GET /documents/{document_id:str}/nodes/{node_id:int}/tokens": ("/documents/a/nodes/1/tokens", None, 404),
    "POST /documents/{document_id:str}/nodes/{node_id:int}/continue": ("/documents/a/nodes/1/continue", {"prompt": PROMPT}, 404),
    "POST /documents/{document_id:str}/nodes/{node_id:int}/resume": ("/documents/a/nodes/1/resume", {}, 404),
    "POST /documents/{document_id:str}/nodes/{node_id:int}/stop": ("/documents/a/nodes/1/stop", {}, 404),
    "POST /documents/{document_id:str}/nodes/{node_id:int}/split": ("/documents/a/nodes/1/split", {"at": {"token": 1}}, 404),
    "POST /documents/{document_id:str}/nodes/{node_id:int}/merge": ("/documents/a/nodes/1/merge", {}, 404),
    "POST /documents/{document_id:str}/nodes/{node_id:int}/move": ("/documents/a/nodes/1/move", {"parent": None}, 404),
    "POST /v1/messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 2}, 200),
    "POST /v1/messages/count_tokens": ("/v1/messages/count_tokens", {"messages": MESSAGES}, 200),
    "POST /api/generate": ("/api/generate", {"prompt": PROMPT, "options": {"num_predict": 2}}, 200),
    "POST /api/chat": ("/api/chat", {"messages": MESSAGES, "options": {"num_predict": 2}}, 200),
    "POST /api/embed": ("/api/embed", {"input": ["a", "b"]}, 200),
    "POST /api/embeddings": ("/api/embeddings", {"prompt": "a"}, 200),
    "GET /api/tags": ("/api/tags", None, 200),
    "POST /api/show": ("/api/show", {"model": "a"}, 200),
    "GET /api/ps": ("/api/ps", None, 200),
    "GET /api/version": ("/api/version", None, 200),
    "POST /api/blobs/{digest:str}": ("/api/blobs/sha256:0", None, 501),
    "DELETE /api/delete": ("/api/delete", {"model": "a"}, 501),
    "GET /openapi.json": ("/openapi.json", None, 200),
}
"""What is asked of each route, and the status of its answer."""

BESIDES = {
    "a file": ("GET", "/a.txt", None),
    "a slot that is restored": ("POST", "/slots/1?action=restore", {"filename": "a"}),
    "a slot that is erased": ("POST", "/slots/0?action=erase", None),
}


@asynccontextmanager
async def serving(app: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client on this event loop, which can ask several things at once."""
    await app.service.lifecycle.start()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(cast("Any", app)), base_url="http://a") as client:
        yield client
    await app.service.stop()


@pytest.fixture(scope="module")
async def crowded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """The application where asyncio's own threads are all taken."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "a.txt").write_text("a")
    may_go_on, n_begun = threading.Event(), threading.Semaphore(0)

    def take() -> None:
        n_begun.release()
        may_go_on.wait()

    loop = asyncio.get_running_loop()
    taken = [loop.run_in_executor(None, take) for _ in range(N_TAKEN)]
    n_begun.acquire()
    settings = Settings(
        static_path=str(folder),
        slot_save_path=str(folder),
        metrics=True,
        props_endpoint=True,
        documents_path=str(tmp_path_factory.mktemp("documents") / "a.sqlite"),
    )
    engine = weft.Engine(n_slots=2, n_ctx=2048, kv_unified=True, n_threads=1)
    try:
        async with serving(create_app(engine, settings)) as client:
            await client.post("/completion", json={"prompt": PROMPT, "n_predict": 2, "id_slot": 0})
            yield client
            assert not any(future.done() for future in taken)
    finally:
        may_go_on.set()
        await asyncio.gather(*taken)


def test_every_route_is_asked() -> None:
    app = create_app(ScriptedEngine().as_engine())
    first: dict[object, str] = {}
    for route in sorted(app.litestar.routes, key=lambda route: route.path):
        if isinstance(route, HTTPRoute):
            for method in route.methods - {"OPTIONS"}:
                first.setdefault((method, route.route_handler_map[method][0].fn), f"{method} {route.path}")
    assert {name for name in first.values() if "/openapi.json/" not in name} == set(ROUTES)


@pytest.mark.parametrize("route", ROUTES)
async def test_a_route_answers_while_asyncios_own_threads_are_taken(crowded: httpx.AsyncClient, route: str) -> None:
    path, body, status = ROUTES[route]
    async with asyncio.timeout(10):
        answer = await crowded.request(route.split(maxsplit=1)[0], path, json=body)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize("name", BESIDES)
async def test_so_do_files(crowded: httpx.AsyncClient, name: str) -> None:
    method, path, body = BESIDES[name]
    async with asyncio.timeout(10):
        answer = await crowded.request(method, path, json=body)
    assert answer.status_code == 200, answer.text


async def test_a_slow_disk_holds_no_look_at_the_cache_up(
    crowded: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    may_go_on, begun = threading.Event(), threading.Event()

    def slow(*_: object) -> Path:
        begun.set()
        may_go_on.wait()
        return tmp_path / "b"

    monkeypatch.setattr(slot_files, "_inside", slow)
    await crowded.post("/completion", json={"prompt": PROMPT, "n_predict": 2, "id_slot": 0})
    saving = asyncio.create_task(crowded.post("/slots/0?action=save", json={"filename": "b"}))
    async with asyncio.timeout(10):
        await wait_until(begun.is_set)
        assert (await crowded.get("/cache")).status_code == 200
        may_go_on.set()
        assert (await saving).status_code == 200, (await saving).text


class Curious(ScriptedEngine):
    """Answers a look when it is let, and counts those that wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()
        self.n_asked = 0

    async def prefixes(self) -> list[weft.Prefix]:
        self.n_asked += 1
        await self.may_answer.wait()
        return []

    async def erase_slot(self, slot: int) -> int:
        self.n_asked += 1
        if slot == 0:
            await self.may_answer.wait()
        return 0


async def test_looks_wait_in_line_before_they_ask_and_beyond_so_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_lock, "MAX_LOCK_REQUESTS", 3)
    engine = Curious()
    engine.loaded.set()
    async with serving(create_app(engine.as_engine())) as client, asyncio.timeout(10):
        waiting = [asyncio.create_task(client.get("/prefixes")) for _ in range(3)]
        await wait_until(lambda: engine.n_asked > 0)
        assert (await client.get("/prefixes")).status_code == 429
        assert engine.n_asked == 1
        engine.may_answer.set()
        assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200] * 3


async def test_who_waits_for_a_slot_holds_none_up_who_wants_another() -> None:
    engine = Curious()
    files = slot_files.SlotFiles(engine.as_engine(), None, Executor())
    waiting = [asyncio.create_task(files.erase(0)) for _ in range(3)]
    async with asyncio.timeout(10):
        await wait_until(lambda: engine.n_asked > 0)
        assert await files.erase(1) == 0
        assert engine.n_asked == 2
        engine.may_answer.set()
        assert await asyncio.gather(*waiting) == [0] * 3


async def test_an_engine_works_for_one_purpose_while_another_waits(engine: weft.Engine) -> None:
    may_go_on = threading.Event()
    for purpose in set(ThreadPool) - {ThreadPool.QUERY}:
        taken = [asyncio.create_task(engine._threads.run(purpose, may_go_on.wait)) for _ in range(N_TAKEN)]
        async with asyncio.timeout(10):
            assert isinstance(await engine.prefixes(), list)
    may_go_on.set()
    await asyncio.gather(*taken)
