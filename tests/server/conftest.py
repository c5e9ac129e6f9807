"""Fixtures of the HTTP tests: the application in this process, and a server in a process of its own."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.server.live import LiveServer
from weft.server import create_app
from weft.settings import Settings

PROMPT = "Once upon a time,"


async def answers(client: httpx.AsyncClient, status: int, deadline_s: float = 120) -> None:
    """Waits until `/health` has this status."""
    async with asyncio.timeout(deadline_s):
        while (await client.get("/health")).status_code != status:
            pass


@pytest.fixture(scope="session", autouse=True)
def hangups_are_heard() -> Iterator[None]:
    """Tests that run under nohup would hand their deafness to SIGHUP on to every server that they start."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="session")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """The application over the demo model, in this process; without drafts, which depend on measured times."""
    # One server at a time can use a file of documents.
    settings = Settings(alias="storyteller", documents_path=str(tmp_path_factory.mktemp("documents") / "documents.sqlite"))
    app = create_app(weft.Engine(n_slots=4, n_ctx=4096, kv_unified=True, n_threads=1, speculation="off"), settings)
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        yield client


@pytest.fixture(scope="session")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveServer]:
    """A server with four slots over the demo model, in a process of its own; without drafts, as `client`."""
    flags = ("-np", "4", "-c", "4096", "--kv-unified", "--spec-type", "none")
    folder = tmp_path_factory.mktemp("live")
    with LiveServer(folder / "log", "--documents", str(folder / "documents.sqlite"), *flags) as server:
        await server.ready()
        yield server
        assert "ERROR" not in server.log
        assert "WARNING" not in server.log


@pytest.fixture(params=["/completion", "/v1/completions"], ids=["llamacpp", "openai"])
def path(request: pytest.FixtureRequest) -> str:
    """The route of either dialect."""
    return str(request.param)
