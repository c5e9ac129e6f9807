"""`--path`: a folder of files in place of the page."""

import asyncio
import threading
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urljoin, urlsplit

import httpx
import pytest

import weft
from tests.helpers import wait_until
from tests.server.matchers import Json
from tests.server.scripted import ScriptedEngine
from tests.server.serving import serving
from weft.server import create_app
from weft.server.static import Files
from weft.settings import Settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small site, and beside it what is not to be seen."""
    site = tmp_path / "site"
    (site / "deep er").mkdir(parents=True)
    (site / "empty").mkdir()
    (site / "index.html").write_text("<p>mine</p>")
    (site / "app.js").write_text("let x")
    (site / "deep er" / "index.html").write_text("<p>deep</p>")
    (site / "deep er" / "ä.txt").write_text("ä", encoding="utf-8")
    (site / "packed.tar.gz").write_bytes(b"\x1f\x8b")
    (site / "props").write_text("a file")
    (tmp_path / "secret.txt").write_text("secret")
    (site / "link.txt").symlink_to(tmp_path / "secret.txt")
    (site / "inner.txt").symlink_to(site / "app.js")
    (tmp_path / "site-2").mkdir()
    (tmp_path / "site-2" / "secret.txt").write_text("secret")
    return site


@pytest.mark.parametrize(
    ("path", "kind", "text"),
    [
        ("/", "text/html; charset=utf-8", "<p>mine</p>"),
        ("/index.html", "text/html; charset=utf-8", "<p>mine</p>"),
        ("/app.js", "text/javascript; charset=utf-8", "let x"),
        ("/deep%20er/", "text/html; charset=utf-8", "<p>deep</p>"),
        ("/deep%20er/%C3%A4.txt", "text/plain; charset=utf-8", "ä"),
        ("/inner.txt", "text/javascript; charset=utf-8", "let x"),
        ("/props", "application/octet-stream", "a file"),
    ],
)
async def test_a_file_is_served_as_what_its_name_says(folder: Path, path: str, kind: str, text: str) -> None:
    async with serving(static_path=str(folder)) as client:
        answer, head = await client.get(path), await client.head(path)
    assert (answer.status_code, answer.headers["content-type"], answer.text) == (200, kind, text)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"].startswith("inline")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(answer.content)))


async def test_a_file_that_comes_after_the_start_takes_the_place_of_a_route_until_it_is_gone(folder: Path) -> None:
    async with serving(static_path=str(folder)) as client:

        async def until(path: str, is_file: bool) -> None:
            async with asyncio.timeout(5):
                while ((await client.get(path)).text == "mine") is not is_file:
                    pass

        for path in ("/slots", "/api/version"):
            file = folder / path[1:]
            await until(path, is_file=False)
            file.parent.mkdir(exist_ok=True)
            file.write_text("mine")
            await until(path, is_file=True)
            file.unlink()
            assert (await client.get(path)).status_code == 200
            await until(path, is_file=False)


ROUTES = {
    "/health": 200,
    "/metrics": 200,
    "/slots": 200,
    "/slots/0": 405,
    "/props": 200,
    "/models": 200,
    "/v1/models": 200,
    "/v1/models/a": 200,
    "/v1/nothing": 404,
    "/cache": 200,
    "/prefixes": 200,
    "/requests": 200,
    "/requests/a": 404,
    "/completion": 405,
    "/lora-adapters": 200,
    "/openapi.json": 200,
    "/api/version": 200,
}


async def test_no_route_waits_for_the_thread_that_looks_for_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("a")
    app = create_app(weft.Engine(n_slots=1, n_ctx=256, n_threads=1), Settings(static_path=str(tmp_path), metrics=True))
    is_looking, may_go_on = threading.Event(), threading.Event()

    def find(*_: object) -> None:
        is_looking.set()
        assert may_go_on.wait(20), "nobody has let it"

    monkeypatch.setattr(Files, "_find", find)
    await app.service.lifecycle.start()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(cast("Any", app)), base_url="http://a") as client:
        looking = asyncio.create_task(client.get("/b"))
        await wait_until(is_looking.is_set)
        async with asyncio.timeout(10):
            for _ in range(2):
                assert {path: (await client.get(path)).status_code for path in ROUTES} == ROUTES
        may_go_on.set()
        assert (await looking).status_code == 404
    await app.service.stop()


@pytest.mark.parametrize("path", ["/v1/%2e%2e/app.js", "/v1/models/%2e%2e/%2e%2e/app.js", "/slots/..%2fapp.js"])
async def test_a_roundabout_path_to_a_file_leads_there_though_it_begins_as_a_route_does(folder: Path, path: str) -> None:
    async with serving(static_path=str(folder)) as client:
        answer = await client.send(client.build_request("GET", httpx.URL("http://testserver", raw_path=path.encode())))
    assert answer.text == "let x"


async def test_a_packed_file_stays_packed(folder: Path) -> None:
    async with serving(static_path=str(folder)) as client:
        answer = await client.get("/packed.tar.gz")
    assert (answer.headers["content-type"], answer.content) == ("application/octet-stream", b"\x1f\x8b")
    assert "content-encoding" not in answer.headers


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/deep er/../../secret.txt",
        "/../site-2/secret.txt",
        "//etc/passwd",
        "/%2Fetc/passwd",
        "/link.txt",
        "/%00",
        "/" + "x" * 5000,
        "/empty/",
        "/empty",
        "/nothing",
        "/app.js/x",
    ],
)
async def test_nothing_outside_of_the_folder_and_nothing_that_is_no_file_is_served(folder: Path, path: str) -> None:
    async with serving(static_path=str(folder)) as client:
        # Not `client.get(path)`: httpx would resolve the dots itself.
        answer = await client.send(client.build_request("GET", httpx.URL("http://testserver", raw_path=path.encode())))
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"


@pytest.mark.parametrize("prefix", ["", "/p"])
async def test_a_folder_without_a_slash_leads_to_the_one_with_it(folder: Path, prefix: str) -> None:
    async with serving(static_path=str(folder), api_prefix=prefix) as client:
        answer = await client.get(f"{prefix}/deep%20er", follow_redirects=False)
        followed = await client.get(f"{prefix}/deep%20er", follow_redirects=True)
    assert (answer.status_code, answer.headers["location"]) == (301, f"{prefix}/deep%20er/")
    assert followed.text == "<p>deep</p>"


@pytest.mark.parametrize(
    "path",
    [
        "//evil.com/..",
        "///evil.com/..",
        "//evil.com/../deep%20er",
        "/\\evil.com/..",
        "/%5cevil.com/..",
        "/%5c%5cevil.com/..",
        "/%2fevil.com/..",
        "/%2f%2fevil.com/%2e%2e",
        "/./%2fevil.com/..",
        "/deep%20er/..//evil.com/../deep%20er",
    ],
)
@pytest.mark.parametrize("prefix", ["", "/p"])
async def test_no_redirect_leaves_the_host(folder: Path, path: str, prefix: str) -> None:
    for name in ("evil.com", "\\evil.com", "\\\\evil.com"):
        (folder / name).mkdir()
    sent: list[Json] = []

    async def send(message: Json) -> None:
        sent.append(message)

    async def receive() -> Json:
        return await asyncio.get_running_loop().create_future()

    # By hand: a client would resolve the dots itself.
    engine = ScriptedEngine()
    engine.loaded.set()
    app = create_app(engine.as_engine(), Settings(static_path=str(folder), api_prefix=prefix))
    await app.service.lifecycle.start()
    scope: Json = {"type": "http", "method": "GET", "path": prefix + unquote(path), "query_string": b"", "headers": []}
    await app(scope, receive, send)
    location = dict(sent[0]["headers"])[b"location"].decode()
    assert sent[0]["status"] == 301
    for base in ("http://testserver/", "https://testserver/a//b"):
        assert urlsplit(urljoin(base, location.replace("\\", "/"))).hostname == "testserver"
    assert location.startswith(f"{prefix}/")
    assert "//" not in location


async def test_only_reading_reaches_files(folder: Path) -> None:
    async with serving(static_path=str(folder)) as client:
        assert (await client.post("/app.js")).status_code == 404
        assert (await client.get("/health")).json()["status"] == "ok"


async def test_files_need_a_key_but_the_first_page_does_not(folder: Path) -> None:
    async with serving(static_path=str(folder), api_keys=("k",)) as client:
        assert (await client.get("/")).text == "<p>mine</p>"
        assert (await client.get("/app.js")).status_code == 401
        assert (await client.get("/app.js", headers={"x-api-key": "k"})).text == "let x"


async def test_a_folder_without_an_index_has_no_page(tmp_path: Path) -> None:
    async with serving(static_path=str(tmp_path)) as client:
        assert (await client.get("/")).status_code == 404


async def test_no_ui_switches_the_files_off_too(folder: Path) -> None:
    async with serving(static_path=str(folder), ui=False) as client:
        assert [(await client.get(path)).status_code for path in ("/", "/app.js")] == [404, 404]
