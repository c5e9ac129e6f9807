"""The application over a scripted engine, with some settings."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

import httpx
from litestar.testing import AsyncTestClient

from tests.server.matchers import Json
from tests.server.scripted import ScriptedEngine, Step
from weft.server import create_app
from weft.server.gateway import Gateway
from weft.settings import Settings

APPLICATIONS: WeakKeyDictionary[httpx.AsyncClient, Gateway] = WeakKeyDictionary()
"""The application of each client that `serving` has made."""


@asynccontextmanager
async def serving(*scripts: Sequence[Step] | Exception, **settings: Json) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, once its model is loaded."""
    engine = ScriptedEngine(*scripts)
    engine.loaded.set()
    app = create_app(engine.as_engine(), Settings.of(settings))
    async with AsyncTestClient(app) as client:
        APPLICATIONS[client] = app
        yield client


def in_shape_of(path: str, body: Json) -> Json:
    """An error of ours as the dialect of this path writes it."""
    error = body["error"]
    if path.startswith("/api/"):
        return {"error": error["message"]}
    if path.startswith("/v1/messages"):
        kind = {401: "authentication_error", 503: "overloaded_error"}[error["code"]]
        return {"type": "error", "error": {"type": kind, "message": error["message"]}}
    return body
