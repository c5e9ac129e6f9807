"""Texts of models, files and other people are shown as text: nothing in them runs, is loaded, or changes what is beside it."""

import base64
import contextlib
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from playwright.async_api import Browser, ConsoleMessage, Dialog, FilePayload, Route, expect
from playwright.async_api import Error as PlaywrightError

from tests.helpers import wait_until
from tests.page.served import PageServer, tree
from tests.page.writer import Writer
from weft.documents.formats import EXPORTS

PARTS = (
    '<img src=x onerror="pwned=1">',
    '<svg onload="pwned=1"><script>pwned=1</script><a xlink:href="javascript:pwned=1"><text>x</text></a></svg>',
    "</script><script>pwned=1</script>",
    '</title></style></textarea></template></noscript><iframe srcdoc="<script>parent.pwned=1</script>"></iframe>',
    '<a href="javascript:pwned=1">link</a> [link](javascript:pwned=1) javascript:pwned=1',
    "<base href=https://evil.example/><link rel=stylesheet href=https://evil.example/a.css>![](https://evil.example/a.png)",
    '<form id=attributes><input name=parentNode></form><style>*{display:none}</style><div style="position:fixed;inset:0">',
    "{@html '<b>'} ${pwned=1} {{constructor.constructor('pwned=1')()}} &lt;b&gt; &#60;b&#62; %3Cb%3E",
    "\u202egnp.exe\u2066\u2067 \u200b\u200d\u2060\ufeff\u00ad e\u0301\u0301\u0301",
)
TEXT = " ".join(PARTS)
VISIBLE = PARTS[:8]
"""Parts without invisible characters, which the page may show otherwise."""

REPORT = """
addEventListener("securitypolicyviolation", (event) =>
  report(`${event.violatedDirective} forbids ${event.blockedURI} ${event.sample}`));
"""

FOUND = """
() => [
  ...(window.pwned === undefined ? [] : ["a script ran"]),
  ...[...document.querySelectorAll(
    "img:not(.cm-widgetBuffer), iframe, object, embed, base, template, style, form[id=attributes], svg a, " +
    "a[href]:not([href^='#']), script:not([src*='/assets/']), link[rel=stylesheet]:not([href*='/assets/'])",
  )].map((element) => element.outerHTML),
  ...[...document.querySelectorAll("*")].flatMap((element) =>
    element.getAttributeNames().filter((name) => name.startsWith("on")).map((name) => `${element.tagName} ${name}`)),
]
"""
"""Elements and attributes that the page itself does not have."""

UNISOLATED = """
(mark) => [...document.querySelectorAll("body *")]
  .filter((element) => element.checkVisibility() && !element.closest(".cm-content, input, textarea"))
  .filter((element) => [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.includes(mark)))
  .filter((element) => {
    for (let each = element; each !== null; each = each.parentElement) {
      const { unicodeBidi, display } = getComputedStyle(each);
      if (["isolate", "isolate-override", "plaintext"].includes(unicodeBidi)) return false;
      // A block orders its own text, which the element shares with others or has alone.
      const hasOthers = [...each.childNodes].some((node) => !node.contains(element) && node.textContent.trim() !== "");
      if (!["inline", "contents"].includes(display)) return hasOthers;
    }
    return true;
  })
  .map((element) => element.outerHTML)
"""
"""Elements whose text with control characters of direction can reorder the text beside it."""


class Guard:
    """Collects all that a hostile text could achieve."""

    def __init__(self, url: str) -> None:
        self.problems: list[str] = []
        self._url = url

    async def watch(self, writer: Writer) -> None:
        """Watches a tab from its next page on."""
        context, page = writer.page.context, writer.page
        await context.expose_function("report", self._report)
        await context.add_init_script(REPORT)
        context.on("page", lambda other: self.problems.append(f"another page: {other.url}"))
        page.on("console", self._console)
        page.on("dialog", self._dialog)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("framenavigated", lambda frame: self._request(frame.url))
        page.on("request", lambda request: self._request(request.url))

    def reports(self, directive: str) -> bool:
        """Returns whether a violation of a directive was reported."""
        return any(f"{directive} forbids " in problem for problem in self.problems)

    def _report(self, problem: str) -> None:  # Playwright takes no method of a list.
        self.problems.append(problem)

    def _request(self, url: str) -> None:
        if not url.startswith((f"{self._url}/", "data:", "blob:")):
            self.problems.append(f"request to {url}")

    def _console(self, message: ConsoleMessage) -> None:
        # The browser logs answers of errors too, which a test provokes.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.problems.append(f"console: {message.text}")

    async def _dialog(self, dialog: Dialog) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        await dialog.dismiss()


@pytest.fixture
async def guard(writer: Writer, server: PageServer) -> AsyncIterator[Guard]:
    """Watches the tab; at its end, nothing has happened."""
    guard = Guard(server.url)
    await guard.watch(writer)
    yield guard
    assert await writer.page.evaluate(FOUND) == []
    assert guard.problems == []


PANELS = ("Documents", "Tree", "Branches", "Context", "Sampling", "Token")


async def look_around(writer: Writer) -> None:
    """Shows every panel, and checks that each consists of the page's own elements."""
    for panel in PANELS:
        await writer.panel(panel)
        await expect(writer.page.get_by_role("tab", name=panel, exact=True)).to_have_attribute("aria-selected", "true")
        assert await writer.page.evaluate(FOUND) == [], panel
        assert await writer.page.evaluate(UNISOLATED, "\u202e") == [], panel


async def test_text_of_the_model(writer: Writer, server: PageServer, guard: Guard) -> None:
    server.engine.say(TEXT)
    document = await server.create("Model", *tree("Once "))
    await writer.open(document, 1)
    await writer.text.focus()
    await writer.press("Control+Enter")
    await writer.panel("Branches")
    for part in VISIBLE:
        await expect(writer.branch(1)).to_contain_text(part)
    await writer.open(document, 2)
    for part in VISIBLE:
        await expect(writer.text).to_contain_text(part)
    place = await writer.place(writer.text, "onerror")
    await writer.page.mouse.move(place["right"] - 2, place["y"])
    await look_around(writer)


def encoded(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


ENTRY = {
    "name": TEXT,
    "keys": [TEXT],
    "secondary_keys": [],
    "text": TEXT,
    "is_constant": True,
    "is_enabled": True,
    "order": 1,
    "depth": 4,
}

FILES: Mapping[str, str] = {
    "json": encoded(
        {
            "format": "weft document",
            "version": 1,
            "title": TEXT,
            "folder": f"{PARTS[0]}/{PARTS[8]}",
            "settings": {"memory": TEXT, "author_note": {"text": TEXT, "depth": 4}, "lore": [ENTRY]},
            "nodes": [
                {"id": 1, "text": TEXT, "label": TEXT, "note": TEXT, "is_bookmarked": True, "model": TEXT, "finish_reason": TEXT},
                {"id": 2, "parent": 1, "text": TEXT, "parameters": {"stop": [TEXT], TEXT: TEXT}, "is_interrupted": True},
                {"id": 3, "parent": 1, "text": TEXT, "is_trashed": True},
            ],
        }
    ),
    "markdown": f"# {TEXT}\n\n{TEXT}\n\n## {TEXT}\n\n{TEXT}",
    "text": TEXT,
    "loom": encoded(
        {
            "root": {"id": "1", "text": TEXT, "children": [{"id": "2", "text": TEXT, "children": [], "chapter_id": "c"}]},
            "chapters": {"c": {"id": "c", "title": TEXT, "root_id": "2"}},
            "selected_node_id": "2",
        }
    ),
    "mikupad": encoded(
        {
            "name": encoded(TEXT),
            "prompt": encoded([{"type": "user", "content": TEXT}, {"content": TEXT}]),
            "memoryTokens": encoded({"text": TEXT}),
            "authorNoteTokens": encoded({"text": TEXT}),
            "worldInfo": encoded({"entries": [{"displayName": TEXT, "text": TEXT, "keys": [TEXT]}]}),
        }
    ),
    "sillytavern": encoded({"name": TEXT, "entries": {"0": {"comment": TEXT, "key": [TEXT], "content": TEXT, "constant": True}}}),
    "koboldai": encoded(
        {
            "prompt": TEXT,
            "actions": [TEXT],
            "memory": TEXT,
            "authorsnote": TEXT,
            "worldinfo": [{"comment": TEXT, "key": TEXT, "content": TEXT}],
        }
    ),
}


@pytest.mark.parametrize("format_name", FILES)
async def test_imported_files(writer: Writer, server: PageServer, guard: Guard, format_name: str) -> None:
    await writer.open()
    await writer.panel("Documents")
    await writer.page.get_by_role("button", name="Import…").click()
    file: FilePayload = {"name": f"{PARTS[0]}{PARTS[8]}.txt", "mimeType": "text/html", "buffer": FILES[format_name].encode()}
    await writer.dialog.locator("input[type=file]").set_input_files(file)
    await writer.dialog.get_by_role("combobox").first.select_option(format_name)
    assert await writer.page.evaluate(FOUND) == []
    await writer.dialog.get_by_role("button", name="Import", exact=True).click()
    await expect(writer.dialog).to_have_count(0)
    [record] = (await server.documents()).values()
    await writer.open(record["id"])
    nodes = await server.nodes(record["id"])
    if nodes:
        await writer.open(record["id"], max(node for node, each in nodes.items() if not each["is_trashed"]))
        await expect(writer.text).to_contain_text(VISIBLE[0])
    await look_around(writer)
    await writer.panel("Documents")
    await writer.page.get_by_role("searchbox").fill("onerror")
    await expect(writer.page.locator("[data-hit]").or_(writer.page.get_by_text("Nothing found")).first).to_be_visible()
    assert await writer.page.evaluate(FOUND) == []
    assert await writer.page.evaluate(UNISOLATED, "\u202e") == []


async def test_names_that_are_typed(writer: Writer, server: PageServer, guard: Guard) -> None:
    document = await server.create("Names", *tree("Once", " upon"))
    await writer.open(document, 2)
    await writer.page.get_by_label("Title", exact=True).fill(TEXT[:1_000])
    await writer.press("Enter")
    await expect(writer.page).to_have_title(re.compile(re.escape(VISIBLE[0])))
    await server.client.patch(f"/documents/{document}", json={"folder": "/".join((PARTS[0].replace("/", ""), PARTS[8]))})
    await server.client.patch(f"/documents/{document}/nodes/2", json={"label": TEXT, "note": TEXT, "is_bookmarked": True})
    await expect(writer.tree).to_contain_text(VISIBLE[0])
    await look_around(writer)


def spans(text: str, alternatives: Sequence[str]) -> list[Any]:
    """Returns spans of a text of one token, with alternatives."""
    top = [[nth, -1.0 - nth, base64.b64encode(each.encode()).decode()] for nth, each in enumerate(alternatives, 2)]
    return [[len(text.encode()), 1, -0.5, [[1, -0.5, base64.b64encode(text.encode()).decode()], *top]]]


async def test_tokens_and_their_alternatives(writer: Writer, server: PageServer, guard: Guard) -> None:
    node = {"id": 2, "parent": 1, "text": " token", "spans": spans(" token", PARTS), "model": TEXT, "digest": "x"}
    document = await server.create("Alternatives", {"id": 1, "text": "Once"}, node)
    await writer.open(document, 2)
    place = await writer.place(writer.text, "token")
    await writer.page.mouse.move((place["left"] + place["right"]) / 2, place["y"])
    await expect(writer.page.get_by_text(VISIBLE[0]).first).to_be_visible()
    assert await writer.page.evaluate(FOUND) == []
    assert await writer.page.evaluate(UNISOLATED, "\u202e") == []
    await writer.cursor_after("token")
    await writer.panel("Token")
    await expect(writer.page.get_by_role("tabpanel").filter(has_text=VISIBLE[0])).to_be_visible()
    await look_around(writer)


async def test_messages_of_errors(writer: Writer, server: PageServer, guard: Guard) -> None:
    document = await server.create(
        "Errors", {"id": 1, "text": "Once"}, {"id": 2, "parent": 1, "text": " upon", "is_interrupted": True}
    )

    async def fail(route: Route) -> None:
        error = {"code": 500, "message": TEXT, "type": "server_error"}
        await route.fulfill(status=500, content_type="application/json", body=encoded({"error": error}))

    async def with_error(route: Route) -> None:
        answer = await route.fetch()
        content = await answer.json()
        for node in content["nodes"]:
            node["error"] = TEXT
        await route.fulfill(response=answer, json=content)

    await writer.page.route("**/nodes?**", with_error)
    await writer.page.route("**/continue", fail)
    await writer.open(document, 2)
    await writer.panel("Branches")
    await writer.text.focus()
    await writer.press("Control+Enter")
    await expect(writer.messages).to_contain_text(VISIBLE[0])
    assert await writer.page.evaluate(UNISOLATED, "\u202e") == []
    await look_around(writer)


async def test_exported_files_are_saved_and_not_shown(writer: Writer, server: PageServer, guard: Guard) -> None:
    document = await server.create(TEXT, *tree(f"<!doctype html>{TEXT}"))
    await writer.open(document)
    for format_name in EXPORTS:
        async with writer.page.expect_download() as download:
            with contextlib.suppress(PlaywrightError):  # The address leads to no page.
                await writer.page.goto(f"{server.url}/documents/{document}/export?format={format_name}")
        assert (await download.value).suggested_filename.startswith("document.")
    await expect(writer.text).to_be_visible()


FORBIDDEN = (
    ("document.body.innerHTML = '<b>x</b>'", "require-trusted-types-for"),
    ("document.head.append(Object.assign(document.createElement('script'), { text: 'pwned=1' }))", "require-trusted-types-for"),
    ("trustedTypes.createPolicy('other', { createHTML: (text) => text })", "trusted-types"),
    ("new Image().src = 'https://evil.example/a.png'", "img-src"),
    ("fetch('https://evil.example/').catch(() => {})", "connect-src"),
    ("document.body.setAttribute('style', 'color: red')", "style-src-attr"),
    ("document.head.append(Object.assign(document.createElement('style'), { textContent: 'b {}' }))", "style-src-elem"),
    ("document.body.append(Object.assign(document.createElement('iframe'), { src: 'https://evil.example/' }))", "frame-src"),
    (
        "with (document.body.appendChild(document.createElement('form'))) { action = 'https://evil.example/'; submit(); }",
        "form-action",
    ),
    ("document.head.append(Object.assign(document.createElement('base'), { href: 'https://evil.example/' }))", "base-uri"),
)
"""What the policy forbids even to the page's own scripts, with the directive that is reported."""


async def test_what_the_policy_forbids_is_reported(server: PageServer, browser: Browser) -> None:
    # Without this, tests that find no report would show nothing.
    context = await browser.new_context()
    writer = await Writer.start(context, server)
    guard = Guard(server.url)
    await guard.watch(writer)
    await writer.open()
    for code, directive in FORBIDDEN:
        guard.problems.clear()
        with contextlib.suppress(PlaywrightError):
            await writer.page.evaluate(f"() => {{ {code} }}")
        await wait_until(partial(guard.reports, directive))
        assert await writer.page.evaluate("window.pwned") is None
    await context.close()


async def test_an_answer_that_is_a_page_is_not_one(writer: Writer, server: PageServer, guard: Guard) -> None:
    async def answer(route: Route) -> None:
        await route.fulfill(status=502, content_type="text/html", body=f"<html>{TEXT}")

    await writer.page.route("**/documents", answer)
    await writer.open()
    await expect(writer.page.get_by_role("banner")).to_be_visible()
    assert await writer.page.evaluate(FOUND) == []
