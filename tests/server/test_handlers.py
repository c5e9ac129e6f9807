"""Handlers, which are looked at when they are first asked for."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import pytest
from litestar import Litestar, Router
from litestar._kwargs import KwargsModel
from litestar.connection import ASGIConnection
from litestar.exceptions import ImproperlyConfiguredException, PermissionDeniedException
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.params import FromQuery
from litestar.routes import HTTPRoute
from litestar.testing import TestClient

from tests.server.scripted import ScriptedEngine
from weft.server import create_app
from weft.server.handlers import get

LOOK_S = 0.01
"""So long that a second thread comes meanwhile."""


def dependencies(app: Litestar) -> dict[tuple[str, str], list[set[str]]]:
    """The names of what is made for each path and method, in the order in which it is made."""
    maps = {route.path: route.route_handler_map for route in app.routes if isinstance(route, HTTPRoute)}
    models = {(path, method): model for path, each in maps.items() for method, (_, model) in each.items()}
    return {at: [{each.key for each in batch} for batch in model.dependency_batches] for at, model in models.items()}


@get("/greeting")
async def greeting(name: FromQuery[str]) -> str:
    """Greets."""
    return f"hello {name}"


@get("/wrong")
async def wrong(socket: str) -> str:
    """Takes what no handler of HTTP may."""
    return socket


def test_a_handler_is_looked_at_once_and_not_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    look = HTTPRouteHandler.create_kwargs_model

    def told(handler: HTTPRouteHandler, path_parameters: dict[str, Any]) -> KwargsModel:
        looked.append(handler.handler_name)
        return look(handler, path_parameters)

    monkeypatch.setattr(HTTPRouteHandler, "create_kwargs_model", told)
    with TestClient(Litestar([greeting, wrong], openapi_config=None)) as client:
        looked.remove("options_handler")  # Litestar's own.
        looked.remove("options_handler")
        assert looked == []
        assert [client.get("/greeting", params={"name": name}).text for name in ("Ada", "Bo")] == ["hello Ada", "hello Bo"]
        assert client.get("/greeting").status_code == 400
    assert looked == ["greeting"]


def test_what_is_read_of_a_handler_before_it_is_looked_at_holds_for_the_first_request() -> None:
    def refuse(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        raise PermissionDeniedException(connection.route_handler.opt["why"])

    router = Router("/", route_handlers=[greeting], guards=[refuse], opt={"why": "it is closed"})
    with TestClient(Litestar([router], openapi_config=None)) as client:
        answer = client.get("/greeting", params={"name": "Ada"})
    assert (answer.status_code, answer.json()["detail"]) == (403, "it is closed")


def test_what_litestar_refuses_of_a_handler_is_refused_when_it_is_asked_for() -> None:
    app = Litestar([wrong], openapi_config=None)
    with pytest.raises(ImproperlyConfiguredException, match="socket"):
        dependencies(app)


def test_litestar_refuses_no_handler_of_the_application() -> None:
    made = dependencies(create_app(ScriptedEngine().as_engine()))
    assert made["/v1/completions", "POST"] == [{"service"}, {"caller"}, {"event_formats"}]


def test_the_document_takes_nothing_from_handlers_that_are_asked_for_after_it() -> None:
    before, after = (create_app(ScriptedEngine().as_engine()) for _ in range(2))
    assert after.openapi_schema.to_schema()["paths"]
    assert dependencies(after) == dependencies(before)


def test_no_two_threads_look_at_handlers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looking = Lock()
    look = HTTPRouteHandler.create_kwargs_model

    def slow(handler: HTTPRouteHandler, path_parameters: dict[str, Any]) -> KwargsModel:
        assert looking.acquire(blocking=False)
        time.sleep(LOOK_S)
        looking.release()
        return look(handler, path_parameters)

    apps = [Litestar([greeting], openapi_config=None) for _ in range(2)]
    monkeypatch.setattr(HTTPRouteHandler, "create_kwargs_model", slow)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(dependencies, [*apps, *apps]))
    assert found == [found[0]] * 4
