"""Branches: the focus when one is kept or pruned, also on a phone, and continuing elsewhere than at the end of the text."""

import asyncio

from playwright.async_api import Route, expect

from tests.page.conftest import NewWriter
from tests.page.served import PageServer
from tests.page.test_branches import begun, continued
from tests.page.writer import Writer

OWL = "Once upon a time The owl found door 1 and went through it. The owl found door 2 and went"


async def test_a_kept_branch_is_typed_on(writer: Writer, server: PageServer) -> None:
    document = await begun(writer, server)
    await continued(writer, 3)
    # What is typed into a branch that is being written would be another branch.
    await expect(writer.branch(2)).to_contain_text("reached its length")
    await writer.branch(2).get_by_role("button", name="Keep").click()
    await expect(writer.text).to_be_focused()
    await writer.shows(OWL)
    await writer.write(" xm")
    await writer.shows(f"{OWL} xm")
    await writer.saved()
    assert len(await server.nodes(document)) == 5
    await writer.press("Control+z")
    await writer.shows(OWL)
    await writer.press("Alt+3")
    await expect(writer.branch(2)).to_be_focused()
    await writer.press("1")
    await expect(writer.text).to_be_focused()
    await expect(writer.text).to_contain_text("The fox")
    await writer.write(" by")
    await expect(writer.text).to_contain_text("door 2 and went by")


async def test_undo_that_the_server_answers_late_leaves_the_writer_where_they_went(writer: Writer, server: PageServer) -> None:
    await begun(writer, server)
    await continued(writer, 3)
    await expect(writer.branch(2)).to_contain_text("reached its length")
    await writer.branch(2).get_by_role("button", name="Keep").click()
    await writer.shows(OWL)
    await writer.write(" xm")
    await writer.saved()
    has_gone = asyncio.Event()

    async def answer_later(route: Route) -> None:
        answer = await route.fetch()
        await has_gone.wait()
        await route.fulfill(response=answer)

    await writer.page.route("**/nodes/*", answer_later)
    await writer.press("Control+z")
    await writer.shows(OWL)
    await writer.press("Alt+3", "1")
    await expect(writer.text).to_contain_text("The fox")
    has_gone.set()
    await expect(writer.messages).to_contain_text("Undone")
    await expect(writer.text).to_contain_text("The fox")


async def test_the_focus_goes_to_a_neighbour_of_a_pruned_branch(writer: Writer, server: PageServer) -> None:
    document = await begun(writer, server)
    await continued(writer, 3)
    await expect(writer.branch(3)).to_contain_text("reached its length")
    await writer.press("Alt+3", "Home", "x")
    await expect(writer.branches.get_by_role("article")).to_have_count(2)
    await expect(writer.branch(1)).to_contain_text("The owl")
    await expect(writer.branch(1)).to_be_focused()
    await expect(writer.messages).to_contain_text("to the trash.")
    await writer.messages.get_by_role("button", name="Undo").click()
    await expect(writer.branches.get_by_role("article")).to_have_count(3)
    assert not any(node["is_trashed"] for node in (await server.nodes(document)).values())


async def test_the_current_branch_is_pruned_and_its_neighbour_has_the_focus(writer: Writer, server: PageServer) -> None:
    await begun(writer, server)
    await continued(writer, 3)
    await writer.branch(2).get_by_role("button", name="Keep").click()
    await expect(writer.branch(2)).to_have_attribute("aria-current", "true")
    await writer.press("Alt+3", "Delete")
    await expect(writer.branches.get_by_role("article")).to_have_count(2)
    await expect(writer.branch(2)).to_contain_text("The hare")
    await expect(writer.branch(2)).to_have_attribute("aria-current", "true")
    await expect(writer.branch(2)).to_be_focused()


async def test_keys_act_on_the_card_that_the_tab_key_has_reached(writer: Writer, server: PageServer) -> None:
    await begun(writer, server)
    await continued(writer, 3)
    await expect(writer.branch(3)).to_contain_text("reached its length")
    await writer.press("Alt+3", "Home")
    await expect(writer.branch(1)).to_be_focused()
    await writer.branch(2).locator("[data-branch-text]").focus()
    await writer.press("x")
    await expect(writer.branches.get_by_role("article")).to_have_count(2)
    await expect(writer.branch(1)).to_contain_text("The fox")
    await expect(writer.branch(2)).to_contain_text("The hare")


async def test_undo_never_shows_the_text_of_a_pruned_branch(writer: Writer, server: PageServer) -> None:
    await begun(writer, server)
    await continued(writer, 1)
    await expect(writer.text).to_contain_text("The fox found door 2")
    await continued(writer, 2)
    await expect(writer.branch(2)).to_contain_text("reached its length")
    await writer.press("Control+z", "Control+z")
    await writer.shows("Once upon a time")
    await writer.press("Control+y", "Control+y")
    await expect(writer.text).to_contain_text("The fox found door 2")


async def test_the_text_is_continued_from_the_cursor(writer: Writer, server: PageServer) -> None:
    document = await begun(writer, server)
    await writer.page.get_by_role("combobox", name="Branches").select_option("× 2")
    await writer.page.get_by_role("combobox", name="Until").select_option("16 tokens")
    await writer.cursor_after("upon")
    await writer.press("Alt+Shift+Enter")
    await expect(writer.branch(3)).to_contain_text("The owl")
    await writer.shows("Once upon")
    nodes = await server.nodes(document)
    assert [(node["parent"], node["text"][:8]) for node in nodes.values()] == [
        (None, "Once upo"),
        (1, " a time"),
        (1, " The fox"),
        (1, " The owl"),
    ]


async def test_a_model_that_ends_at_once_is_explained(writer: Writer, server: PageServer) -> None:
    server.engine.say("")
    await begun(writer, server)
    await continued(writer, 2)
    await expect(writer.branch(1)).to_contain_text("The model ended the text here.")
    await expect(writer.branch(2)).to_contain_text("The model ended the text here.")
    await writer.messages.get_by_role("button", name="Sampling").click()
    await expect(writer.page.get_by_role("tabpanel", name="Sampling")).to_be_visible()


async def test_a_branch_that_has_ended_shows_its_beginning(writer: Writer, server: PageServer) -> None:
    server.engine.hold(120)
    await begun(writer, server)
    await continued(writer, 4, "256 tokens")
    text = writer.branch(1).locator("[data-branch-text]")
    await expect(text).to_contain_text("door 13")
    await writer.page.wait_for_function("e => e.scrollTop > 0", arg=await text.element_handle())
    server.engine.release()
    await expect(writer.branch(1)).to_contain_text("reached its length")
    await writer.page.wait_for_function("e => e.scrollTop === 0", arg=await text.element_handle())


async def test_branches_are_chosen_on_a_phone(server: PageServer, new_writer: NewWriter) -> None:
    phone = await new_writer(server, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    await phone.open(await server.create("Story", {"id": 1, "text": "Once upon a time"}), 1)
    await phone.page.get_by_role("combobox", name="Branches").select_option("× 4")
    await phone.page.get_by_role("combobox", name="Until").select_option("16 tokens")
    await phone.page.get_by_role("button", name="Continue", exact=True).tap()
    await expect(phone.branch(2)).to_contain_text("reached its length")
    await phone.branch(2).get_by_role("button", name="Keep").tap()
    await expect(phone.branches).to_be_hidden()
    await phone.shows(OWL)
    await expect(phone.save_state).to_have_text("Saved")
    await expect(phone.page.get_by_role("button", name="Redo")).to_be_visible()
    place = await phone.place(phone.text, "door 1")
    await phone.page.touchscreen.tap((place["left"] + place["right"]) / 2, place["y"])
    await expect(phone.page.get_by_role("dialog", name="Token", exact=True)).to_be_visible()
    await phone.page.get_by_role("button", name="4 branches", exact=True).tap()
    await expect(phone.branch(3)).to_be_visible()
