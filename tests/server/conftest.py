"""Fixtures of the HTTP tests: the application in this process, and a server in a process of its own."""

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.server.live import LiveServer
from weft.server import create_app
from weft.settings import Settings

PROMPT = "Once upon a time,"


@pytest.fixture(scope="session")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """The application over the demo model, in this process."""
    settings = Settings(alias="storyteller", slots=4)
    app = create_app(weft.Engine(slots=4, ctx_size=4096, kv_unified=True), settings)
    async with AsyncTestClient(app) as client:
        while (await client.get("/health")).status_code == 503:
            pass
        yield client


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with four slots over the demo model, in a process of its own."""
    with LiveServer(tmp_path_factory.mktemp("live") / "log", "-np", "4", "-c", "4096", "--kv-unified") as server:
        server.wait_until_ready()
        yield server
        assert "ERROR" not in server.log
        assert "WARNING" not in server.log


@pytest.fixture(params=["llamacpp", "openai"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["stream", "whole"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)
