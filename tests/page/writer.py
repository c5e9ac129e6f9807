"""A writer at the page: what a user does in one tab, by keys, pointer and names."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from playwright.async_api import BrowserContext, Locator, Page, Request, expect

__all__ = ["Writer", "read"]

RECORD = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) => violations.push([event.violatedDirective, event.blockedURI]));
"""

PLACE = """
(content, word) => {
  const walker = document.createTreeWalker(content, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node !== null; node = walker.nextNode()) {
    const at = node.data.indexOf(word);
    if (at < 0) continue;
    const range = document.createRange();
    range.setStart(node, at);
    range.setEnd(node, at + word.length);
    const { left, right, top, bottom } = range.getBoundingClientRect();
    return { left, right, y: (top + bottom) / 2 };
  }
  return null;
}
"""
"""Returns where a word is on the screen."""


class Address(Protocol):
    """A server."""

    url: str


class Writer:
    """One tab of the page."""

    def __init__(self, page: Page, server: Address) -> None:
        self.page = page
        self.server = server
        self.requests: list[Request] = []
        """All requests of the page."""
        self.errors: list[str] = []
        """Errors that the page has thrown."""
        page.on("request", self._note)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.text = page.get_by_role("main").get_by_role("textbox", name="Text", exact=True)
        self.save_state = page.locator("header").get_by_role("status").first
        self.branches = page.get_by_role("region", name="Branches", exact=True)
        self.tree = page.get_by_role("tree", name="Tree of the document")
        self.messages = page.get_by_role("log", name="Messages")
        self.dialog = page.get_by_role("dialog")

    def _note(self, request: Request) -> None:
        self.requests.append(request)

    @classmethod
    async def start(cls, context: BrowserContext, server: Address) -> "Writer":
        """Opens a tab without the page."""
        await context.add_init_script(RECORD)
        return cls(await context.new_page(), server)

    async def open(self, document: str | None = None, node: int | None = None) -> None:
        """Opens the page, and a document at a node."""
        fragment = "" if document is None else f"#{document}/{node or ''}"
        await self.page.goto(f"{self.server.url}/{fragment}")
        if document is not None:
            await expect(self.text).to_be_visible()

    async def new_document(self, title: str = "") -> None:
        """Begins a document with the button of the page."""
        await self.page.get_by_role("main").get_by_role("button", name="New document").click()
        await expect(self.text).to_be_focused()
        if title:
            await self.page.get_by_label("Title").fill(title)
            await self.press("Enter")
            await expect(self.text).to_be_focused()

    async def reload(self) -> None:
        """Reloads the page with its document."""
        await self.page.reload()
        await expect(self.text).to_be_visible()

    async def write(self, text: str) -> None:
        """Types a text at the cursor, key by key."""
        await self.page.keyboard.type(text)

    async def press(self, *keys: str) -> None:
        """Presses keys, one after the other."""
        for key in keys:
            await self.page.keyboard.press(key)

    async def saved(self) -> None:
        """Waits until all that was typed is stored."""
        await expect(self.save_state).to_have_text("Saved")

    async def command(self, name: str) -> None:
        """Runs a command from the list of commands."""
        await self.press("Control+k")
        await self.page.get_by_role("combobox", name="Type a command").fill(name)
        await self.press("Enter")
        await expect(self.page.get_by_role("dialog", name="Commands")).to_have_count(0)

    async def to_end(self) -> None:
        """Puts the cursor at the end of the text."""
        await self.text.focus()
        await self.press("Control+End")

    async def cursor_after(self, word: str) -> None:
        """Puts the cursor after a word of the text column with the pointer."""
        place = await self.place(self.text, word)
        await self.page.mouse.click(place["right"] - 0.5, place["y"])

    async def place(self, where: Locator, word: str) -> Any:  # noqa: ANN401 (JSON)
        """Returns where a word is on the screen, once it is shown."""
        await expect(where).to_contain_text(word)
        place = await where.evaluate(PLACE, word)
        assert place is not None, f"{word!r} is not in one piece of the text"
        return place

    async def shows(self, text: str) -> None:
        """Waits until the text column shows this text and no other."""
        await expect(self.text).to_have_text(text)

    def branch(self, n: int) -> Locator:
        """The card of a branch, by its number from the top."""
        return self.branches.get_by_role("article", name=re.compile(rf"^Branch {n},"))

    def row(self, name: str) -> Locator:
        """The row of the tree whose node begins with a text."""
        return self.tree.get_by_role("treeitem", name=re.compile(f"^{re.escape(name)}"))

    async def panel(self, name: str) -> None:
        """Shows a panel by its tab."""
        await self.page.get_by_role("tab", name=name, exact=True).click()

    def sent(self, method: str, path: str) -> list[Request]:
        """Requests of the page so far with a method, whose path matches a pattern."""
        return [each for each in self.requests if each.method == method and re.search(path, each.url)]

    def writes(self) -> Sequence[str]:
        """Methods and paths of requests so far that change something."""
        changing = [each for each in self.requests if each.method != "GET" and "/documents" in each.url]
        return [f"{each.method} {each.url.removeprefix(self.server.url)}" for each in changing]

    async def close(self) -> None:
        """Closes the tab, which must have made no mistake."""
        await self.check()
        await self.page.close()

    async def check(self) -> None:
        """Fails if the page has thrown an error, violated its policy, or asked another host."""
        assert self.errors == []
        assert await self.page.evaluate("window.violations ?? []") == []
        foreign = [each.url for each in self.requests if not each.url.startswith((self.server.url, "data:", "blob:"))]
        assert foreign == []


def read(path: Path) -> str:
    """Returns the text of a downloaded file."""
    return path.read_text(encoding="utf-8")
