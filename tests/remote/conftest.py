"""Two replicas of the demo model in this process, the engine that stands for both, and the server over it."""

from collections.abc import AsyncIterator

import httpx
import pytest
from litestar.testing import AsyncTestClient

from tests.helpers import wait_until
from tests.remote.local_fleet import KEY, LocalFleet
from weft.config import EngineConfig
from weft.ray.remote import RemoteEngine
from weft.ray.replica import Replica
from weft.server import create_app
from weft.settings import Settings

CONFIG = EngineConfig(n_slots=2, n_ctx=2048, kv_unified=True, n_threads=1)


@pytest.fixture
async def fleet() -> AsyncIterator[LocalFleet]:
    """The replicas `a` and `b`."""
    replicas = {name: Replica(name, None, CONFIG, KEY) for name in "ab"}
    for replica in replicas.values():
        await replica.start()
    yield LocalFleet(replicas)
    for replica in replicas.values():
        await replica.close()


@pytest.fixture
async def remote(fleet: LocalFleet) -> AsyncIterator[RemoteEngine]:
    """The engine that stands for both."""
    engine = RemoteEngine(fleet, None, CONFIG, KEY)
    await engine.start()
    await fleet.look()
    yield engine
    await engine.close()


@pytest.fixture
async def client(fleet: LocalFleet) -> AsyncIterator[httpx.AsyncClient]:
    """The application that serves one engine, over both."""
    app = create_app(RemoteEngine(fleet, None, CONFIG, KEY), Settings(alias="storyteller", metrics=True, engine=CONFIG))
    async with AsyncTestClient(app) as client:
        await wait_until(lambda: app.service.lifecycle.refusal() is None)
        await fleet.look()
        yield client
