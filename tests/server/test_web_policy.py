"""What web pages may do with a server that their visitor's browser reaches: the rules, and one test per attack."""

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

import weft
from tests.server.conftest import PROMPT
from tests.server.http2 import Http2Client
from tests.server.live import LiveServer
from tests.server.scripted import finished, token
from tests.server.serving import serving
from weft.cli.main import parse
from weft.server import create_app
from weft.server.errors import CrossOriginBodyError, CrossOriginError, MisdirectedRequestError
from weft.server.page import DOCS, PATHS, SCRIPT
from weft.server.web_policy import _OPEN, Sender, WebPolicy
from weft.settings import Settings

EVIL = "https://evil.example"
FRIEND = "https://friend.example"

PRIVATE = {
    ("GET", "/cache"),
    ("GET", "/prefixes"),
    ("POST", "/prefixes"),
    ("DELETE", "/prefixes/{prefix_id:int}"),
    ("GET", "/slots"),
    ("POST", "/slots/{id_slot:str}"),
    ("POST", "/props"),
    ("POST", "/lora-adapters"),
    ("GET", "/v1/stream"),
    ("DELETE", "/v1/stream"),
    ("POST", "/v1/streams/lookup"),
    ("POST", "/responses"),
    ("POST", "/responses/input_tokens"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/responses/compact"),
    ("POST", "/v1/responses/input_tokens"),
    ("GET", "/v1/responses/{response_id:str}"),
    ("DELETE", "/v1/responses/{response_id:str}"),
    ("POST", "/v1/responses/{response_id:str}/cancel"),
    ("GET", "/v1/responses/{response_id:str}/input_items"),
    ("POST", "/v1/conversations"),
    ("GET", "/v1/conversations/{conversation_id:str}"),
    ("POST", "/v1/conversations/{conversation_id:str}"),
    ("DELETE", "/v1/conversations/{conversation_id:str}"),
    ("GET", "/v1/conversations/{conversation_id:str}/items"),
    ("POST", "/v1/conversations/{conversation_id:str}/items"),
    ("GET", "/v1/conversations/{conversation_id:str}/items/{item_id:str}"),
    ("DELETE", "/v1/conversations/{conversation_id:str}/items/{item_id:str}"),
    ("GET", "/requests"),
    ("GET", "/requests/{request_id:str}"),
    ("DELETE", "/requests/{request_id:str}"),
    ("DELETE", "/requests/{request_id:str}/branches/{index:int}"),
    ("POST", "/requests/{request_id:str}/branches/{index:int}/fork"),
    ("GET", "/documents"),
    ("POST", "/documents"),
    ("GET", "/documents/events"),
    ("GET", "/documents/search"),
    ("POST", "/documents/import"),
    ("GET", "/documents/{document_id:str}"),
    ("PATCH", "/documents/{document_id:str}"),
    ("DELETE", "/documents/{document_id:str}"),
    ("GET", "/documents/{document_id:str}/export"),
    *(("POST", f"/documents/{{document_id:str}}/{verb}") for verb in ("duplicate", "resume")),
    ("GET", "/documents/{document_id:str}/nodes"),
    ("POST", "/documents/{document_id:str}/nodes"),
    ("GET", "/documents/{document_id:str}/nodes/{node_id:int}"),
    ("PATCH", "/documents/{document_id:str}/nodes/{node_id:int}"),
    ("DELETE", "/documents/{document_id:str}/nodes/{node_id:int}"),
    ("GET", "/documents/{document_id:str}/nodes/{node_id:int}/tokens"),
    *(("POST", f"/documents/{{document_id:str}}/nodes/{{node_id:int}}/{verb}") for verb in ("continue", "resume", "stop")),
    *(("POST", f"/documents/{{document_id:str}}/nodes/{{node_id:int}}/{verb}") for verb in ("split", "merge", "move")),
    ("POST", "/api/pull"),
    ("POST", "/api/push"),
    ("POST", "/api/create"),
    ("POST", "/api/copy"),
    ("POST", "/api/blobs/{digest:str}"),
    ("DELETE", "/api/delete"),
}
"""The routes that show or change what other clients wrote, and those of Ollama that change models."""


def scope_of(
    method: str = "GET", headers: Mapping[str, str] | None = None, *, server: str = "127.0.0.1", scheme: str = "http"
) -> Any:  # noqa: ANN401 (an ASGI scope)
    given = [(name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
    return {"method": method, "headers": given, "scheme": scheme, "server": (server, 8080), "path": "/"}


def policy_of(**settings: Any) -> WebPolicy:  # noqa: ANN401 (settings)
    return WebPolicy(Settings(**settings))


def test_every_route_is_either_open_or_private() -> None:
    app = create_app(weft.Engine())
    routes = {
        (method, route.path)
        for route in app.litestar.routes
        for method in getattr(route, "route_handler_map", {})
        if method != "OPTIONS"
    }
    opened = {route for route in routes if WebPolicy.is_open(cast("Any", {"method": route[0], "headers": []}), route[1])}
    assert {route for route in routes - opened if not route[1].startswith("/openapi.json/")} == PRIVATE
    front = {("GET", path) for path in (*PATHS, SCRIPT, *DOCS)}
    assert {(method, path) for method, paths in _OPEN.items() for path in paths} - front <= opened


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LocalHost:8080", "localhost.", "localhost.:8080", "app.localhost", "127.0.0.1", "127.0.0.1:8080"),
        *("[::1]", "[::1]:8080", "[0:0:0:0:0:0:0:1]", "0.0.0.0:8080", "192.168.1.5", "10.0.0.1:"),
    ],
)
def test_an_address_and_localhost_are_accepted_on_loopback(host: str) -> None:
    policy_of().check_host(scope_of(headers={"host": host}))


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:8080",
            "EVIL.example.",
            "localhost.evil.example",
            "evillocalhost",
            "127.0.0.1.evil.example",
        ),
        *("", ":8080", "localhost:8080.evil.example", "user@localhost", "localhost/evil.example", "::1", "[evil.example]"),
        *("localhost, evil.example", "evil.example#localhost", "évil.example", "[::1].evil.example", "localhost..", "2130706433"),
    ],
)
@pytest.mark.parametrize("server", ["127.0.0.1", "127.0.0.2", "::1"])
def test_any_other_host_is_refused_on_loopback(host: str, server: str) -> None:
    with pytest.raises(MisdirectedRequestError, match="--allowed-hosts"):
        policy_of().check_host(scope_of(headers={"host": host}, server=server))


def test_each_of_several_hosts_must_be_accepted() -> None:
    scope = scope_of()
    scope["headers"] = [(b"host", b"localhost"), (b"host", b"evil.example")]
    with pytest.raises(MisdirectedRequestError):
        policy_of().check_host(scope)


def test_a_forwarded_host_counts_for_nothing() -> None:
    headers = {"host": "evil.example", "x-forwarded-host": "localhost", "forwarded": "host=localhost"}
    with pytest.raises(MisdirectedRequestError):
        policy_of().check_host(scope_of(headers=headers))


def test_no_host_at_all_is_no_browser() -> None:
    policy_of().check_host(scope_of())


@pytest.mark.parametrize("host", ["Chat.example", "chat.example:443", "chat.example.", "other.example", "localhost", "127.0.0.1"])
def test_allowed_hosts_are_accepted_beside_addresses_and_localhost(host: str) -> None:
    policy_of(allowed_hosts=("chat.example", "other.example")).check_host(scope_of(headers={"host": host}))


@pytest.mark.parametrize("server", ["127.0.0.1", "0.0.0.0", "192.168.1.5", "::", "/run/weft.sock"])
def test_allowed_hosts_hold_wherever_the_server_listens(server: str) -> None:
    scope = scope_of(headers={"host": "evil.example"}, server=server)
    with pytest.raises(MisdirectedRequestError):
        policy_of(allowed_hosts=("chat.example",)).check_host(scope)
    policy_of(allowed_hosts=("*",)).check_host(scope)


@pytest.mark.parametrize("server", ["0.0.0.0", "192.168.1.5", "::", "/run/weft.sock", ""])
def test_without_allowed_hosts_any_host_is_accepted_off_loopback(server: str) -> None:
    policy_of().check_host(scope_of(headers={"host": "gpu.lan:8080"}, server=server))


OWN, NAMED, FOREIGN = Sender.OWN, Sender.NAMED, Sender.FOREIGN


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, OWN),
        ({"origin": "http://127.0.0.1:8080", "host": "127.0.0.1:8080"}, OWN),
        ({"origin": "http://[::1]:8080", "host": "[::1]:8080"}, OWN),
        ({"origin": "http://localhost", "host": "LOCALHOST:80"}, OWN),
        ({"origin": "https://chat.example", "host": "chat.example"}, OWN),
        ({"origin": "https://chat.example", "host": "chat.example:443"}, OWN),
        ({"origin": "https://chat.example", "host": "127.0.0.1:8080", "sec-fetch-site": "same-origin"}, OWN),
        ({"sec-fetch-site": "none"}, OWN),
        ({"sec-fetch-site": "same-origin"}, OWN),
        ({"origin": FRIEND, "host": "localhost", "sec-fetch-site": "cross-site"}, NAMED),
        ({"origin": EVIL, "host": "localhost"}, FOREIGN),
        ({"origin": "null", "host": "localhost"}, FOREIGN),
        ({"origin": "", "host": "localhost"}, FOREIGN),
        ({"origin": "*", "host": "localhost"}, FOREIGN),
        ({"origin": "http://localhost:3000", "host": "localhost:8080"}, FOREIGN),
        ({"origin": "http://localhost:8080", "host": "127.0.0.1:8080"}, FOREIGN),
        ({"origin": "http://localhost:8080"}, FOREIGN),
        ({"origin": "http://[broken", "host": "[broken"}, FOREIGN),
        ({"origin": "http://localhost:99999999", "host": "localhost"}, FOREIGN),
        ({"origin": "chrome-extension://localhost", "host": "localhost"}, FOREIGN),
        ({"origin": f"{FRIEND}.evil.example", "host": "localhost"}, FOREIGN),
        ({"origin": EVIL, "host": "localhost", "x-forwarded-host": "evil.example"}, FOREIGN),
        ({"origin": EVIL, "host": "localhost", "sec-fetch-site": "none"}, FOREIGN),
        ({"sec-fetch-site": "cross-site"}, FOREIGN),
        ({"sec-fetch-site": "same-site"}, FOREIGN),
        ({"sec-fetch-site": "of-the-future"}, FOREIGN),
    ],
    ids=str,
)
def test_a_page_is_known_by_what_its_browser_sends(headers: dict[str, str], expected: Sender) -> None:
    assert policy_of(cors_origins=("*", FRIEND)).sender(scope_of(headers=headers)) is expected


def test_over_tls_an_origin_without_it_is_another_one() -> None:
    headers = {"origin": "http://localhost", "host": "localhost"}
    assert policy_of().sender(scope_of(headers=headers, scheme="https")) is FOREIGN


def test_localhost_names_the_origins_of_this_machine() -> None:
    assert policy_of(cors_origins=("localhost",)).sender(scope_of(headers={"origin": "http://localhost:3000"})) is NAMED


@pytest.mark.parametrize(
    "content_type",
    [
        *(
            "text/plain",
            "text/plain;charset=UTF-8",
            "TEXT/PLAIN",
            "text/plain; a=application/json",
            "multipart/form-data; boundary=a",
        ),
        *("application/x-www-form-urlencoded", "", "  ", "application/json, text/plain", "text/plain, application/json"),
    ],
)
def test_a_foreign_page_must_send_json(content_type: str) -> None:
    headers = {"content-type": content_type} if content_type else {}
    scope = scope_of("POST", headers)
    with pytest.raises(CrossOriginBodyError, match="application/json"):
        policy_of().check_body(scope, FOREIGN)
    policy_of().check_body(scope, OWN)
    policy_of().check_body(scope, NAMED)


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.a+json"])
def test_json_is_what_a_browser_asks_about_first(content_type: str) -> None:
    policy_of().check_body(scope_of("POST", {"content-type": content_type}), FOREIGN)


@pytest.mark.parametrize(
    "path", ["//cache", "/cache/", "/v1/models/../cache/", None, "/Completion", "/completion/x", "/no/such/route"]
)
def test_a_path_that_is_not_known_to_be_open_is_private(path: str | None) -> None:
    with pytest.raises(CrossOriginError):
        policy_of().check_route(scope_of("POST"), path, FOREIGN)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("Chat.Example,b", ("chat.example", "b")), ("a.b.", ("a.b",)), ("*", ("*",)), ("", ())],
)
def test_allowed_hosts_are_names(given: str, expected: tuple[str, ...]) -> None:
    assert parse(["--allowed-hosts", given], {})[0].allowed_hosts == expected


@pytest.mark.parametrize("given", ["http://a", "a:8080", "a/b", "*.a", "a b"])
def test_an_allowed_host_that_is_no_name_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--allowed-hosts", given], {})
    assert "is not a host name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("https://Chat.Example,http://b:3000", ("https://chat.example", "http://b:3000")),
        ("HTTPS://a:443,http://b:80/,http://c:443", ("https://a", "http://b", "http://c:443")),
        ("http://[::1]:80,moz-extension://a-b", ("http://[::1]", "moz-extension://a-b")),
        ("http://a:080,http://[0:0:0:0:0:0:0:1]", ("http://a", "http://[::1]")),
        ("https://bücher.example", ("https://xn--bcher-kva.example",)),
        ("*,Localhost", ("*", "localhost")),
        ("", ()),
    ],
)
def test_named_origins_have_the_form_that_browsers_send(given: str, expected: tuple[str, ...]) -> None:
    assert parse(["--cors-origins", given], {})[0].cors_origins == expected


NO_ORIGINS = ["chat.example", "null", "https://", "https://a/b", "https://*.a", "https://*", "https://a:b", "://a"]
NO_ORIGINS += ["http://a:99999", "http://[:::]", "http://a%20b", "http://a\\b", "file://x"]


@pytest.mark.parametrize("given", NO_ORIGINS)
def test_an_origin_that_no_browser_sends_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--cors-origins", given], {})
    assert "must be an origin such as https://chat.example" in capsys.readouterr().err


@pytest.mark.parametrize("settings", [{}, {"cors_origins": ("*",)}, {"cors_origins": ("*",), "api_keys": ("k",)}], ids=str)
@pytest.mark.parametrize(("method", "path"), sorted(PRIVATE))
async def test_a_foreign_page_may_not_use_a_private_route(method: str, path: str, settings: dict[str, Any]) -> None:
    path = path.replace("{prefix_id:int}", "1").replace("{index:int}", "0").replace(":str}", "").replace("{", "")
    keys = {"authorization": "Bearer k"}
    async with serving(**settings) as client:
        answers = [
            await client.request(method, path, headers={**keys, **headers}, json={} if method in ("POST", "PATCH") else None)
            for headers in ({"origin": EVIL}, {"sec-fetch-site": "cross-site"}, {"origin": EVIL, "sec-fetch-site": "same-site"})
        ]
        preflight = await client.options(path, headers={"origin": EVIL, "access-control-request-method": method})
    for answer in (*answers, preflight):
        assert answer.status_code == 403
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        message = answer.json()["error"]
        assert "--cors-origins" in (message if isinstance(message, str) else message["message"])


@pytest.mark.parametrize(("method", "path"), sorted(PRIVATE))
async def test_other_clients_may_use_a_private_route(method: str, path: str) -> None:
    path = path.replace("{prefix_id:int}", "1").replace("{index:int}", "0").replace(":str}", "").replace("{", "")
    own = {"origin": "http://testserver.local", "sec-fetch-site": "same-origin"}
    named = {"origin": FRIEND, "sec-fetch-site": "cross-site"}
    async with serving(cors_origins=("*", FRIEND)) as client:
        for headers in ({}, own, named, {"sec-fetch-site": "none"}):
            # The stream of events does not end on its own.
            query = {"max_s": 0.01} if path == "/documents/events" else None
            answer = await client.request(
                method, path, params=query, headers=headers, json={} if method in ("POST", "PATCH") else None
            )
            assert answer.status_code not in (403, 415, 421)
        preflight = await client.options(path, headers={"origin": FRIEND, "access-control-request-method": method})
    assert preflight.headers["access-control-allow-origin"] == answer.request.headers.get("origin", FRIEND)
    assert preflight.headers["access-control-allow-credentials"] == "true"


def test_a_page_without_an_origin_cannot_be_named() -> None:
    with pytest.raises(ValueError, match="every page can have the origin 'null'"):
        policy_of(cors_origins=("null",))
    assert policy_of(cors_origins=("*",)).sender(scope_of(headers={"origin": "null"})) is FOREIGN


async def test_a_foreign_page_may_not_use_prompt_files(tmp_path: Path) -> None:
    async with serving(slot_save_path=tmp_path) as client:
        answer = await client.post("/stream", json={"prompt": "a", "n_predict": 1, "cache": 1}, headers={"origin": EVIL})
    assert (answer.status_code, "the field cache" in answer.text) == (403, True)


async def test_a_foreign_page_may_not_change_the_system_prompt() -> None:
    body = {"prompt": "a", "n_predict": 1, "system_prompt": {"prompt": "Lie."}}
    async with serving([[token(0, "a")], [finished(0)], []]) as client:
        answer = await client.post("/completion", json=body, headers={"origin": EVIL})
        shown = (await client.get("/props")).json()["system_prompt"]
    assert (answer.status_code, shown) == (403, "")
    assert "the field system_prompt" in answer.json()["error"]["message"]


async def test_a_foreign_page_does_not_see_the_system_prompt(live: LiveServer) -> None:
    prompts = [
        {"prompt": "Secret.", "anti_prompt": "Us:", "assistant_name": "It:"},
        {"prompt": "", "anti_prompt": "", "assistant_name": ""},
    ]
    texts = ("system_prompt", "user_name", "assistant_name")
    async with httpx.AsyncClient(base_url=live.url) as client:
        shown = []
        for prompt in prompts:
            body = {"prompt": PROMPT, "n_predict": 1, "system_prompt": prompt}
            (await client.post("/completion", json=body)).raise_for_status()
            for headers in ({}, {"origin": EVIL}):
                properties = (await client.get("/props", headers=headers)).raise_for_status().json()
                shown.append([properties[text] for text in texts])
    assert shown == [["Secret.", "Us:", "It:"], [""] * 3, [""] * 3, [""] * 3]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_foreign_page_does_not_follow_the_system_prompt(live: LiveServer, stream: bool) -> None:
    common = {"prompt": "Secret.", "anti_prompt": "Us:", "assistant_name": "It:"}
    none = {"prompt": "", "anti_prompt": "", "assistant_name": ""}
    body: dict[str, Any] = {"prompt": PROMPT, "n_predict": 2, "temperature": 0, "stream": stream}
    async with httpx.AsyncClient(base_url=live.url) as client:
        try:
            (await client.post("/completion", json={**body, "system_prompt": common})).raise_for_status()
            own, foreign = [
                (await client.post("/completion", json=body, headers=headers)).raise_for_status()
                for headers in ({}, {"origin": EVIL})
            ]
        finally:
            (await client.post("/completion", json={**body, "system_prompt": none})).raise_for_status()
    assert [text in own.text for text in ("Secret.", "Us:")] == [True, True]
    assert [text in foreign.text for text in ("Secret.", "Us:")] == [False, False]


@pytest.mark.parametrize(
    ("path", "headers"),
    [("/health?include_slots", {}), ("/health?include%5Fslots=1", {}), ("/v1/completions", {"x-conversation-id": "a"})],
)
async def test_a_foreign_page_may_not_use_the_private_part_of_an_open_route(path: str, headers: dict[str, str]) -> None:
    method, body = ("POST", {"prompt": "a", "stream": True}) if "completions" in path else ("GET", None)
    async with serving([[token(0, "a")], [finished(0)], []]) as client:
        foreign = await client.request(method, path, headers={**headers, "origin": EVIL}, json=body)
        own = await client.request(method, path, headers=headers, json=body)
    assert (foreign.status_code, own.status_code) == (403, 200)


@pytest.fixture(scope="module")
async def listening(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveServer]:
    """A server as a user starts it, with one completion that its cache and its log of requests know."""
    with LiveServer(
        tmp_path_factory.mktemp("listening") / "log", "-np", "1", "-c", "512", "--allowed-hosts", "chat.example"
    ) as server:
        await server.ready()
        async with httpx.AsyncClient(base_url=server.url) as client:
            (await client.post("/completion", json={"prompt": PROMPT, "n_predict": 4})).raise_for_status()
        yield server


@pytest.mark.parametrize("path", ["/cache", "/health", "/", "/slots", "/no/such/route"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "DELETE"])
async def test_a_name_that_an_attacker_points_at_loopback_is_refused(listening: LiveServer, path: str, method: str) -> None:
    host = f"evil.example:{listening.port}"
    headers = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
    async with httpx.AsyncClient(base_url=listening.url) as client:
        answer = await client.request(method, path, headers=headers)
    assert answer.status_code == 421
    assert method == "HEAD" or "--allowed-hosts evil.example" in answer.json()["error"]["message"]
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    ("authority", "status"), [("evil.example", 421), ("localhost", 200), ("chat.example:1", 200), ("[::1]:1", 200)]
)
async def test_http_2_names_the_host_otherwise(listening: LiveServer, authority: str, status: int) -> None:
    async with Http2Client(listening.port) as client:
        assert await client.status(await client.request("GET", "/health", authority=authority)) == status


@pytest.mark.parametrize("host", ["chat.example", "localhost", "127.0.0.1", "[::1]"])
async def test_a_host_of_the_settings_is_served(listening: LiveServer, host: str) -> None:
    async with httpx.AsyncClient(base_url=listening.url) as client:
        answer = await client.get("/cache", headers={"host": host})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a", None]
)
async def test_a_body_that_needs_no_preflight_is_refused_to_a_foreign_page_alone(
    listening: LiveServer, content_type: str | None
) -> None:
    body = json.dumps({"prompt": PROMPT, "n_predict": 1}).encode()
    headers = {} if content_type is None else {"content-type": content_type}
    async with httpx.AsyncClient(base_url=listening.url) as client:
        foreign = await client.post("/completion", content=body, headers={**headers, "origin": EVIL})
        own = await client.post("/completion", content=body, headers={**headers, "origin": listening.url})
        program = await client.post("/completion", content=body, headers=headers)
    assert (foreign.status_code, own.status_code, program.status_code) == (415, 200, 200)
    assert "access-control-allow-origin" not in foreign.headers


async def test_a_foreign_page_reads_no_texts_of_others(listening: LiveServer) -> None:
    async with httpx.AsyncClient(base_url=listening.url) as client:
        own = await client.get("/cache")
        fetched = await client.get("/cache", headers={"origin": EVIL, "sec-fetch-site": "cross-site"})
        opened = await client.get("/slots", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"})
    assert "upon a time" in own.text
    assert (fetched.status_code, opened.status_code) == (403, 403)
    assert "upon a time" not in fetched.text


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "path",
    [
        *("/completion", "/completions", "/infill", "/v1/completions", "/chat/completions", "/v1/chat/completions"),
        *("/v1/messages", "/v1/responses", "/api/generate", "/api/chat"),
    ],
)
async def test_a_foreign_page_is_not_told_why_a_prompt_was_computed(listening: LiveServer, path: str, stream: bool) -> None:
    def body_with(text: str) -> dict[str, Any]:
        how = {"options": {"num_predict": 1}} if path.startswith("/api/") else {"max_tokens": 1}
        how = {"max_output_tokens": 1} if path == "/v1/responses" else how
        if path == "/infill":
            return {"input_prefix": text, "stream": stream, **how}
        if path == "/v1/responses":
            return {"input": text, "stream": stream, **how}
        is_chat = "chat" in path or "messages" in path
        said = {"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}
        return {**said, "stream": stream, **how}

    body = {**body_with("A letter begins with apples."), "explain_cache": True}
    headers = {"origin": EVIL, "sec-fetch-site": "cross-site"}
    async with httpx.AsyncClient(base_url=listening.url) as client:
        own = [await client.post(path, json=body_with("A letter begins with zebras."))]
        foreign = await client.post(path, json=body, headers=headers)
        unasked = await client.post(path, json={**body, "explain_cache": False}, headers=headers)
        own.append(await client.post(path, json=body))
    is_private = path == "/v1/responses"
    assert (foreign.status_code, unasked.status_code) == (403, 403 if is_private else 200)
    assert is_private or "the field explain_cache" in foreign.text
    assert not [told for told in (foreign, unasked) if "cache_explanation" in told.text or "weft-cache" in told.headers]
    assert [answer.status_code for answer in own] == [200, 200]
    assert ["cache_explanation" in answer.text for answer in own] == [False, True]


async def test_a_foreign_page_may_generate_as_with_llama_server(listening: LiveServer) -> None:
    headers = {"origin": EVIL, "sec-fetch-site": "cross-site"}
    async with httpx.AsyncClient(base_url=listening.url) as client:
        preflight = await client.options("/completion", headers={**headers, "access-control-request-method": "POST"})
        answer = await client.post("/completion", json={"prompt": PROMPT, "n_predict": 1}, headers=headers)
    for each in (preflight, answer):
        assert (each.status_code, each.headers["access-control-allow-origin"]) == (200, EVIL)
        assert "access-control-allow-credentials" not in each.headers


async def test_a_unix_socket_and_other_addresses_know_no_host(tmp_path: Path) -> None:
    path = tmp_path / "weft.sock"
    with LiveServer(tmp_path / "log", "-np", "1", "-c", "256", "--host", f"0.0.0.0,{path}") as server:
        await server.ready()
        async with httpx.AsyncClient() as client:
            by_address = await client.get(f"{server.url}/health", headers={"host": "gpu.lan"})
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path))) as client:
            by_path = await client.get("http://gpu.lan/health")
    assert (by_address.status_code, by_path.status_code) == (200, 200)
