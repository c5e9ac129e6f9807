"""Measures the page for writers in headless Chromium with a large document: 10,000 nodes of 60 tokens, demo model.

| figure | measured |
| --- | --- |
| open | from the navigation until the text and the rows of the tree are painted |
| scroll, expand | time between frames while the tree scrolls, and while the whole tree and single rows expand and collapse |
| type | from a key until the next frame |
| store | from a key until the server has stored it; the page waits 300 ms for further keys |
| memory | JavaScript heap after a collection; resident memory of the browser's process for the page and of the server |
| alternative | from a click on an alternative until the first new token: time, steps of the model and computed tokens |

Start it in the repository's root as `python -m benches.page`, or by `make bench-page`; it takes two minutes. Figures depend
on the machine and on what else runs there.
"""

# ruff: noqa: T201  (a bench answers on the standard output)

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import Browser, CDPSession, Page, Response, Route, async_playwright

from tests.browser import launched
from tests.server.live import LiveServer

N_NODES = 10_000
N_TOKENS = 60
"""Tokens of each node; words of the list are one token of the demo model each."""

WORDS = ("the", "fox", "and", "his", "old", "red", "dog", "ran", "to", "a", "big", "house", "with", "her", "little", "bird")

FLAGS = ("-np", "8", "-c", "32768", "--kv-unified", "--spec-type", "none", "--metrics")
MIB = 1 << 20
TIMEOUT_MS = 120_000
FRAMES = """
async (step) => {
  const tree = document.querySelector("[role=tree]");
  const deltas = [];
  let last = await new Promise(requestAnimationFrame);
  for (let n = 0; n < 240; n++) {
    step === "scroll" ? (tree.scrollTop += 90) : await window.expandNext(n);
    const now = await new Promise(requestAnimationFrame);
    deltas.push(now - last);
    last = now;
  }
  return deltas;
}
"""
"""Changes the tree in each frame, and returns the times between frames in milliseconds."""

EXPAND = """
window.expandNext = async (n) => {
  const toggles = document.querySelectorAll("[role=tree] [data-part=toggle]");
  toggles[(n * 7) % toggles.length]?.click();
};
"""

TYPED = """
() => new Promise((resolve) => {
  addEventListener("keydown", (event) => requestAnimationFrame(() =>
    setTimeout(() => resolve(performance.now() - event.timeStamp))), { once: true, capture: true });
})
"""
"""Returns the time from the next key until its frame was painted, in milliseconds."""


@dataclass
class Figures:
    """All measured values, in milliseconds and bytes."""

    open_ms: list[float] = field(default_factory=list)
    scroll_ms: list[float] = field(default_factory=list)
    expand_ms: list[float] = field(default_factory=list)
    whole_tree_ms: list[float] = field(default_factory=list)
    type_ms: list[float] = field(default_factory=list)
    store_ms: list[float] = field(default_factory=list)
    click_ms: list[float] = field(default_factory=list)
    click_steps: list[float] = field(default_factory=list)
    click_computed: list[float] = field(default_factory=list)
    n_rows: int = 0
    heap: int = 0
    renderer: int = 0
    server: int = 0


def story() -> dict[str, Any]:
    """Returns a document as a JSON file: one long story with up to eight branches at each of its nodes, and branches of those."""
    draw = random.Random(1)
    nodes: list[dict[str, Any]] = []
    for nth in range(1, N_NODES + 1):
        text = "".join(f" {draw.choice(WORDS)}" for _ in range(N_TOKENS - 1)) + "."
        node: dict[str, Any] = {"id": nth, "text": text}
        if nth > 1:
            node["parent"] = draw.choice(range(max(1, nth - 200), nth))
        if nth % 100 == 0:
            node["label"] = f"Chapter {nth // 100}"
        nodes.append(node)
    return {"format": "weft document", "version": 1, "title": "A long story", "nodes": nodes}


class Measurement:
    """One tab with the document."""

    def __init__(self, page: Page, browser: CDPSession, client: httpx.AsyncClient, server: LiveServer, document: str) -> None:
        self.page = page
        self.figures = Figures()
        self._browser = browser
        self._client = client
        self._server = server
        self._document = document
        self._text = page.get_by_role("textbox", name="Text", exact=True)

    async def run(self) -> Figures:
        """Measures everything, one after the other."""
        for _ in range(5):
            await self.open()
        self.figures.n_rows = await self.page.get_by_role("treeitem").count()
        await self.memory()
        await self.tree()
        await self.typing()
        await self.alternative()
        return self.figures

    async def open(self) -> None:
        """Opens the document in the middle of its story."""
        await self.page.goto("about:blank")
        start = time.perf_counter()
        await self.page.goto(f"{self._server.url}/#{self._document}/{N_NODES // 2}", wait_until="commit")
        await self._text.wait_for()
        await self.page.get_by_role("treeitem").first.wait_for()
        await self.page.evaluate("() => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)))")
        self.figures.open_ms.append(1e3 * (time.perf_counter() - start))

    async def memory(self) -> None:
        """Reads what the page and the server hold."""
        session = await self.page.context.new_cdp_session(self.page)
        await session.send("HeapProfiler.collectGarbage")
        self.figures.heap = (await session.send("Runtime.getHeapUsage"))["usedSize"]
        processes = (await self._browser.send("SystemInfo.getProcessInfo"))["processInfo"]
        self.figures.renderer = max(resident(each["id"]) for each in processes if each["type"] == "renderer")
        self.figures.server = self._server.memory_bytes()

    async def tree(self) -> None:
        """Scrolls the tree, and expands and collapses it."""
        await self.page.evaluate(EXPAND)
        await self.page.get_by_role("tree").evaluate("(tree) => (tree.scrollTop = 0)")
        self.figures.scroll_ms = await self.page.evaluate(FRAMES, "scroll")
        await self.page.get_by_role("tree").evaluate("(tree) => (tree.scrollTop = 0)")
        self.figures.expand_ms = await self.page.evaluate(FRAMES, "expand")
        for command in ("Collapse the whole tree", "Expand the whole tree") * 3:
            self.figures.whole_tree_ms.append(await self.command(command))

    async def command(self, name: str) -> float:
        """Runs a command; returns how long its frame took, in milliseconds."""
        await self.page.get_by_role("tree").focus()
        await self.page.keyboard.press("Control+k")
        await self.page.get_by_role("combobox", name="Type a command").fill(name)
        frame = """() => new Promise((resolve) => addEventListener("keydown", (event) =>
            setTimeout(() => requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - event.timeStamp)))),
            { once: true, capture: true }))"""
        took = asyncio.create_task(self.page.evaluate(frame))
        await asyncio.sleep(0.1)
        await self.page.keyboard.press("Enter")
        return float(await took)

    async def typing(self) -> None:
        """Types single characters at the end of the text."""
        await self._text.focus()
        await self.page.keyboard.press("Control+End")
        for nth in range(20):
            painted = asyncio.create_task(self.page.evaluate(TYPED))
            await asyncio.sleep(0.1)
            start = time.perf_counter()
            # The first key creates a node, the others change it.
            async with self.page.expect_response(is_stored) as stored:
                await self.page.keyboard.press("x")
            await (await stored.value).finished()
            if nth > 0:
                self.figures.store_ms.append(1e3 * (time.perf_counter() - start))
            self.figures.type_ms.append(float(await painted))

    async def alternative(self) -> None:
        """Clicks on alternatives of a generated text."""
        made = await self._client.post(
            f"/documents/{self._document}/nodes/1/continue", json={"n_predict": 48, "n_probs": 10, "ignore_eos": True, "seed": 1}
        )
        [node] = made.json()["nodes"]
        await self.ended([node])
        # The branches end after their first token, so that all decodes are those before it.
        await self.page.route("**/continue", with_one_token)
        async with self.events() as events:
            await self.page.goto(f"{self._server.url}/#{self._document}/{node['id']}")
            await self.page.get_by_role("combobox", name="Branches").select_option("× 4")
            for _ in range(5):
                # The branches begin before the last token, so that the node ends one token earlier each time.
                await self.page.goto(f"{self._server.url}/#{self._document}/{node['id']}")
                await self._text.focus()
                await self.page.keyboard.press("Control+End")
                await self.page.keyboard.press("Alt+Enter")
                option = self.page.get_by_role("listbox", name="Alternatives").get_by_role("option", selected=False).first
                await option.wait_for()
                events.clear()
                n_before = await self.n_decodes()
                start = time.perf_counter()
                async with self.page.expect_response("**/continue") as answered:
                    await option.click()
                branches = await self.ended((await (await answered.value).json())["nodes"])
                self.figures.click_steps.append(await self.n_decodes() - n_before)
                self.figures.click_computed.append(sum(branch["n_computed"] for branch in branches))
                self.figures.click_ms.append(1e3 * (events[0] - start))

    async def n_decodes(self) -> int:
        """Returns the number of the model's steps so far."""
        metrics = (await self._client.get("/metrics")).raise_for_status().text
        return int(float(next(line.split()[1] for line in metrics.splitlines() if line.startswith("llamacpp:n_decode_total "))))

    async def ended(self, nodes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Waits until the branches of nodes have ended. Returns the nodes."""
        ended: list[dict[str, Any]] = []
        for node in nodes:
            path = f"/documents/{self._document}/nodes/{node['id']}"
            while (found := (await self._client.get(path)).json())["state"] == "running":  # noqa: ASYNC110  (a script waits as well)
                await asyncio.sleep(0.1)
            ended.append(found)
        return ended

    @asynccontextmanager
    async def events(self) -> AsyncIterator[list[float]]:
        """Yields the times at which steps of branches arrive."""
        times: list[float] = []

        def note(line: str) -> None:
            if line == "event: tokens":
                times.append(time.perf_counter())

        async def read() -> None:
            with suppress(httpx.TransportError):
                async with self._client.stream("GET", "/documents/events", timeout=None) as answer:
                    async for line in answer.aiter_lines():
                        note(line)

        reading = asyncio.create_task(read())
        try:
            yield times
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def with_one_token(route: Route) -> None:
    """Sends a request for branches of one token each."""
    await route.continue_(post_data={**(route.request.post_data_json or {}), "n_predict": 1})


def is_stored(answer: Response) -> bool:
    """Returns whether an answer is that to a change of a node."""
    return answer.request.method in {"POST", "PATCH"} and "/nodes" in answer.url


def resident(process: int) -> int:
    """Returns the resident memory of a process, in bytes."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the smallest value that at least `percent` of all values do not exceed."""
    return sorted(values)[min(int(len(values) * percent / 100), len(values) - 1)]


def row(name: str, values: Sequence[float]) -> str:
    """Returns a row of the table of times."""
    return f"| {name} | {percentile(values, 50):,.0f} | {percentile(values, 99):,.0f} |"


def table(figures: Figures) -> str:
    """Returns all figures as Markdown."""
    return "\n".join(
        [
            "| in milliseconds | median | 99th percentile |",
            "| --- | --- | --- |",
            row("open", figures.open_ms),
            row("frame while scrolling the tree", figures.scroll_ms),
            row("frame while expanding and collapsing rows", figures.expand_ms),
            row("expand or collapse the whole tree", figures.whole_tree_ms),
            row("key to frame", figures.type_ms),
            row("key to stored", figures.store_ms),
            row("click on an alternative to the first new token of its branches", figures.click_ms),
            "",
            "| from the click to the first new token of four branches | median | 99th percentile |",
            "| --- | --- | --- |",
            row("steps of the model", figures.click_steps),
            row("computed tokens of the prompt", figures.click_computed),
            "",
            "| other figures | |",
            "| --- | --- |",
            f"| rows of the tree in the DOM | {figures.n_rows} |",
            f"| JavaScript heap | {figures.heap / MIB:.0f} MiB |",
            f"| process of the page | {figures.renderer / MIB:.0f} MiB |",
            f"| server | {figures.server / MIB:.0f} MiB |",
        ]
    )


async def measure(browser: Browser, folder: Path) -> Figures:
    """Serves the document, and measures the page with it."""
    with LiveServer(folder / "log", *FLAGS, "--documents", str(folder / "documents.sqlite")) as server:
        await server.ready()
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            file = {"format": "json", "content": json.dumps(story())}
            document = (await client.post("/documents/import", json=file)).raise_for_status().json()["id"]
            page = await browser.new_page(viewport={"width": 1440, "height": 900})
            page.set_default_timeout(TIMEOUT_MS)
            return await Measurement(page, await browser.new_browser_cdp_session(), client, server, document).run()


async def run() -> None:
    """Measures once, and prints the table."""
    with tempfile.TemporaryDirectory() as folder:
        async with async_playwright() as playwright, launched(playwright) as browser:
            print(table(await measure(browser, Path(folder))))


def main() -> int:
    """Reads the arguments, of which there are none."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    asyncio.run(run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
