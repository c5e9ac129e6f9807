"""Who may use the documents of a server: one test per attack, and when they are off."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.server.scripted import ScriptedEngine
from weft.documents.formats import EXPORTS
from weft.server import create_app
from weft.server.documents_api.availability import is_local, is_public_address, off_reason
from weft.server.gateway import Gateway
from weft.settings import Settings

EVIL = "https://evil.example"
FRIEND = "https://friend.example"
OWN = "http://127.0.0.1:8080"
JSON = {"content-type": "application/json"}


def client_of(path: Path, **settings: Any) -> AsyncTestClient[Any]:  # noqa: ANN401 (settings)
    engine = ScriptedEngine()
    engine.loaded.set()
    app = create_app(engine.as_engine(), Settings(documents_path=str(path / "documents.sqlite"), **settings))
    return AsyncTestClient(app, base_url=OWN)


def files(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


async def made(client: httpx.AsyncClient, **headers: str) -> str:
    answer = await client.post("/documents", json={"title": "The fox"}, headers=headers)
    assert answer.status_code == 201
    document = f"/documents/{answer.json()['id']}"
    await client.post(f"{document}/nodes", json={"text": "secret"}, headers=headers)
    return document


REQUESTS = [
    ("GET", "/documents", None),
    ("GET", "/documents/events", None),
    ("GET", "/documents/search?q=secret", None),
    ("GET", "{}", None),
    ("GET", "{}/nodes", None),
    ("GET", "{}/nodes/1/tokens", None),
    ("GET", "{}/export", None),
    ("POST", "/documents", "{}"),
    ("POST", "/documents/import", '{"format": "text", "content": "x"}'),
    ("POST", "{}/nodes", '{"text": "x"}'),
    ("POST", "{}/nodes/1/continue", "{}"),
    ("PATCH", "{}", '{"title": "x"}'),
    ("PATCH", "{}/nodes/1", '{"version": 1, "text": "x"}'),
    ("DELETE", "{}/nodes/1", None),
    ("DELETE", "{}", None),
]
"""A request to each kind of route."""


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"origin": EVIL}, id="origin"),
        pytest.param({"sec-fetch-site": "cross-site"}, id="cross-site"),
        pytest.param({"sec-fetch-site": "same-site"}, id="same-site"),
        pytest.param({"origin": "null"}, id="sandbox"),
        pytest.param({"origin": "http://localhost:3000", "sec-fetch-site": "same-site"}, id="another port"),
    ],
)
async def test_pages_of_other_origins_read_and_change_nothing(tmp_path: Path, headers: dict[str, str]) -> None:
    async with client_of(tmp_path) as client:
        document = await made(client)
        for method, path, body in REQUESTS:
            answer = await client.request(method, path.format(document), content=body, headers=headers | JSON)
            assert answer.status_code == 403, (method, path)
            assert "secret" not in answer.text
            assert "access-control-allow-origin" not in answer.headers
        assert (await client.get(f"{document}/nodes")).json()["nodes"][0]["text"] == "secret"


@pytest.mark.parametrize("method", ["POST", "PATCH", "DELETE"])
async def test_a_preflight_request_of_another_origin_is_refused(tmp_path: Path, method: str) -> None:
    async with client_of(tmp_path) as client:
        headers = {"origin": EVIL, "access-control-request-method": method, "access-control-request-headers": "content-type"}
        assert (await client.options("/documents", headers=headers)).status_code == 403


async def test_pages_of_a_named_origin_may_do_everything(tmp_path: Path) -> None:
    async with client_of(tmp_path, cors_origins=(FRIEND,)) as client:
        document = await made(client, origin=FRIEND)
        headers = {"origin": FRIEND, "access-control-request-method": "PATCH"}
        allowed = await client.options(document, headers=headers)
        assert allowed.status_code == 200
        assert "PATCH" in allowed.headers["access-control-allow-methods"]
        changed = await client.patch(document, json={"title": "The owl"}, headers={"origin": FRIEND})
        assert changed.headers["access-control-allow-origin"] == FRIEND


REBOUND = {"sec-fetch-site": "same-origin"}
"""What a browser sends with a request of the attacker's page to its own name."""


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil-localhost",
        "127.0.0.1@evil.example",
    ],
)
async def test_a_foreign_host_is_refused(tmp_path: Path, host: str) -> None:
    # DNS rebinding: the name of the attacker's page leads to this machine.
    async with client_of(tmp_path) as client:
        document = await made(client)
        for method, path, body in REQUESTS:
            headers = JSON | REBOUND | {"host": host, "origin": f"http://{host}"}
            answer = await client.request(method, path.format(document), content=body, headers=headers)
            assert answer.status_code == 421, (method, path)
            assert "secret" not in answer.text
        assert (await client.get("/", headers={"host": host})).status_code == 421, "the page is not there under other names"
        assert (await client.get(f"{document}/nodes")).json()["nodes"][0]["text"] == "secret"


async def test_a_second_host_does_not_hide_a_foreign_one(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        for hosts in (("127.0.0.1:8080", "evil.example"), ("evil.example", "127.0.0.1:8080")):
            answer = await client.get("/documents", headers=[("host", host) for host in hosts])
            assert answer.status_code == 421


async def test_a_request_without_host_is_none_of_a_browser(tmp_path: Path) -> None:
    # Every browser sends Host; a program without it is the user's own. A page's other headers count also then.
    engine = ScriptedEngine()
    engine.loaded.set()
    app = create_app(engine.as_engine(), Settings(documents_path=str(tmp_path / "documents.sqlite")))
    async with AsyncTestClient(app, base_url=OWN) as client:
        assert await status(app, "/documents", []) == 200
        assert await status(app, "/documents", [(b"host", b"")]) == 421
        for headers in ([(b"origin", EVIL.encode())], [(b"origin", b"null")], [(b"sec-fetch-site", b"cross-site")]):
            assert await status(app, "/documents", headers) == 403
        assert (await client.get("/documents")).json()["documents"] == []


async def status(app: Gateway, path: str, headers: Sequence[tuple[bytes, bytes]]) -> int:
    """Returns the status of a GET with these headers and no others."""
    sent: list[Any] = []
    received = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Any:  # noqa: ANN401 (an ASGI message)
        for message in received:
            return message
        return await asyncio.get_running_loop().create_future()  # It stays connected.

    async def send(message: Any) -> None:  # noqa: ANN401 (as above)
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": headers, "http_version": "1.0"}
    address = {"scheme": "http", "server": ("127.0.0.1", 8080)}
    await app(cast("Any", scope | address), receive, cast("Any", send))
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    "content_type",
    ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain; application/json"],
)
async def test_forms_of_any_page_change_nothing(tmp_path: Path, content_type: str) -> None:
    # An old browser sends a form without Origin and Sec-Fetch-Site.
    headers = {"content-type": content_type} if content_type else {}
    async with client_of(tmp_path) as client:
        document = await made(client)
        for method, path, body in REQUESTS:
            if method in ("POST", "PATCH"):
                answer = await client.request(method, path.format(document), content=body, headers=headers)
                assert answer.status_code == 415, (method, path)
        assert len((await client.get("/documents")).json()["documents"]) == 1


async def test_a_key_does_not_reach_the_documents_of_another(tmp_path: Path) -> None:
    mine, theirs = {"authorization": "Bearer mine"}, {"authorization": "Bearer theirs"}
    async with client_of(tmp_path, api_keys=("mine", "theirs")) as client:
        document = await made(client, **mine)
        for method, path, body in REQUESTS:
            assert (await client.request(method, path.format(document), content=body, headers=JSON)).status_code == 401
            if "{}" in path:
                answer = await client.request(method, path.format(document), content=body, headers=theirs | JSON)
                assert answer.status_code == 404, (method, path)
        assert (await client.get("/documents", headers=theirs)).json()["documents"] == []
        assert (await client.get("/documents/search?q=secret", headers=theirs)).json()["hits"] == []
        events = await client.get("/documents/events?max_s=0.1&after=x", headers=theirs)
        assert "secret" not in events.text
    content = b"".join(files(tmp_path).values())
    assert b"secret" in content
    assert b"mine" not in content


async def test_documents_made_without_keys_are_hidden_once_there_are_keys(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        document = await made(client)
    async with client_of(tmp_path, api_keys=("key",)) as client:
        headers = {"authorization": "Bearer key"}
        assert (await client.get("/documents", headers=headers)).json()["documents"] == []
        assert (await client.get(document, headers=headers)).status_code == 404


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost", "/run/weft.sock"])
def test_only_this_machine_reaches_loopback_and_unix_sockets(host: str) -> None:
    assert is_local(host)
    assert off_reason(Settings(hosts=(host,)), has_keys=False) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "chat.example", "localhost.example", ""])
def test_without_keys_documents_are_off_where_other_machines_reach_the_server(host: str) -> None:
    reason = off_reason(Settings(hosts=("127.0.0.1", host)), has_keys=False)
    assert reason is not None
    assert "--api-key-file" in reason
    assert off_reason(Settings(hosts=(host,)), has_keys=True) is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param({"hosts": ("0.0.0.0",)}, "it has no API keys", id="address"),
        pytest.param({"documents": False}, "--no-documents", id="flag"),
    ],
)
async def test_documents_that_are_off_are_501_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], words: str
) -> None:
    with caplog.at_level(logging.INFO, "weft.server.documents_api.service"):
        client = client_of(tmp_path, **settings)
    assert (words in caplog.text) == ("hosts" in settings), "who has turned them off knows it"
    async with client:
        for method, path, body in REQUESTS:
            answer = await client.request(method, path.format("/documents/x"), content=body, headers=JSON)
            assert answer.status_code == 501, (method, path)
            assert words in answer.json()["error"]["message"]
    assert files(tmp_path) == {}


@pytest.mark.parametrize(("address", "status"), [("127.0.0.1", 200), ("192.168.1.5", 501)])
async def test_the_address_of_another_server_around_the_application_counts(tmp_path: Path, address: str, status: int) -> None:
    async with client_of(tmp_path) as client:
        client.base_url = httpx.URL(f"http://{address}:8080")
        assert (await client.get("/documents")).status_code == status


@pytest.mark.parametrize(
    ("host", "is_public"),
    [("10.0.0.1", True), ("fe80::a", True), ("::1", False), ("/run/weft1.sock", False), ("", False)],
    ids=str,
)
def test_an_address_is_public_unless_it_is_loopback_or_a_socket(host: str, is_public: bool) -> None:
    assert is_public_address(host) is is_public


@pytest.mark.parametrize("format_name", EXPORTS)
async def test_an_exported_file_is_no_page(tmp_path: Path, format_name: str) -> None:
    async with client_of(tmp_path) as client:
        answer = await client.post("/documents", json={"title": "<script>alert(1)</script>"})
        document = f"/documents/{answer.json()['id']}"
        await client.post(f"{document}/nodes", json={"text": "<!doctype html><script>alert(1)</script>"})
        exported = await client.get(f"{document}/export?format={format_name}")
        kind = exported.headers["content-type"].partition(";")[0]
        assert kind in ("application/json", "text/markdown", "text/plain")
        assert exported.headers["content-disposition"].startswith("attachment")
        assert exported.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path", ["{}", "{}/nodes", "{}/nodes/1", "{}/nodes/1/tokens", "/documents", "/documents/search?q=secret"]
)
async def test_answers_with_texts_of_documents_are_json_and_no_page(tmp_path: Path, path: str) -> None:
    async with client_of(tmp_path) as client:
        answer = await client.get(path.format(await made(client)))
        assert answer.headers["content-type"].partition(";")[0] == "application/json"


def test_ray_has_no_documents() -> None:
    assert off_reason(Settings(documents=False), has_keys=True) is not None
    source = (Path(weft.__file__).parent / "ray" / "application.py").read_text(encoding="utf-8")
    assert "replace(self._settings, documents=False)" in source
