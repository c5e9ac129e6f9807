"""The page for everybody: keys alone, assistive technology, zoom, narrow screens, and nothing from elsewhere."""

import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from tests.page.conftest import NewWriter
from tests.page.served import PageServer, tree
from tests.page.writer import Writer, read
from tests.server.matchers import Json

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"

STORY: list[Json] = [
    {"id": 1, "text": "Once upon a time there was a fox who lived by the sea. ", "label": "Beginning", "note": "A note"},
    {"id": 2, "parent": 1, "text": "She feared the waves.", "is_bookmarked": True},
    {"id": 3, "parent": 1, "text": "She loved the waves."},
    {"id": 4, "parent": 1, "text": "Gone.", "is_trashed": True},
]
SETTINGS = {
    "memory": "Mira is a fox.",
    "author_note": {"text": "[Short sentences.]", "depth": 4, "unit": "tokens"},
    "lore": [
        {
            "name": "Foxes",
            "keys": ["fox"],
            "secondary_keys": [],
            "text": "They talk.",
            "is_constant": False,
            "is_enabled": True,
            "order": 1,
            "depth": 0,
        }
    ],
    "branch_presets": ["precise", "wild"],
}

LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True},
}
"""Options of a browser's context."""


async def opened(writer: Writer, server: PageServer) -> str:
    """Opens a document that has everything that the page can show, at a branch of a model with two siblings."""
    document = await server.create("A story", *STORY, settings=SETTINGS, folder="Stories")
    trashed = await server.create("In the trash", *tree("Old"))
    await server.client.patch(f"/documents/{trashed}", json={"is_trashed": True})
    await server.client.post(f"/documents/{document}/nodes/3/continue", json={"n": 3, "n_predict": 16, "n_probs": 5})
    await writer.open(document, 5)
    await expect(writer.text).to_contain_text("The fox found door 2")
    return document


def keys(*pressed: str, then: str = "") -> Callable[[Writer], Awaitable[None]]:
    """Returns what shows a view: keys, then a button that is chosen."""

    async def show(writer: Writer) -> None:
        await writer.press(*pressed)
        if then:
            await writer.page.get_by_role("button", name=re.compile(f"^{then}")).click()

    return show


def context(tab: str) -> Callable[[Writer], Awaitable[None]]:
    async def show(writer: Writer) -> None:
        await writer.press("Alt+4")
        await writer.page.get_by_role("tab", name=tab, exact=True).click()

    return show


def command(name: str) -> Callable[[Writer], Awaitable[None]]:
    async def show(writer: Writer) -> None:
        await writer.command(name)
        await expect(writer.dialog.first).to_be_visible()

    return show


async def token(writer: Writer) -> None:
    await writer.press("Alt+2", "Control+End", "Alt+Enter")
    await expect(writer.page.get_by_role("dialog", name="Token", exact=True).get_by_role("option").first).to_be_visible()


async def search(writer: Writer) -> None:
    await writer.press("Control+Shift+f")
    searchbox = writer.page.get_by_role("searchbox", name="Search texts, notes and labels")
    await expect(searchbox).to_be_focused()
    await searchbox.fill("fox")
    await expect(writer.page.locator("[data-hit]").first).to_be_visible()


VIEWS: dict[str, Callable[[Writer], Awaitable[None]]] = {
    "text": keys("Alt+2"),
    "tree": keys("Alt+1"),
    "menu of a node": keys("Alt+1", "Shift+F10"),
    "chapters": keys("Alt+1", then="Chapters"),
    "bookmarks": keys("Alt+1", then="Bookmarks"),
    "trash": keys("Alt+1", then="Trash"),
    "documents": keys("Alt+5"),
    "search": search,
    "branches": keys("Alt+3"),
    "memory": context("Memory"),
    "lore": context("Lore"),
    "prompt": context("What is sent"),
    "sampling": keys("Alt+6"),
    "token": keys("Alt+7"),
    "token at the cursor": token,
    "commands": keys("Alt+2", "Control+k"),
    "keys": command("Show all keys"),
    "appearance": command("Appearance"),
    "key": command("API key"),
    "compare": command("Compare with another branch"),
    "find and replace": command("Find and replace…"),
    "export": command("Export the open document…"),
    "import": command("Import files…"),
    "focus mode": keys("Alt+2", "Control+Shift+."),
}


async def each_view(writer: Writer, look: Callable[[str], Awaitable[None]]) -> None:
    """Shows every view, and calls `look` with its name."""
    for name, show in VIEWS.items():
        await show(writer)
        await look(name)
        await writer.press("Escape")
        await expect(writer.page.locator("dialog, [popover]:popover-open"), f"after {name}").to_have_count(0)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("look", LOOKS)
async def test_axe_finds_no_violation(server: PageServer, new_writer: NewWriter, look: str) -> None:
    writer = await new_writer(server, **LOOKS[look])
    await opened(writer, server)
    await writer.page.evaluate(AXE.read_text())
    # Nothing but colours is different in the dark.
    options = {"resultTypes": ["violations"]} | ({"runOnly": ["color-contrast"]} if look == "dark" else {})
    found: list[str] = []

    async def check(view: str) -> None:
        results = await writer.page.evaluate("(options) => axe.run(document, options)", options)
        found.extend(
            f"{view}: {each['id']} {node['target']} {node.get('failureSummary', '')}"
            for each in results["violations"]
            for node in each["nodes"]
        )

    await each_view(writer, check)
    assert found == []


WIDE = (
    "[...document.querySelectorAll('body, body *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1"
    " && e.checkVisibility({ visibilityProperty: true }) && !e.closest('.visually-hidden')).map((e) => e.outerHTML.slice(0, 120))"
)


WIDTHS = {"200 percent of 1280 pixels": 640, "phone": 390}


async def test_nothing_is_wider_than_a_narrow_screen(server: PageServer, new_writer: NewWriter) -> None:
    writer = await new_writer(server)
    await writer.page.set_viewport_size({"width": WIDTHS["phone"], "height": 700})
    await opened(writer, server)

    async def check(view: str) -> None:
        for screen, width in WIDTHS.items():
            await writer.page.set_viewport_size({"width": width, "height": 700})
            scroll, shown = await writer.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert scroll <= shown, f"{view} ({screen}) scrolls sideways: {await writer.page.evaluate(WIDE)}"

    await each_view(writer, check)


async def test_reduced_motion_is_respected(server: PageServer, new_writer: NewWriter) -> None:
    writer = await new_writer(server, reduced_motion="reduce")
    server.engine.hold(2)
    await writer.open(await server.create("Calm", *tree("Once")), 1)
    await writer.text.focus()
    await writer.press("Control+Enter")
    await expect(writer.branches.get_by_role("article").first).to_contain_text("writing…")
    running = "document.getAnimations().filter((each) => each.effect.getComputedTiming().duration > 10).length"
    assert await writer.page.evaluate(running) == 0


async def test_a_tab_has_one_stream_of_events_and_asks_this_server_alone(writer: Writer, server: PageServer) -> None:
    await opened(writer, server)
    for panel in ("Documents", "Tree", "Context", "Sampling", "Token", "Branches"):
        await writer.panel(panel)
    await writer.text.focus()
    await writer.press("Control+Enter")
    await expect(writer.branches.get_by_role("article").first).to_be_visible()
    assert len(writer.sent("GET", "/documents/events")) == 1
    assert {each.url.startswith((f"{server.url}/", "data:", "blob:")) for each in writer.requests} == {True}


async def test_ends_are_announced_and_tokens_are_not(writer: Writer, server: PageServer) -> None:
    await writer.open(await server.create("Said", *tree("Once")), 1)
    await writer.page.evaluate("""
        window.said = [];
        for (const region of document.querySelectorAll("[role=status], [role=log], [role=alert], [aria-live]"))
          new MutationObserver(() => said.push(region.textContent.trim())).observe(region,
            { childList: true, characterData: true, subtree: true });
    """)
    await writer.page.get_by_role("combobox", name="Branches").select_option("× 3")
    await writer.text.focus()
    await writer.press("Control+Enter")
    await expect(writer.page.get_by_text("3 branches have ended")).to_have_count(1)
    said = await writer.page.evaluate("said")
    assert any("3 branches" in each for each in said)
    assert not any("found door" in each for each in said)
    assert len(said) < 20


async def test_the_sheet_has_every_key_and_each_is_one_action(writer: Writer, server: PageServer) -> None:
    await writer.open(await server.create("Keys", *tree("Once")))
    await writer.press("Alt+1", "?")
    sheet = writer.page.get_by_role("dialog", name="Keys")
    for name in ("Continue with branches", "Undo", "Move to the trash", "Keep: go to this branch"):
        await expect(sheet.get_by_text(name, exact=True).first).to_be_visible()
    for section in await sheet.locator("section").all():
        shown = await section.locator("kbd").all_inner_texts()
        assert shown != []
        assert all(shown)
    await writer.press("Escape")
    await expect(sheet).to_have_count(0)
    await expect(writer.tree).to_be_focused()


async def test_a_whole_story_is_written_by_keys_alone(writer: Writer, server: PageServer) -> None:
    """Write, continue, choose, edit, fork, label, find, undo and export, without a pointer."""
    await writer.open()
    await expect(writer.page.get_by_role("main").get_by_role("button", name="New document")).to_be_visible()
    await writer.press("Alt+n")
    await expect(writer.text).to_be_focused()
    await writer.write("Once upon a time")
    await writer.press("Control+Enter")
    await expect(writer.branch(1)).to_contain_text(re.compile("reached"))
    await writer.press("Alt+3", "ArrowDown")
    await expect(writer.branch(2)).to_contain_text(re.compile("reached"))
    await writer.press("Enter")
    await expect(writer.text).to_contain_text("The owl found door 1")
    await writer.press("Alt+2", "Control+End")
    await expect(writer.text).to_be_focused()
    await writer.write(" It was dark.")
    await writer.saved()
    await writer.press("Alt+1", "F2")
    await writer.write("The owl")
    await writer.press("Enter")
    await expect(writer.row("The owl, current")).to_be_visible()
    await writer.press("Alt+2", "Control+Home", *["Control+ArrowRight"] * 5, "Alt+Enter")
    await expect(writer.page.get_by_role("listbox", name="Alternatives")).to_be_focused()
    async with writer.page.expect_response("**/continue"):
        await writer.press("ArrowDown", "Enter")
    await expect(writer.page.get_by_role("listbox", name="Alternatives")).to_have_count(0)
    await writer.press("Alt+2", "Control+z")
    await writer.press("Control+Shift+f")
    await expect(writer.page.get_by_role("searchbox", name="Search texts, notes and labels")).to_be_focused()
    await writer.write("dark")
    await expect(writer.page.locator("[data-hit]")).to_have_count(1)
    await writer.press("Enter")
    await expect(writer.text).to_contain_text("It was dark.")
    await writer.press("Control+Shift+e")
    await expect(writer.dialog).to_be_visible()
    export = writer.dialog.get_by_role("button", name="Export", exact=True)
    for _ in range(8):
        if await export.evaluate("(button) => button === document.activeElement"):
            break
        await writer.press("Tab")
    async with writer.page.expect_download() as download:
        await writer.press("Enter")
    content = read(await (await download.value).path())
    assert "It was dark." in content
    assert content.startswith(("#", "{", "Once", "## "))


async def test_columns_are_reached_with_one_key(writer: Writer, server: PageServer) -> None:
    await writer.open(await server.create("Columns", *tree("Once")))
    await writer.text.focus()
    seen = []
    for _ in range(3):
        await writer.press("F6")
        seen.append(await writer.page.evaluate("document.activeElement.closest('[data-column]').dataset.column"))
    assert sorted(seen) == ["left", "right", "text"]
    await writer.press("Shift+F6")
    assert await writer.page.evaluate("document.activeElement.closest('[data-column]').dataset.column") == seen[1]


async def test_a_phone_shows_columns_as_drawers(server: PageServer, new_writer: NewWriter) -> None:
    writer = await new_writer(server, **LOOKS["phone"])
    await opened(writer, server)
    await expect(writer.tree).to_be_hidden()
    await writer.page.get_by_role("button", name="Documents and tree").tap()
    await writer.row("She feared").tap()
    await expect(writer.tree).to_be_hidden()
    await expect(writer.text).to_contain_text("She feared the waves.")
    await writer.page.get_by_role("button", name="Branches and context").tap()
    await expect(writer.branches).to_be_visible()
    await writer.page.get_by_role("button", name="Close the panel").last.tap()
    await expect(writer.branches).to_be_hidden()


async def test_the_request_of_a_branch_is_what_a_script_sends(writer: Writer, server: PageServer) -> None:
    """What the page does, documented routes do."""
    document = await server.create("Script", *tree("Once"))
    await writer.open(document, 1)
    await writer.text.focus()
    async with writer.page.expect_response("**/continue"):
        await writer.press("Control+Enter")
    [*_, request] = writer.sent("POST", "/continue$")
    body = json.loads(request.post_data or "")
    answer = await server.client.post(f"/documents/{document}/nodes/1/continue", json=body)
    assert answer.status_code == 201
    openapi = (await server.client.get("/openapi.json")).json()["paths"]
    known = [re.compile("/" + re.sub(r"\{[^}]+\}", "[^/]+", path.strip("/")) + "$") for path in openapi]
    paths = {each.url.removeprefix(server.url).partition("?")[0] for each in writer.requests}
    undocumented = {path for path in paths if not any(pattern.match(path) for pattern in known)}
    assert {path for path in undocumented if path != "/" and not path.startswith("/assets/")} == set()
