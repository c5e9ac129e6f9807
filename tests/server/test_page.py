"""The delivery of the page for writers; tests/page has its behaviour."""

import gzip
import re
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest
from litestar.testing import AsyncTestClient

from tests.server.scripted import ScriptedEngine
from tests.server.serving import serving
from weft.server import create_app
from weft.server.built_page import MEDIA_TYPES

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' blob: data:",
    "connect-src": "'self'",
    "frame-ancestors": "'none'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "svelte-trusted-html weft-worker",
}

PLAIN = {"accept-encoding": "identity"}


async def asset_paths(client: httpx.AsyncClient, root: str = "/") -> list[str]:
    """Returns the paths of the files that the index names, as a browser at `root` resolves them."""
    index = (await client.get(root)).text
    return [urljoin(root, name) for name in re.findall(r'(?:src|href)="(\.[^"]+)"', index)]


@pytest.mark.parametrize("path", ["/", "/index.html"])
async def test_the_page_is_served_while_the_model_loads_and_after(path: str) -> None:
    engine = ScriptedEngine()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        loading = [await client.get(each) for each in (path, *await asset_paths(client))]
        missing = await client.get("/assets/missing.js")
        engine.loaded.set()
        loaded = [await client.get(each) for each in (path, *await asset_paths(client))]
    assert len(loaded) >= 3
    assert {answer.status_code for answer in (*loading, *loaded)} == {200}
    assert [answer.content for answer in loading] == [answer.content for answer in loaded]
    assert loaded[0].headers["content-type"] == "text/html; charset=utf-8"
    assert missing.status_code == 503


@pytest.mark.parametrize("settings", [{}, {"api_keys": ("k",)}, {"api_keys": ("k",), "api_prefix": "/llm/v2"}], ids=str)
async def test_all_files_need_no_key_and_are_confined_and_cached(settings: dict[str, Any]) -> None:
    root = f"{settings.get('api_prefix', '')}/"
    async with serving(**settings) as client:
        index = await client.get(root)
        assets = {path: await client.get(path) for path in await asset_paths(client, root)}
    assert {path.rpartition(".")[2] for path in assets} == {"css", "js"}
    assert all(re.fullmatch(rf"{root}assets/[\w.-]+-[\w-]{{8,}}\.(?:css|js)", path) for path in assets)
    for answer in (index, *assets.values()):
        assert answer.status_code == 200
        policy = dict(directive.split(" ", 1) for directive in answer.headers["content-security-policy"].split("; "))
        assert policy == POLICY
        assert (answer.headers["x-content-type-options"], answer.headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert index.headers["cache-control"] == "no-cache"
    for path, answer in assets.items():
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["content-type"] == f"{MEDIA_TYPES['.' + path.rpartition('.')[2]]}; charset=utf-8"


@pytest.mark.parametrize(
    ("accepted", "is_compressed"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5, *;q=0", True),
        ("deflate,gzip ; q=1.000", True),
        ("identity", False),
        ("gzip;q=0", False),
        ("br, gzip;q=0.000", False),
        ("x-gzip", False),
        ("gzip;q=1.2.3", False),
    ],
)
async def test_files_are_compressed_where_the_client_accepts_it(accepted: str, is_compressed: bool) -> None:
    async with serving() as client:
        for path in ("/", *await asset_paths(client)):
            plain = (await client.get(path, headers=PLAIN)).content
            async with client.stream("GET", path, headers={"accept-encoding": accepted}) as answer:
                raw = b"".join([piece async for piece in answer.aiter_raw()])
            assert answer.headers.get("content-encoding") == ("gzip" if is_compressed else None)
            assert answer.headers["content-length"] == str(len(raw))
            assert "accept-encoding" in answer.headers["vary"]
            assert (gzip.decompress(raw) if is_compressed else raw) == plain


async def test_head_has_the_headers_alone() -> None:
    async with serving() as client:
        for path in ("/", *await asset_paths(client)):
            whole, head = await client.get(path, headers=PLAIN), await client.head(path, headers=PLAIN)
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-length"] == str(len(whole.content))


@pytest.mark.parametrize(
    "path",
    ["/assets", "/assets/", "/assets/missing.js", "/assets/..%2findex.html", "/assets/%2e%2e/page.py", "/assets//index.html"],
)
async def test_other_paths_are_not_found_and_need_a_key(path: str) -> None:
    engine = ScriptedEngine()
    engine.loaded.set()
    async with serving() as client, serving(api_keys=("k",)) as locked:
        assert (await client.get(httpx.URL(f"http://testserver.local{path}"))).status_code == 404
        assert (await locked.get(httpx.URL(f"http://testserver.local{path}"))).status_code == 401


@pytest.mark.parametrize("settings", [{"ui": False}, {"compat": "parallel"}], ids=str)
async def test_without_the_page_there_are_no_assets(settings: dict[str, Any]) -> None:
    async with serving() as client:
        paths = await asset_paths(client)
    async with serving(**settings) as client:
        assert {(await client.get(path)).status_code for path in paths} == {404}


async def test_no_ui_leaves_nothing_at_the_root_but_what_ollamas_clients_look_for() -> None:
    async with serving(ui=False) as client:
        root, index, head = await client.get("/"), await client.get("/index.html"), await client.head("/")
    assert (root.status_code, root.text, root.headers["content-type"]) == (200, "Ollama is running", "text/plain; charset=utf-8")
    assert (index.status_code, index.json()["error"]["type"]) == (404, "not_found_error")
    assert (head.status_code, head.text, head.headers["content-length"]) == (200, "", "17")
