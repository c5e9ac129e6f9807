"""The documentation page at `/docs`: its files and headers, and its behaviour in Chromium."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from litestar.testing import AsyncTestClient
from playwright.async_api import Browser, Locator, Page, Request, Route, async_playwright, expect

from tests.browser import launched
from tests.helpers import wait_until
from tests.server.live import LiveServer
from tests.server.scripted import ScriptedEngine
from tests.server.serving import serving
from weft.server import create_app
from weft.server.page import DOCS, text_of
from weft.server.web_policy import _OPEN

pytestmark = pytest.mark.timeout(120)

KEY = "s3cret"
PREFIX = "/llm/v2"

POLICY = {
    "default-src": "'none'",
    "connect-src": "'self'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}


@pytest.mark.parametrize(
    "settings", [{}, {"api_keys": (KEY,)}, {"ui": False}], ids=["plain", "with a key", "without the page at /"]
)
async def test_the_page_and_its_files_need_no_key(settings: dict[str, Any]) -> None:
    async with serving(**settings) as client:
        answers = {path: await client.get(path) for path in (*DOCS, "/openapi.json")}
    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(answers, 200)
    for path, media_type in DOCS.items():
        headers = answers[path].headers
        assert (headers["content-type"], headers["x-content-type-options"]) == (f"{media_type}; charset=utf-8", "nosniff")
        assert headers["cache-control"] == "no-cache"
    policy = answers["/docs"].headers["content-security-policy"]
    assert dict(directive.split(" ", 1) for directive in policy.split("; ")) == POLICY
    assert answers["/docs"].headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("prefix", ["", PREFIX])
async def test_a_trailing_slash_leads_to_the_page(prefix: str) -> None:
    async with serving(api_prefix=prefix, api_keys=(KEY,)) as client:
        redirect = await client.get(f"{prefix}/docs/", follow_redirects=False)
        page = await client.get(f"{prefix}/docs/")
    assert redirect.status_code == 308
    assert (page.status_code, page.url.path) == (200, f"{prefix}/docs")


async def test_the_page_is_served_while_the_model_is_loaded() -> None:
    engine = ScriptedEngine()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        assert [(await client.get(path)).status_code for path in (*DOCS, "/openapi.json")] == [200, 200, 200, 503]
        engine.loaded.set()


def test_the_page_has_no_inline_code_and_loads_only_its_own_files() -> None:
    page, script, style = text_of("docs.html"), text_of("docs.js"), text_of("docs.css")
    assert re.findall(r'<script(?! src="docs\.js" defer></script>)|<style|\son\w+="|\sstyle="', page) == []
    assert re.findall(r'(?:src|href)="([^"]*)"', page) == [
        "data:,",
        "docs.css",
        "docs.js",
        "#routes",
        "openapi.json",
        "openapi.json",
    ]
    assert re.findall(r"https?:|@import|url\(|\bimport\b", script + style) == []
    assert (
        re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|localStorage|sessionStorage|cookie", script)
        == []
    )


async def test_the_document_has_the_meanings_of_request_fields() -> None:
    async with serving() as client:
        schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]

    def texts(body: str) -> set[str]:
        return {name for name, about in schemas[body]["properties"].items() if about.get("description")}

    assert {"temperature", "prompt", "n", "stream", "lora", "explain_cache"} <= texts("CompletionBody")
    assert texts("ScoreBody") == set(schemas["ScoreBody"]["properties"])


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveServer]:
    """A server over the demo model, with a key and a prefix."""
    flags = ("-np", "4", "-c", "4096", "--kv-unified", "--context-shift", "--api-key", KEY, "--api-prefix", PREFIX)
    with LiveServer(tmp_path_factory.mktemp("docs") / "log", *flags) as live:

        def is_ready() -> bool:
            try:
                return httpx.get(f"{live.url}{PREFIX}/health").status_code == 200
            except httpx.TransportError:
                return False

        await wait_until(is_ready, 30, 0.05)
        yield live


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright, launched(playwright) as chromium:
        yield chromium


@pytest.fixture
async def page(server: LiveServer, browser: Browser) -> AsyncIterator[Page]:
    """The page in a browser. At its end it has violated no policy, loaded nothing from elsewhere, and thrown nothing."""
    context = await browser.new_context()
    await context.add_init_script(
        "window.violations = []; addEventListener('securitypolicyviolation', event => violations.push(event.violatedDirective))"
    )
    page = await context.new_page()
    errors: list[str] = []
    foreign: list[str] = []

    def note(request: Request) -> None:
        if not request.url.startswith((server.url + PREFIX, "data:")):
            foreign.append(request.url)

    page.on("request", note)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(dialog.message))
    await page.goto(f"{server.url}{PREFIX}/docs")
    await expect(page.locator(".operation").first).to_be_visible()
    yield page
    assert await page.evaluate("violations") == []
    assert foreign == []
    assert errors == []
    await context.close()


async def opened(page: Page, operation: str) -> Locator:
    """An operation, after a click on its summary."""
    found = page.locator(f"#{operation}")
    await found.locator("summary").click()
    return found


async def enter_key(page: Page) -> None:
    await page.get_by_role("button", name="API key").click()
    await page.get_by_label("API key of this server").fill(KEY)
    await page.get_by_role("button", name="Use key").click()


async def send(operation: Locator, body: object = None) -> None:
    if body is not None:
        await operation.get_by_label("Body (JSON)").fill(json.dumps(body))
    await operation.get_by_role("button", name="Send").click()


async def test_routes_are_grouped_by_dialect(page: Page) -> None:
    groups = [await heading.inner_text() for heading in await page.locator("main section > h2").all()]
    assert groups == [
        "OpenAI",
        "OpenAI Responses",
        "Anthropic",
        "llama.cpp",
        "Ollama",
        "Weft",
        "Documents",
        "Other servers",
        "Objects",
    ]
    async with httpx.AsyncClient() as client:
        document = (await client.get(f"{page.url.removesuffix('docs')}openapi.json")).json()
    operations = await page.evaluate("spec => operationsOf(spec).map(one => [one.method, one.paths])", document)
    found = {(method, path) for method, paths in operations for path in paths}
    assert found == {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert await page.locator(".operation").count() == len(operations)
    ids = await page.evaluate("[...document.querySelectorAll('[id]')].map(element => element.id)")
    assert len(ids) == len(set(ids))


async def test_search_finds_paths_and_fields(page: Page) -> None:
    search = page.get_by_role("searchbox")
    await page.keyboard.press("/")
    await expect(search).to_be_focused()
    await search.fill("score")
    await expect(page.locator("#post-score")).to_be_visible()
    await expect(page.locator("#get-slots")).to_be_hidden()
    await search.fill("post dry_multiplier")
    await expect(page.locator("#post-completion .found")).to_have_text("Fields: dry_multiplier")
    await expect(page.locator("#post-v1-embeddings")).to_be_hidden()
    await expect(page.get_by_role("status").first).to_have_text(re.compile(r"^\d+ of \d+ routes match\.$"))
    await search.fill("no such route")
    await expect(page.locator(".operation:visible")).to_have_count(0)
    await search.fill("")
    await expect(page.locator(".operation:visible")).to_have_count(await page.locator(".operation").count())


async def test_an_operation_shows_its_fields_and_objects(page: Page) -> None:
    operation = await opened(page, "post-score")
    row = operation.locator("tr", has_text="continuations")
    await expect(row.locator("td").nth(2)).to_contain_text("what may follow the prompt")
    await operation.get_by_role("link", name="ScoreTask").click()
    await expect(page.locator("#object-ScoreTask table")).to_be_visible()


async def test_a_completion_is_shown_whole_and_its_key_is_asked_for(page: Page) -> None:
    operation = await opened(page, "post-completion")
    await send(operation, {"prompt": "Once upon a time", "n_predict": 8, "n": 2, "seed": 1})
    await expect(page.locator("#key-reason")).to_have_text("This server requires an API key.")
    await page.get_by_label("API key of this server").fill("wrong")
    await page.keyboard.press("Enter")
    await expect(operation.locator(".progress")).to_have_text(re.compile("^401"))
    await operation.get_by_role("button", name="Send").click()
    await expect(page.locator("#key-reason")).to_have_text("The server does not accept this key.")
    await page.get_by_label("API key of this server").fill(KEY)
    await page.keyboard.press("Enter")
    await expect(operation.locator(".progress")).to_have_text(re.compile(r"^200 OK, [\d,]+ ms$"))
    answer = json.loads(await operation.get_by_label("Response").inner_text())
    assert [await text.text_content() for text in await operation.locator(".text p").all()] == [one["content"] for one in answer]


async def test_the_key_is_kept_in_memory_only(page: Page) -> None:
    await enter_key(page)
    operation = await opened(page, "get-props")
    await send(operation)
    await expect(operation.locator(".progress")).to_have_text(re.compile("^200"))
    await expect(operation.get_by_label("Equivalent curl command")).to_contain_text("Bearer $LLAMA_API_KEY")
    kept = "JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, location.href, document.body.innerHTML])"
    assert KEY not in await page.evaluate(kept)
    assert await page.locator("#key").input_value() == ""
    assert await page.context.storage_state() == {"cookies": [], "origins": []}
    await page.reload()
    operation = page.locator("#get-props")
    await expect(operation.locator(".try")).to_be_visible()  # The address names the operation.
    await send(operation)
    await expect(page.locator("#key-dialog")).to_be_visible()


async def test_a_stream_is_shown_as_it_arrives_and_stops(page: Page, server: LiveServer) -> None:
    await enter_key(page)
    operation = await opened(page, "post-completion")
    await operation.get_by_label("Body (JSON)").fill('{"prompt": "Once upon a time", "n_predict": -1, "ignore_eos": true}')
    await operation.get_by_label("Stream").check()
    assert json.loads(await operation.get_by_label("Body (JSON)").input_value())["stream"] is True
    await expect(operation.get_by_label("Equivalent curl command")).to_contain_text("curl -N ")
    stop = operation.get_by_role("button", name="Stop")
    await expect(stop).to_be_disabled()
    await send(operation)
    await expect(operation.locator(".progress")).to_have_text(re.compile(r"^200 OK: receiving, \d+ events…$"))
    await expect(operation.locator(".text p")).not_to_be_empty()
    await stop.click()
    await expect(operation.locator(".progress")).to_have_text(re.compile(r"^200 OK: stopped after [\d,]+ ms$"))
    await expect(operation.get_by_role("button", name="Send")).to_be_enabled()
    headers = {"Authorization": f"Bearer {KEY}"}

    def is_idle() -> bool:
        return not any(slot["is_processing"] for slot in httpx.get(f"{server.url}{PREFIX}/slots", headers=headers).json())

    await wait_until(is_idle, 10, 0.05)


STREAMS = {
    "post-completion": {"prompt": "Once", "n_predict": 6, "seed": 1, "stream": True},
    "post-v1-completions": {"prompt": "Once", "max_tokens": 6, "seed": 1, "stream": True},
    "post-v1-chat-completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6, "seed": 1, "stream": True},
    "post-v1-messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6, "temperature": 0, "stream": True},
    "post-v1-responses": {"input": "Hi", "max_output_tokens": 6, "store": False, "seed": 1, "stream": True},
    "post-api-generate": {"prompt": "Once", "raw": True, "options": {"num_predict": 6, "seed": 1}, "stream": True},
    "post-api-chat": {"messages": [{"role": "user", "content": "Hi"}], "options": {"num_predict": 6, "seed": 1}, "stream": True},
}


@pytest.mark.parametrize("operation_id", STREAMS)
async def test_whole_and_streamed_answers_of_each_dialect_show_the_same_text(page: Page, operation_id: str) -> None:
    await enter_key(page)
    operation = await opened(page, operation_id)
    texts = []
    for stream in (True, False):
        await send(operation, STREAMS[operation_id] | {"stream": stream})
        await expect(operation.locator(".progress")).to_have_text(
            re.compile(r"^200 OK, .*ms" + (r", \d+ events$" if stream else "$"))
        )
        texts.append(await operation.locator(".text p").text_content())
    assert texts[0] == texts[1] != ""


async def test_requests_that_change_state_are_confirmed(page: Page) -> None:
    await enter_key(page)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(f"{request.method} {request.url.partition(PREFIX)[2]}"))
    operation = await opened(page, "delete-v1-conversations-conversation-id")
    await send(operation)
    await expect(operation.get_by_role("alert")).to_have_text("conversation_id is part of the path; enter a value.")
    await operation.get_by_label("conversation_id (path)").fill("a/b?c")
    await send(operation)
    await expect(page.locator("#confirm-request")).to_have_text("DELETE /v1/conversations/a%2Fb%3Fc")
    await expect(page.locator("#confirm-dialog .cancel")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(operation.locator(".progress")).to_have_text("Not sent.")
    await send(operation)
    await page.locator("#confirm-dialog .cancel").click()
    await expect(operation.locator(".progress")).to_have_text("Not sent.")
    assert sent == []
    await send(operation)
    await page.locator("#confirm-dialog .go").click()
    await expect(operation.locator(".progress")).to_have_text(re.compile("^404"))
    assert sent == ["DELETE /v1/conversations/a%2Fb%3Fc"]


HARMLESS = {"/responses/input_tokens", "/v1/responses/input_tokens", "/v1/streams/lookup"}
"""Routes that only clients of the same origin may use, and that change nothing."""


async def test_every_other_post_is_confirmed_and_so_are_fields_that_store(page: Page) -> None:
    async with httpx.AsyncClient() as client:
        paths = (await client.get(f"{page.url.removesuffix('docs')}openapi.json")).json()["paths"]
    routes = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    confirmed = {
        (method, path) for method, path in routes if await page.evaluate("route => changesState(...route, {})", [method, path])
    }
    assert confirmed == {(method, path) for method, path in routes if method != "GET" and path not in _OPEN["POST"] | HARMLESS}
    stores = [
        ("/completion", {"system_prompt": "A story."}, True),
        ("/completion", {"system_prompt": None}, False),
        ("/v1/responses", {"input": "a"}, True),
        ("/v1/responses", {"input": "a", "store": False}, False),
        ("/responses", {"input": "a", "store": False, "conversation": "b"}, True),
    ]
    for path, body, expected in stores:
        assert await page.evaluate("request => changesState('POST', ...request)", [path, body]) is expected, (path, body)


HOSTILE = "</pre><img src=x onerror=alert(1)><script>alert(2)</script><a href='javascript:alert(3)'>x</a>"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_hostile_text_of_a_model_is_shown_as_text(page: Page, *, stream: bool) -> None:
    await enter_key(page)
    operation = await opened(page, "post-v1-completions")
    await send(operation, {"prompt": HOSTILE, "echo": True, "max_tokens": 1, "stream": stream})
    await expect(operation.locator(".text p")).to_contain_text(HOSTILE)
    await expect(operation.get_by_label("Response")).to_contain_text("onerror")
    assert await operation.locator("img, script, [href^=javascript]").count() == 0


async def test_a_hostile_response_of_another_type_is_shown_as_text(page: Page) -> None:
    async def answer(route: Route) -> None:
        await route.fulfill(status=500, content_type="text/html", body=HOSTILE)

    await page.route("**/health", answer)
    operation = await opened(page, "get-health")
    await send(operation)
    await expect(operation.get_by_label("Response")).to_have_text(HOSTILE)
    assert await operation.locator("img, script").count() == 0


async def test_the_curl_command_sends_the_same_request(page: Page) -> None:
    await enter_key(page)
    operation = await opened(page, "post-completion")
    await send(operation, {"prompt": 'It\'s $HOME `pwd` "and" é\\n', "n_predict": 4, "seed": 1, "cache_prompt": False})
    await expect(operation.locator(".progress")).to_have_text(re.compile("^200"))
    shown = json.loads(await operation.get_by_label("Response").inner_text())
    command = await operation.get_by_label("Equivalent curl command").inner_text()
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", command),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"LLAMA_API_KEY": KEY},
    )
    printed, _ = await process.communicate()
    got = json.loads(printed)
    assert (got["content"], got["prompt"]) == (shown["content"], shown["prompt"])


async def test_a_body_that_is_no_json_is_not_sent(page: Page) -> None:
    operation = await opened(page, "post-tokenize")
    await operation.get_by_label("Body (JSON)").fill("{")
    await page.keyboard.press("Control+Enter")
    await expect(operation.get_by_role("alert")).to_have_text("The body is not valid JSON.")


async def test_examples_are_accepted(page: Page, server: LiveServer) -> None:
    examples: dict[str, object] = await page.evaluate("EXAMPLES")
    async with httpx.AsyncClient(base_url=server.url + PREFIX, headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client:
        statuses = {path: (await client.post(path, json=body)).status_code for path, body in examples.items() if "{" not in path}
    # The demo model cannot fill gaps, and the server was started without embeddings and adapters.
    lacking = {"/infill", "/embedding", "/rerank", "/v1/embeddings", "/api/embed", "/api/embeddings", "/lora-adapters"}
    assert {path for path, status in statuses.items() if status != 200} <= lacking, statuses


async def test_the_page_waits_for_a_model_that_is_loaded(page: Page) -> None:
    refused = json.dumps({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}})

    async def refuse(route: Route) -> None:
        await route.fulfill(status=503, content_type="application/json", body=refused)

    await page.route("**/openapi.json", refuse)
    await page.reload()
    await expect(page.locator("#status")).to_have_text("The server answers 503: Loading model. Retrying…")
    await page.unroute("**/openapi.json")
    await expect(page.locator(".operation").first).to_be_visible()


async def test_the_keyboard_suffices(page: Page) -> None:
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the routes")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await expect(page.locator(".operation summary").first).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator(".operation .try").first).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_nothing_is_wider_than_a_phone(page: Page, scheme: str) -> None:
    await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    await page.set_viewport_size({"width": 390, "height": 844})
    for operation in ("post-completion", "get-v1-conversations-conversation-id-items-item-id", "post-v1-responses"):
        await opened(page, operation)
    assert await page.evaluate("document.documentElement.scrollWidth") == 390
    red, *_ = map(int, re.findall(r"\d+", await page.evaluate("getComputedStyle(document.body).backgroundColor")))
    assert (red < 128) == (scheme == "dark")
