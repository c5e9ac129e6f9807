"""What browsers are told that run pages of other origins."""

from typing import Any

import pytest

from tests.server.serving import serving

PAGE = "https://page.example"


@pytest.mark.parametrize("origin", [PAGE, "localhost", "web.mydomain.fr", "null", "http://[::1]:3000"])
@pytest.mark.parametrize("method", ["OPTIONS", "GET", "HEAD"])
async def test_any_origin_is_echoed(origin: str, method: str) -> None:
    async with serving() as client:
        answer = await client.request(method, "/health", headers={"origin": origin})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == origin
    assert "access-control-allow-credentials" not in answer.headers
    assert answer.headers["vary"] == "Origin"


@pytest.mark.parametrize("settings", [{}, {"cors_origins": ("*", PAGE)}, {"cors_origins": ("localhost",)}], ids=str)
@pytest.mark.parametrize("path", ["/health", "/cache"])
@pytest.mark.parametrize("method", ["OPTIONS", "GET"])
async def test_credentials_are_only_for_origins_that_are_named(settings: dict[str, Any], path: str, method: str) -> None:
    async with serving(**settings) as client:
        answers = [
            await client.request(method, path, headers={"origin": origin})
            for origin in (PAGE, "https://page.example.evil", "http://localhost:3000", "null")
        ]
    allowed = {answer.request.headers["origin"] for answer in answers if "access-control-allow-credentials" in answer.headers}
    named = {PAGE, "http://localhost:3000"} & {*settings.get("cors_origins", ())}
    assert allowed == named | ({"http://localhost:3000"} if "localhost" in settings.get("cors_origins", ()) else set())


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1//chat/completions/"])
async def test_options_are_answered_200_without_key_or_model(path: str) -> None:
    async with serving(api_keys=("k",)) as client:
        answer = await client.options(path, headers={"origin": PAGE, "access-control-request-method": "POST"})
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["access-control-allow-methods"] == "GET, POST, PATCH, DELETE, OPTIONS"
    assert answer.headers["access-control-allow-headers"] == "*"


async def test_headers_that_a_star_does_not_stand_for_in_browsers_are_named_beside_it() -> None:
    async with serving() as client:
        answer = await client.options(
            "/completion", headers={"origin": PAGE, "access-control-request-headers": "authorization, content-type"}
        )
    assert answer.headers["access-control-allow-headers"] == "*, authorization, content-type"


async def test_methods_and_headers_are_those_of_the_settings() -> None:
    async with serving(cors_methods="POST", cors_headers="X-Mine") as client:
        answer = await client.options("/completion", headers={"origin": PAGE, "access-control-request-headers": "x-other"})
    assert answer.headers["access-control-allow-methods"] == "POST"
    assert answer.headers["access-control-allow-headers"] == "X-Mine"


@pytest.mark.parametrize(
    ("origins", "origin", "is_let_in"),
    [
        ((PAGE,), PAGE, True),
        ((PAGE,), "https://page.example.evil", False),
        ((PAGE,), "http://page.example", False),
        ((PAGE, "http://b"), "http://b", True),
        ((f"{PAGE}/",), PAGE, True),
        (("localhost",), "http://localhost:3000", True),
        (("localhost",), "https://127.0.0.1", True),
        (("localhost",), "http://[::1]:1", True),
        (("localhost",), "http://localhost.evil", False),
        (("localhost",), "http://evil/localhost", False),
        (("localhost",), "http://[broken", False),
        (("localhost", PAGE), PAGE, True),
        ((), PAGE, False),
    ],
)
async def test_only_origins_of_the_settings_are_let_in(origins: tuple[str, ...], origin: str, is_let_in: bool) -> None:
    async with serving(cors_origins=origins) as client:
        answer = await client.get("/health", headers={"origin": origin})
    assert answer.headers.get("access-control-allow-origin") == (origin if is_let_in else None)
    assert ("access-control-allow-credentials" in answer.headers) is is_let_in
    assert answer.headers["vary"] == "Origin"


async def test_an_error_can_be_read_by_a_page_too() -> None:
    async with serving(api_keys=("k",)) as client:
        answers = [await client.get(path, headers={"origin": PAGE}) for path in ("/props", "/v1/models/none")]
    assert [answer.headers["access-control-allow-origin"] for answer in answers] == [PAGE, PAGE]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, None),
        ({"cors_credentials": False}, "*"),
        ({"cors_credentials": False, "cors_origins": (PAGE,)}, None),
    ],
    ids=str,
)
async def test_without_an_origin_nothing_is_echoed(settings: dict[str, Any], expected: str | None) -> None:
    async with serving(**settings) as client:
        answer = await client.get("/health")
    assert answer.headers.get("access-control-allow-origin") == expected
    assert "access-control-allow-credentials" not in answer.headers


async def test_without_credentials_an_origin_is_let_in_without_them() -> None:
    async with serving(cors_credentials=False, cors_origins=(PAGE,)) as client:
        answer = await client.get("/health", headers={"origin": PAGE})
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "access-control-allow-credentials" not in answer.headers
