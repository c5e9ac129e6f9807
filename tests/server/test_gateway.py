"""The prefix before every route."""

import re

import pytest

from tests.server.scripted import token
from tests.server.serving import serving


@pytest.mark.parametrize("prefix", ["/llm/v2", "llm/v2", "/llm/v2/"])
async def test_every_route_begins_with_the_prefix(prefix: str) -> None:
    async with serving([[token(0, "a")]], api_prefix=prefix) as client:
        assert (await client.get("/llm/v2/health")).json()["status"] == "ok"
        assert (await client.get("/llm/v2/")).text.startswith("<!doctype html>")
        document = (await client.get("/llm/v2/openapi.json")).json()
        assert document["servers"] == [{"url": "/llm/v2"}]
        docs = (await client.get("/llm/v2/docs")).text
        files = [(await client.get(f"/llm/v2/{name}")).status_code for name in ("docs.css", "docs.js")]
    # Relative, so that they hold below any prefix.
    assert re.findall(r'(?:href|src)="([^"#]+)"', docs) == ["data:,", "docs.css", "docs.js", "openapi.json", "openapi.json"]
    assert files == [200, 200]


@pytest.mark.parametrize("path", ["/health", "/", "/llm", "/llm/v2", "/llm/v2health", "/llm/v3/health", "/health/llm/v2/health"])
async def test_no_route_begins_otherwise(path: str) -> None:
    async with serving(api_prefix="/llm/v2") as client:
        answer = await client.get(path)
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")


async def test_what_needs_no_key_needs_none_below_the_prefix_and_only_there() -> None:
    async with serving(api_prefix="/llm", api_keys=("k",)) as client:
        assert [(await client.get(path)).status_code for path in ("/llm/health", "/llm/", "/llm/props", "/health", "/")] == [
            200,
            200,
            401,
            401,
            401,
        ]


async def test_without_a_prefix_the_document_says_so() -> None:
    async with serving() as client:
        assert (await client.get("/openapi.json")).json()["servers"] == [{"url": "/"}]
