"""Routes below a path of another Litestar application."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from litestar import Litestar, asgi, get
from litestar.testing import AsyncTestClient

import weft
from tests.helpers import wait_until
from tests.server.matchers import Json
from weft.server import create_app
from weft.server.gateway import Gateway
from weft.settings import Settings

# Litestar recommends to set `copy_scope`; both values work, and applications may leave it unset.
pytestmark = pytest.mark.filterwarnings("ignore:.*copy_scope:DeprecationWarning")

KEY = {"authorization": "Bearer a"}


@get("/")
async def own() -> str:
    """Answers for the application around ours."""
    return "own"


@asynccontextmanager
async def mounted(**settings: Json) -> AsyncIterator[tuple[httpx.AsyncClient, Gateway]]:
    """A client of an application with our routes below /llm, once the model is loaded."""
    llm = create_app(weft.Engine(n_slots=2, n_ctx=512, n_threads=1), Settings.of(settings))
    around = Litestar([own, asgi("/llm", is_mount=True)(llm)], lifespan=[lambda _: llm.lifespan()], openapi_config=None)
    async with AsyncTestClient(around) as client:
        await wait_until(lambda: llm.service.lifecycle.refusal() is None)
        yield client, llm


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 200),
        ("/llm/health", {}, 200),
        ("/llm/props", {}, 401),
        ("/llm/props", KEY, 200),
        ("/llm/nowhere", {}, 401),
        ("/llm/nowhere", KEY, 404),
        ("/nowhere", {}, 404),
    ],
)
async def test_keys_and_unknown_paths_below_a_mount(path: str, headers: dict[str, str], status: int) -> None:
    async with mounted(api_keys=("a",)) as (client, _):
        answer = await client.get(path, headers=headers)
    assert answer.status_code == status
    if status >= 400 and path.startswith("/llm"):
        assert answer.json()["error"]["code"] == status


async def test_an_error_below_a_mount_has_the_shape_of_its_api() -> None:
    async with mounted() as (client, _):
        answer = await client.post("/llm/api/chat", json={"messages": 1})
    assert (answer.status_code, type(answer.json()["error"])) == (400, str)


async def test_a_completion_is_streamed_below_a_mount() -> None:
    async with mounted() as (client, _):
        body = {"prompt": "Once upon a time,", "n_predict": 3, "stream": True}
        text = (await client.post("/llm/completion", json=body)).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    assert [event["stop"] for event in events][-1] is True
    assert events[-1]["tokens_predicted"] == 3


async def test_the_engine_stops_with_the_application_around_it() -> None:
    async with mounted() as (client, llm):
        assert (await client.get("/llm/health")).status_code == 200
    assert llm.service.lifecycle.refusal() is not None
    with pytest.raises(weft.EngineStoppedError):
        await asyncio.wait_for(llm.service.engine.complete("a", max_tokens=1), 5)
