"""The application over a scripted engine, with some settings."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx
from litestar.testing import AsyncTestClient

from tests.server.matchers import Json
from tests.server.scripted import ScriptedEngine, Step
from weft.server import create_app
from weft.settings import Settings


@asynccontextmanager
async def serving(*scripts: Sequence[Step] | Exception, **settings: Json) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, once its model is loaded."""
    engine = ScriptedEngine(*scripts)
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine(), Settings.of(settings))) as client:
        yield client
