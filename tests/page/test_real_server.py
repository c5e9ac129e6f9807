"""A real server, with the demo model: what a click on an alternative computes."""

from pathlib import Path

import httpx
from playwright.async_api import Browser, expect

from tests.helpers import wait_until
from tests.page.writer import Writer
from tests.server.live import LiveServer
from tests.server.matchers import Json

FLAGS = ("-np", "8", "-c", "32768", "--kv-unified", "--spec-type", "none")

TEXT = "Once upon a time, there was a fox who lived in a forest."


async def created(client: httpx.AsyncClient) -> str:
    """Creates a document with a text, whose branches do not end by themselves; returns its id."""
    made = await client.post("/documents", json={"settings": {"sampling": {"ignore_eos": True}}})
    document = str(made.json()["id"])
    await client.post(f"/documents/{document}/nodes", json={"text": TEXT})
    return document


async def test_an_alternative_of_the_demo_model_costs_one_computed_token(tmp_path: Path, browser: Browser) -> None:
    flags = (*FLAGS, "--documents", str(tmp_path / "documents.sqlite"))
    with LiveServer(tmp_path / "log", *flags) as server:
        await server.ready()
        async with httpx.AsyncClient(base_url=server.url) as client:
            document = await created(client)
        context = await browser.new_context()
        writer = await Writer.start(context, server)
        await writer.open(document, 1)
        await writer.to_end()
        await writer.page.get_by_role("combobox", name="Branches").select_option("× 4")
        await writer.page.get_by_role("combobox", name="Until").select_option("32 tokens")
        await writer.press("Control+Shift+Enter")
        await expect(writer.tree.get_by_role("treeitem")).to_have_count(2)
        await expect(writer.page.get_by_role("button", name="Stop all")).to_have_count(0)
        await writer.press("ArrowLeft", "ArrowLeft", "ArrowLeft", "Alt+Enter")
        alternatives = writer.page.get_by_role("listbox", name="Alternatives")
        await expect(alternatives.get_by_role("option").nth(3)).to_be_visible()
        await alternatives.get_by_role("option", selected=False).first.click()
        await expect(writer.branches.get_by_text("1 token read")).to_have_count(1)

        def branches() -> list[Json]:
            nodes = server.get(f"/documents/{document}/nodes")["nodes"]
            # The rest of the node that was split has its own branch's figures.
            return [node for node in nodes if node["parent"] == 2 and node["id"] > 3]

        await wait_until(lambda: [node["state"] for node in branches()] == ["done"] * 4, pause_s=0.05)
        made = branches()
        assert sum(node["n_computed"] for node in made) == 1
        await writer.check()
        await context.close()
