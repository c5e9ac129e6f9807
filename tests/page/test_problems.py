"""What the page says, keeps and does when the server refuses, is full, is loading or is gone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import expect

from tests.page.conftest import NewWriter
from tests.page.served import PageServer, tree
from tests.page.writer import Writer

KEY = "s3cret"


@asynccontextmanager
async def serving(folder: Path, **settings: Any) -> AsyncIterator[PageServer]:  # noqa: ANN401 (settings)
    async with PageServer(folder / "documents.sqlite", **settings) as server:
        yield server


async def test_the_key_is_asked_for_and_kept_in_memory_alone(tmp_path: Path, new_writer: NewWriter) -> None:
    async with serving(tmp_path, api_keys=(KEY,), api_prefix="/llm/v2") as server:
        document = await server.create("Secret", *tree("Once"))
        writer = await new_writer(server)
        await writer.page.goto(f"{server.url}/#{document}/1")
        field = writer.page.get_by_label("Key", exact=True)
        await field.fill("wrong")
        await writer.press("Enter")
        await expect(writer.dialog.get_by_role("alert")).to_have_text("The server does not accept this key.")
        await field.fill(KEY)
        await writer.press("Enter")
        await writer.shows("Once")
        kept = "JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, location.href])"
        assert KEY not in await writer.page.evaluate(kept)
        assert all(KEY not in each.url for each in writer.requests)
        await writer.to_end()
        await writer.write(" upon")
        await writer.saved()
        await server.has_texts(document, ["Once upon"])
        await writer.page.reload()
        await expect(writer.page.get_by_label("Key", exact=True)).to_be_visible()


async def test_the_key_survives_a_reload_if_the_user_asks(tmp_path: Path, new_writer: NewWriter) -> None:
    async with serving(tmp_path, api_keys=(KEY,)) as server:
        document = await server.create("Secret", *tree("Once"))
        writer = await new_writer(server)
        await writer.page.goto(f"{server.url}/#{document}/1")
        await writer.page.get_by_label("Key", exact=True).fill(KEY)
        await writer.page.get_by_label("Remember until this tab is closed").check()
        await writer.press("Enter")
        await writer.shows("Once")
        await writer.reload()
        await writer.shows("Once")
        assert KEY not in await writer.page.evaluate("JSON.stringify({ ...localStorage })")


async def test_text_that_exceeds_a_quota_is_kept_and_the_page_says_why(tmp_path: Path, new_writer: NewWriter) -> None:
    async with serving(tmp_path, documents_max_bytes=4_000) as server:
        document = await server.create("Full", *tree("Once"))
        writer = await new_writer(server)
        await writer.open(document)
        await writer.to_end()
        await writer.page.keyboard.insert_text(" long" * 1_000)
        await expect(writer.messages).to_contain_text("Your text could not be saved")
        await expect(writer.save_state).to_have_text("Not saved: kept in this browser")
        await server.has_texts(document, ["Once"])
        await writer.reload()
        await expect(writer.text).to_contain_text("long long long")
        await writer.text.focus()
        await writer.press("Control+a")
        await writer.write("Short")
        await writer.saved()
        await server.has_texts(document, ["Short"])


async def test_branches_that_exceed_a_quota_are_interrupted_with_the_reason(tmp_path: Path, new_writer: NewWriter) -> None:
    async with serving(tmp_path, documents_max_bytes=6_000) as server:
        document = await server.create("Full", *tree("Once"))
        server.engine.step_s = 0.01
        writer = await new_writer(server)
        await writer.open(document, 1)
        await writer.text.focus()
        await writer.page.get_by_role("combobox", name="Branches").select_option("× 2")
        await writer.page.get_by_role("combobox", name="Until").select_option("512 tokens")
        await writer.press("Control+Enter")
        await expect(writer.branch(1)).to_contain_text("interrupted: the quota of bytes is used up")


async def test_a_server_without_documents_says_so(tmp_path: Path, new_writer: NewWriter) -> None:
    async with serving(tmp_path, documents=False) as server:
        writer = await new_writer(server)
        await writer.open()
        main = writer.page.get_by_role("main")
        await expect(main.get_by_role("heading", name="The server offers no documents")).to_be_visible()
        await expect(main).to_contain_text("--no-documents")


async def test_text_is_written_while_the_model_is_loaded(tmp_path: Path, new_writer: NewWriter) -> None:
    async with serving(tmp_path, is_loaded=False) as server:
        writer = await new_writer(server)
        await writer.open()
        await writer.new_document()
        await writer.write("Once")
        await writer.saved()
        banner = writer.page.get_by_role("banner")
        await expect(banner).to_contain_text("The model is being loaded. You can already write.")
        server.engine.loaded.set()
        await expect(banner).not_to_contain_text("The model is being loaded.")
        await writer.press("Control+Shift+Enter")
        await expect(writer.text).to_contain_text("The fox found")


async def test_a_document_that_was_deleted_elsewhere_is_no_dead_end(writer: Writer, server: PageServer) -> None:
    document = await server.create("Gone", *tree("Once"))
    await writer.open(document)
    await server.client.delete(f"/documents/{document}")
    await expect(writer.messages).to_contain_text("This document was deleted.")
    await expect(writer.page.get_by_role("main").get_by_role("button", name="New document")).to_be_visible()


async def test_an_address_of_no_document_says_so(writer: Writer, server: PageServer) -> None:
    await writer.page.goto(f"{server.url}/#0123456789abcdef/1")
    await expect(writer.messages).to_contain_text("The document cannot be opened: there is no document")
    await expect(writer.page.get_by_role("main").get_by_role("button", name="New document")).to_be_visible()


async def test_a_lost_connection_is_named_and_made_again(writer: Writer, server: PageServer) -> None:
    document = await server.create("Lost", *tree("Once"))
    await writer.open(document)
    await server.stop()
    await expect(writer.page.get_by_role("banner")).to_contain_text("Connection lost")
    await server.start()
    await expect(writer.messages).to_contain_text("Connected again.")
    await server.client.patch(f"/documents/{document}/nodes/1", json={"version": 1, "text": "Twice"})
    await writer.shows("Twice")


async def test_a_page_that_opens_before_its_server_waits_for_it(writer: Writer, server: PageServer) -> None:
    await writer.page.route("**/documents*", lambda route: route.abort())
    await writer.page.goto(f"{server.url}/")
    await expect(writer.page.get_by_role("main").get_by_role("status")).to_contain_text("Connection lost")
    await writer.page.unroute("**/documents*")
    await expect(writer.page.get_by_role("main").get_by_role("button", name="New document")).to_be_visible()
