"""Texts with long runs of like characters, for vocabularies whose words are found by regular expressions."""

import threading
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.engine.tiny_models import write_tiny_model
from tests.server.conftest import answers
from weft.server import create_app
from weft.settings import Settings

RUNS = ["a", " ", ".", "中", "\n"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("words") / "tekken.gguf"
    write_tiny_model("attention", path, splitter="tekken")
    return path


@pytest.fixture
async def client(path: Path) -> AsyncIterator[httpx.AsyncClient]:
    engine = weft.Engine(path, n_slots=1, n_ctx=512, n_threads=1)
    async with AsyncTestClient(create_app(engine, Settings())) as client:
        await answers(client, 200)
        yield client


@pytest.mark.parametrize("run", RUNS)
async def test_a_run_that_is_too_long_is_refused_and_a_shorter_one_is_read(client: httpx.AsyncClient, run: str) -> None:
    refused = await client.post("/tokenize", json={"content": run * 1_000_000})
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["param"]) == (400, "invalid_request_error", "text")
    assert "1000000 consecutive characters of one class" in error["message"]
    assert "at most 262144" in error["message"]
    read = await client.post("/tokenize", json={"content": run * 100_000})
    assert len(read.json()["tokens"]) == 100_000 * len(run.encode())


async def test_a_thread_with_a_small_stack_reads_a_long_run(path: Path) -> None:
    lengths: list[int] = []
    async with weft.Engine(path, n_slots=1, n_ctx=512, n_threads=1) as engine:
        usual = threading.stack_size(512 << 10)
        try:
            thread = threading.Thread(target=lambda: lengths.append(len(engine.tokenize("a" * 200_000, add_special=False))))
            thread.start()
        finally:
            threading.stack_size(usual)
        thread.join()
    assert lengths == [200_000]
