"""Typing: what is stored when, and where an edit goes in the tree."""

import asyncio
import re

import pytest
from playwright.async_api import Route, expect

from tests.page.conftest import NewWriter
from tests.page.served import PageServer, tree
from tests.page.writer import Writer


async def test_a_story_is_typed_saved_and_there_after_a_reload(writer: Writer, server: PageServer) -> None:
    await writer.open()
    await writer.new_document("The lighthouse")
    await writer.write("Mira lit the lamp.")
    await writer.press("Enter")
    await writer.write("The sea was black.")
    await writer.saved()
    [document] = (await server.documents()).values()
    assert document["title"] == "The lighthouse"
    await server.has_texts(document["id"], ["Mira lit the lamp.\nThe sea was black."])
    await writer.reload()
    await expect(writer.text).to_contain_text("The sea was black.")
    await expect(writer.page).to_have_title(re.compile("^The lighthouse . Weft$"))


async def test_one_edit_is_one_write(writer: Writer, server: PageServer) -> None:
    await writer.page.clock.install()
    await writer.open(await server.create("One write", *tree("Once")))
    await writer.to_end()
    await writer.page.clock.pause_at(await writer.page.evaluate("Date.now() + 1000"))
    before = len(writer.writes())
    await writer.write(" upon a time there was a keeper of a lighthouse")
    assert len(writer.writes()) == before
    async with writer.page.expect_response(lambda response: response.request.method == "PATCH"):
        await writer.page.clock.run_for(300)
    await writer.saved()
    assert len(writer.writes()) == before + 1


async def test_long_typing_is_stored_within_a_second(writer: Writer, server: PageServer) -> None:
    await writer.page.clock.install()
    document = await server.create("Long", *tree("Once"))
    await writer.open(document)
    await writer.to_end()
    await writer.page.clock.pause_at(await writer.page.evaluate("Date.now() + 1000"))
    async with writer.page.expect_response(lambda response: response.request.method == "PATCH"):
        for _ in range(3):  # No pause is long enough to store by itself.
            await writer.write("x")
            await writer.page.clock.run_for(200)
    assert len(writer.writes()) == 1
    assert (await server.texts(document))[0].startswith("Oncexxx")


async def test_an_edit_of_generated_text_is_a_variant_and_the_original_stays(writer: Writer, server: PageServer) -> None:
    document = await server.create("Variant", *tree("Once there was"))
    await server.client.post(f"/documents/{document}/nodes/1/continue", json={"n_predict": 5})
    await writer.open(document, 2)
    await writer.shows("Once there was The fox found door 1")
    await writer.cursor_after("fox")
    await writer.write("es")
    await writer.saved()
    await writer.shows("Once there was The foxes found door 1")
    nodes = await server.nodes(document)
    assert [(node["parent"], node["text"]) for node in nodes.values()] == [
        (None, "Once there was"),
        (1, " The fox found door 1"),
        (1, " The foxes found door 1"),
    ]
    await writer.press("Alt+ArrowUp")
    await writer.shows("Once there was The fox found door 1")


async def test_an_edit_before_generated_text_keeps_the_rest_on_the_screen(writer: Writer, server: PageServer) -> None:
    document = await server.create("Beginning", *tree("Once there was"))
    await server.client.post(f"/documents/{document}/nodes/1/continue", json={"n_predict": 2})
    await writer.open(document, 2)
    await writer.cursor_after("there")
    await writer.write("in")
    await writer.saved()
    await writer.shows("Once therein was The fox")
    texts = await server.texts(document)
    assert texts[:2] == ["Once there was", " The fox"]
    assert sorted(texts[2:]) == [" The fox", "Once therein was"]


async def test_hand_written_text_is_changed_in_place(writer: Writer, server: PageServer) -> None:
    document = await server.create("In place", *tree("The keper lit the lamp."))
    await writer.open(document)
    await writer.cursor_after("The ke")
    await writer.write("e")
    await writer.saved()
    await server.has_texts(document, ["The keeper lit the lamp."])


async def test_text_after_generated_text_is_a_node_of_its_own(writer: Writer, server: PageServer) -> None:
    document = await server.create("After", *tree("Once"))
    await server.client.post(f"/documents/{document}/nodes/1/continue", json={"n_predict": 2})
    await writer.open(document, 2)
    await writer.shows("Once The fox")
    await writer.to_end()
    await writer.write(" slept.")
    await writer.saved()
    await server.has_texts(document, ["Once", " The fox", " slept."])


async def test_text_typed_before_a_branch_begins_stands_beside_it(writer: Writer, server: PageServer) -> None:
    document = await server.create("Early", *tree("Once"))
    await writer.open(document)
    await writer.to_end()
    is_typed = asyncio.Event()

    async def continue_later(route: Route) -> None:
        await is_typed.wait()
        await route.continue_()

    await writer.page.route("**/continue", continue_later)
    async with writer.page.expect_request("**/continue"):
        await writer.press("Control+Shift+Enter")
    await writer.write(" up")
    await writer.saved()
    async with writer.page.expect_response("**/continue"):
        is_typed.set()
        await writer.write("on")
    await expect(writer.row("The fox")).to_be_visible()
    await writer.saved()
    await writer.write(" a time")
    await writer.saved()
    await writer.shows("Once upon a time")
    await writer.row("The fox").click()
    await expect(writer.text).to_contain_text("Once The fox found door 1 and went through it.")
    nodes = (await server.nodes(document)).values()
    assert [(node["parent"], node["text"][:12]) for node in nodes] == [(None, "Once"), (1, " upon a time"), (1, " The fox fou")]


async def test_undo_before_branches_begin_waits_and_removes_them(writer: Writer, server: PageServer) -> None:
    document = await server.create("Hasty", *tree("Once"))
    await writer.open(document)
    await writer.to_end()
    await writer.write(" upon")
    is_undone = asyncio.Event()

    async def continue_later(route: Route) -> None:
        await is_undone.wait()
        await route.continue_()

    await writer.page.route("**/continue", continue_later)
    async with writer.page.expect_request("**/continue"):
        await writer.press("Control+Enter")
    await writer.press("Control+z")
    is_undone.set()
    await expect(writer.messages).to_contain_text("Undone")
    await writer.shows("Once upon")
    assert await server.texts(document) == ["Once upon"]
    await writer.text.focus()
    await writer.press("Control+z")
    await writer.shows("Once")


@pytest.mark.parametrize("n_words", [0, 2])
async def test_text_typed_while_a_branch_is_followed_stands_beside_it(writer: Writer, server: PageServer, n_words: int) -> None:
    document = await server.create("Followed", *tree("Once"))
    await writer.open(document)
    await writer.to_end()
    await writer.page.get_by_role("combobox", name="Until").select_option("16 tokens")
    await writer.text.focus()
    server.engine.hold(n_words)
    async with writer.page.expect_response("**/continue"):
        await writer.press("Control+Shift+Enter")
    await expect(writer.text.locator(".cm-writing")).to_be_visible()
    await writer.shows("Once The fox" if n_words else "Once")
    await writer.write(" up")
    await writer.shows("Once up")
    server.engine.release()
    await writer.write("on")
    await writer.saved()
    await writer.shows("Once upon")
    await expect(writer.row("The fox")).not_to_have_accessible_name(re.compile("being written"))
    texts = ["Once", " The fox found door 1 and went through it. The fox found door 2 and went", " upon"]
    await server.has_texts(document, texts)
    assert [node["parent"] for node in (await server.nodes(document)).values()] == [None, 1, 1]


async def test_text_typed_after_a_followed_branch_continues_it(writer: Writer, server: PageServer) -> None:
    document = await server.create("Ended", *tree("Once"))
    await writer.open(document)
    await writer.to_end()
    await writer.page.get_by_role("combobox", name="Until").select_option("End of sentence")
    await writer.text.focus()
    server.engine.hold(2)
    await writer.press("Control+Shift+Enter")
    await writer.shows("Once The fox")
    await expect(writer.text.locator(".cm-writing")).to_be_visible()
    server.engine.release()
    await expect(writer.text.locator(".cm-writing")).to_have_count(0)
    await writer.write(" Then")
    await writer.saved()
    await writer.shows("Once The fox found door 1 and went through it. Then")
    nodes = (await server.nodes(document)).values()
    assert [(node["parent"], node["text"][-5:]) for node in nodes] == [(None, "Once"), (1, "h it."), (2, " Then")]


async def test_undo_and_redo_reach_back_beyond_a_reload(writer: Writer, server: PageServer) -> None:
    document = await server.create("Undo", *tree("Once"))
    await writer.open(document)
    await writer.to_end()
    await writer.write(" upon")
    await writer.saved()
    await writer.press("ArrowLeft", "End")  # What is typed from here on is another step.
    await writer.write(" a time")
    await writer.saved()
    await writer.shows("Once upon a time")
    await writer.reload()
    await writer.text.focus()
    await writer.press("Control+z")
    await writer.shows("Once upon")
    await writer.press("Control+z")
    await writer.shows("Once")
    await writer.press("Control+y", "Control+Shift+z")
    await writer.shows("Once upon a time")
    await writer.saved()
    assert "".join(await server.texts(document)) == "Once upon a time"


async def test_a_deleted_node_comes_back_with_undo(writer: Writer, server: PageServer) -> None:
    document = await server.create("Trash", *tree("Once", " upon"))
    await writer.open(document, 2)
    await writer.row("upon").click()
    await writer.press("Delete")
    await writer.shows("Once")
    await expect(writer.messages).to_contain_text("to the trash.")
    await server.has_texts(document, ["Once"])
    await writer.press("Control+z")
    await writer.shows("Once upon")
    await writer.press("Control+y")
    await writer.shows("Once")


async def test_two_tabs_see_and_keep_each_others_edits(writer: Writer, server: PageServer, new_writer: NewWriter) -> None:
    document = await server.create("Tabs", *tree("Once"))
    other = await new_writer(server, beside=writer)
    for each in (writer, other):
        await each.open(document)
        await each.to_end()
    await writer.write(" upon")
    await other.shows("Once upon")
    await other.press("Control+End")
    await other.write(" a time")
    await writer.shows("Once upon a time")
    await server.has_texts(document, ["Once upon a time"])


async def test_a_stale_edit_becomes_a_sibling(writer: Writer, server: PageServer) -> None:
    document = await server.create("Stale", *tree("Once"))
    await writer.open(document)
    await writer.to_end()

    async def change_before(route) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        """Another client is faster than this tab."""
        await server.client.patch(f"/documents/{document}/nodes/1", json={"version": 1, "text": "Twice"})
        await route.continue_()

    await writer.page.route("**/nodes/1", change_before, times=1)
    await writer.write(" upon")
    await writer.saved()
    await expect(writer.messages).to_contain_text("Your version is now a branch of its own")
    await writer.shows("Once upon")
    await server.has_texts(document, ["Twice", "Once upon"])


async def test_text_typed_without_a_connection_is_kept_and_stored_later(writer: Writer, server: PageServer) -> None:
    document = await server.create("Offline", *tree("Once"))
    await writer.open(document)
    await writer.to_end()
    await writer.page.context.set_offline(offline=True)
    await writer.write(" upon")
    await expect(writer.save_state).to_have_text("Offline: kept in this browser")
    await server.has_texts(document, ["Once"])
    await writer.page.context.set_offline(offline=False)
    await writer.saved()
    await server.has_texts(document, ["Once upon"])


async def test_text_typed_without_a_connection_survives_a_crash_of_the_tab(
    writer: Writer, server: PageServer, new_writer: NewWriter
) -> None:
    document = await server.create("Crash", *tree("Once"))
    await writer.open(document)
    await writer.to_end()
    await writer.page.route("**/documents/**", lambda route: route.abort())
    await writer.write(" upon")
    await expect(writer.save_state).to_have_text("Offline: kept in this browser")
    later = await new_writer(server, beside=writer)
    await writer.close()
    await later.open(document)
    await later.shows("Once upon")
    await later.saved()
    await server.has_texts(document, ["Once upon"])


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        (["Backspace"], "Onc"),
        (["Control+Backspace"], ""),
        (["Control+a", "Delete"], ""),
        (["Home", "Shift+End", "x"], "x"),
    ],
    ids=" ".join,
)
async def test_text_can_be_removed(writer: Writer, server: PageServer, keys: list[str], shown: str) -> None:
    document = await server.create("Remove", *tree("Once"))
    await writer.open(document)
    await writer.to_end()
    await writer.press(*keys)
    await writer.saved()
    await server.has_texts(document, [shown])


async def test_composed_characters_are_one_edit(writer: Writer, server: PageServer) -> None:
    document = await server.create("Input method", *tree("Once"))
    await writer.open(document)
    await writer.to_end()
    session = await writer.page.context.new_cdp_session(writer.page)
    for composed in ("n", "ni", "に"):
        await session.send(
            "Input.imeSetComposition", {"text": composed, "selectionStart": len(composed), "selectionEnd": len(composed)}
        )
    await session.send("Input.insertText", {"text": "に"})
    await writer.saved()
    await writer.shows("Onceに")
    await server.has_texts(document, ["Onceに"])
    await writer.press("Control+z")
    await writer.shows("Once")


async def test_offsets_count_characters_beyond_the_basic_plane(writer: Writer, server: PageServer) -> None:
    document = await server.create("Emoji", *tree("🦊🦊 Once upon"))
    await writer.open(document)
    await writer.cursor_after("Once")
    await writer.command("Split at the cursor")
    await expect(writer.tree.get_by_role("treeitem")).to_have_count(2)
    await server.has_texts(document, ["🦊🦊 Once", " upon"])


async def test_the_number_of_words_follows_the_text_and_the_selection(writer: Writer, server: PageServer) -> None:
    await writer.open(await server.create("Words", *tree("One two three")))
    bar = writer.page.get_by_role("toolbar", name="Continue")
    await expect(bar).to_contain_text("3 words")
    await writer.to_end()
    await writer.write(" four")
    await expect(bar).to_contain_text("4 words")
    await writer.press("Control+Shift+ArrowLeft")
    await expect(bar).to_contain_text("1 selected")


async def test_focus_mode_and_appearance_are_kept(writer: Writer, server: PageServer) -> None:
    await writer.open(await server.create("Calm", *tree("Once")))
    await writer.command("Appearance")
    await writer.dialog.get_by_label("Dark").check()
    await writer.dialog.get_by_label("Monospace").check()
    await writer.dialog.get_by_label("Check spelling").uncheck()
    await writer.press("Escape")
    await writer.press("Control+Shift+.")
    await expect(writer.tree).to_have_count(0)
    await writer.reload()
    await expect(writer.tree).to_have_count(0)
    await expect(writer.page.locator("html")).to_have_attribute("data-theme", "dark")
    await expect(writer.text).to_have_attribute("spellcheck", "false")
    assert "mono" in await writer.text.evaluate("element => getComputedStyle(element).fontFamily")
    await writer.press("Control+Shift+.")
    await expect(writer.tree).to_be_visible()
