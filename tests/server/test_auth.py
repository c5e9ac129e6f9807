"""Keys: what needs one, how it is shown, and where keys come from."""

import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.server.conftest import answers
from tests.server.matchers import Json
from tests.server.scripted import ScriptedEngine
from tests.server.serving import in_shape_of, serving
from weft import InvalidConfigError
from weft.server import create_app
from weft.server.auth import Keys
from weft.server.page import DOCS
from weft.settings import Settings
from weft.settings.keys import keys_of

UNAUTHORIZED: Json = {"error": {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}}


@pytest.fixture(scope="module")
async def locked() -> AsyncIterator[httpx.AsyncClient]:
    """A server with two keys."""
    async with serving(api_keys=("first key", "zwölf")) as client:
        yield client


def every_route() -> list[tuple[str, str]]:
    """Method and path of each route, in an order that every process finds, and of some that there are not."""
    app = create_app(ScriptedEngine().as_engine())
    routes = [
        (method, route.path_format) for route in app.litestar.routes for method in sorted(route.methods) if method != "OPTIONS"
    ]
    return [*sorted(routes), ("GET", "/no/such/route"), ("GET", "/health/"), ("POST", "/x")]


PATHS = ("/health", "/v1/health", "/models", "/v1/models", "/", *DOCS, "/openapi.json")
PUBLIC = [("GET", path) for path in PATHS] + [("HEAD", "/")]


@pytest.mark.parametrize(("method", "path"), [route for route in every_route() if route not in PUBLIC])
async def test_every_route_but_health_the_model_and_the_pages_needs_a_key(
    locked: httpx.AsyncClient, method: str, path: str
) -> None:
    answer = await locked.request(method, path, content=b"{}")
    assert (answer.status_code, answer.json()) == (401, in_shape_of(path, UNAUTHORIZED))
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_health_the_model_and_the_pages_need_none() -> None:
    engine = weft.Engine(n_slots=1, n_ctx=256, n_threads=1)
    async with AsyncTestClient(create_app(engine, Settings(api_keys=("k",)))) as client:
        await answers(client, 200)
        for method, path in PUBLIC:
            assert (await client.request(method, path)).status_code == 200, path
        assert (await client.get("/v1/models/any")).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first key"},
        {"authorization": "bearer  first key"},
        {"authorization": "first key"},
        {"x-api-key": "first key"},
        {"x-api-key": "Bearer first key"},
        {"authorization": "Bearer zwölf"},
        {"authorization": "Basic dXNlcjpwYXNz", "x-api-key": "zwölf"},
    ],
    ids=str,
)
async def test_any_key_opens_it_in_either_header(locked: httpx.AsyncClient, headers: dict[str, str]) -> None:
    shown = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert (await locked.get("/no/such/route", headers=shown)).status_code == 404


@pytest.mark.parametrize("key", ["", "first", "first ke", "first key ", "First key", "first keys", "first key,zwölf", "zw"])
@pytest.mark.parametrize("header", [(b"authorization", b"Bearer "), (b"x-api-key", b"")], ids=["bearer", "x-api-key"])
def test_nothing_but_a_whole_key_opens_it(key: str, header: tuple[bytes, bytes]) -> None:
    name, before = header
    fits = key.strip() == "first key"
    assert Keys(["first key", "zwölf"]).allow("/props", [(name, before + key.encode())]) is fits


async def test_a_header_that_is_no_text_is_no_key(locked: httpx.AsyncClient) -> None:
    answer = await locked.get("/props", headers=[(b"authorization", b"Bearer \xff\xfe")])
    assert answer.status_code == 401


async def test_without_keys_it_is_open() -> None:
    async with serving() as client:
        assert (await client.get("/no/such/route")).status_code == 404


def test_every_key_is_compared_to_its_end_whether_one_has_fitted_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def recorded(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", recorded)
    keys = Keys(["a", "b", "c"])
    assert keys.allow("/props", [(b"authorization", b"Bearer a")])
    assert not keys.allow("/props", [(b"authorization", b"Bearer d")])
    assert compared == [(b"a", b"a"), (b"b", b"a"), (b"c", b"a"), (b"a", b"d"), (b"b", b"d"), (b"c", b"d")]


async def test_the_key_is_asked_for_after_the_model_is_loaded_and_before_the_body_is_read() -> None:
    engine = ScriptedEngine()
    async with AsyncTestClient(create_app(engine.as_engine(), Settings(api_keys=("k",)))) as client:
        loading = await client.post("/completion", content=b"{")
        engine.loaded.set()
        await answers(client, 200)
        locked = await client.post("/completion", content=b"{")
        opened = await client.post("/completion", content=b"{", headers={"x-api-key": "k"})
    assert [answer.status_code for answer in (loading, locked, opened)] == [503, 401, 400]


def test_a_file_of_keys_has_one_a_line_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes("# Anna's\nanna's key\r\n\n  berta \n#old\nä\n".encode())
    assert keys_of(Settings(api_keys=("given",), api_key_file=str(file))) == ("given", "anna's key", "berta", "ä")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot read {}: No such file or directory"),
        (b"", "{} has no key; write one on each line"),
        (b"# none\n \n", "{} has no key; write one on each line"),
        (b"\xff\xfe", "cannot read {}: it is not UTF-8"),
    ],
    ids=["missing", "empty", "comments", "binary"],
)
def test_a_file_without_keys_is_an_error_at_the_start(tmp_path: Path, content: bytes | None, reason: str) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidConfigError) as raised:
        create_app(ScriptedEngine().as_engine(), Settings(api_key_file=str(file)))
    assert (raised.value.param, raised.value.message) == ("api_key_file", reason.format(file))


async def test_a_stream_needs_a_key_too_and_starts_nothing_without() -> None:
    engine = ScriptedEngine([])
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine(), Settings(api_keys=("k",)))) as client:
        answer = await client.post("/completion", content=json.dumps({"prompt": "abc", "stream": True}))
    assert answer.status_code == 401
    assert engine.requests == []
