"""The tree: nodes are moved, split, merged, labelled, hidden and found, with the pointer and by keys."""

import re

import pytest
from playwright.async_api import Locator, expect

from tests.page.served import PageServer, tree
from tests.page.writer import Writer
from tests.server.matchers import Json

FOX = ("Once upon a time", [" there was a fox."], [" there was an owl."], " there was a hare.")
"""A top with three continuations."""


async def opened(writer: Writer, server: PageServer, *texts: object, node: int = 1, **more: Json) -> str:
    """Opens a new document at a node."""
    document = await server.create("Tree", *tree(*texts), **more)  # type: ignore[arg-type]
    await writer.open(document, node)
    return document


async def focus_tree(writer: Writer, row: str) -> None:
    """Moves the focus of the tree to a row, by keys."""
    await writer.press("Alt+1", "Home")
    await expect(writer.tree).to_be_focused()
    target = writer.row(row)
    rows = writer.tree.get_by_role("treeitem")
    for _ in range(await rows.count()):
        if await active(writer) == await target.get_attribute("id"):
            return
        await writer.press("ArrowDown")
    assert await active(writer) == await target.get_attribute("id")


async def active(writer: Writer) -> str | None:
    """Returns the id of the row with the focus."""
    return await writer.tree.get_attribute("aria-activedescendant")


async def order(server: PageServer, document: str, parent: int | None) -> list[str]:
    """Returns the texts of a node's children in their order."""
    children = [node for node in (await server.nodes(document)).values() if node["parent"] == parent and not node["is_trashed"]]
    return [node["text"] for node in sorted(children, key=lambda node: (node["position"], node["id"]))]


async def test_rows_have_levels_positions_and_states_for_assistive_technology(writer: Writer, server: PageServer) -> None:
    document = await opened(writer, server, *FOX)
    top, owl = writer.row("Once upon"), writer.row("there was an owl")
    for name, value in {"level": "1", "posinset": "1", "setsize": "1", "expanded": "true", "selected": "true"}.items():
        await expect(top).to_have_attribute(f"aria-{name}", value)
    for name, value in {"level": "2", "posinset": "2", "setsize": "3", "selected": "false"}.items():
        await expect(owl).to_have_attribute(f"aria-{name}", value)
    await server.client.patch(f"/documents/{document}/nodes/3", json={"is_bookmarked": True, "note": "Why an owl?"})
    await expect(writer.row("there was an owl., bookmarked, has a note")).to_be_visible()


async def test_a_row_is_chosen_with_the_pointer_and_by_keys(writer: Writer, server: PageServer) -> None:
    await opened(writer, server, *FOX)
    await writer.row("there was an owl").click()
    await writer.shows("Once upon a time there was an owl.")
    await writer.press("ArrowDown", "Enter")
    await writer.shows("Once upon a time there was a hare.")
    await writer.press("Home", "ArrowRight", "Enter")
    await writer.shows("Once upon a time there was a fox.")


async def test_the_tree_has_the_focus_after_a_click_on_a_row(writer: Writer, server: PageServer) -> None:
    document = await opened(writer, server, "Once upon a time", [" a fox.", " It ran."], [" an owl."], " a hare.", node=1)
    await writer.text.focus()
    await writer.row("a fox").click()
    await expect(writer.tree).to_be_focused()
    await writer.press("ArrowDown")
    await expect(writer.tree).to_have_attribute("aria-activedescendant", "tree-node-3")
    await writer.row("a fox").locator("[data-part=toggle]").click()
    await expect(writer.row("It ran")).to_have_count(0)
    await writer.press("a")  # The next row that begins with it.
    await expect(writer.tree).to_have_attribute("aria-activedescendant", "tree-node-4")
    await writer.row("a hare").click()
    await writer.press("Delete")
    await expect(writer.row("a hare")).to_have_count(0)
    await expect(writer.tree).to_be_focused()
    await server.has_texts(document, ["Once upon a time", " a fox.", " It ran.", " an owl."])


async def test_a_collapsed_row_hides_those_below(writer: Writer, server: PageServer) -> None:
    await opened(writer, server, *FOX)
    await focus_tree(writer, "Once")
    await writer.press("ArrowLeft")
    await expect(writer.tree.get_by_role("treeitem")).to_have_count(1)
    await expect(writer.row("Once")).to_have_attribute("aria-expanded", "false")
    await expect(writer.row("Once")).to_have_accessible_name(re.compile("3 nodes hidden below"))
    await writer.press("ArrowRight")
    await expect(writer.tree.get_by_role("treeitem")).to_have_count(4)


async def drag(writer: Writer, moved: Locator, target: Locator, share: float) -> None:
    """Drags a row to a place in another one, given as a share of its height."""
    start, end = await moved.bounding_box(), await target.bounding_box()
    assert start is not None
    assert end is not None
    mouse = writer.page.mouse
    await mouse.move(start["x"] + 60, start["y"] + start["height"] / 2)
    await mouse.down()
    await mouse.move(end["x"] + 60, end["y"] + end["height"] * share + 2, steps=4)
    await mouse.move(end["x"] + 60, end["y"] + end["height"] * share, steps=2)
    await mouse.up()


async def test_a_row_is_dragged_below_another_one(writer: Writer, server: PageServer) -> None:
    document = await opened(writer, server, *FOX)
    await drag(writer, writer.row("there was a hare"), writer.row("there was a fox"), 0.5)
    await expect(writer.row("there was a hare")).to_have_attribute("aria-level", re.compile("[23]"))
    await expect(writer.row("there was an owl")).to_have_attribute("aria-setsize", "2")
    assert await order(server, document, 1) == [" there was a fox.", " there was an owl."]
    assert await order(server, document, 2) == [" there was a hare."]
    await writer.press("Control+z")
    await expect(writer.row("there was an owl")).to_have_attribute("aria-setsize", "3")
    assert await order(server, document, 1) == [" there was a fox.", " there was an owl.", " there was a hare."]


async def test_a_row_is_dragged_before_a_sibling_and_never_below_itself(writer: Writer, server: PageServer) -> None:
    document = await opened(writer, server, *FOX)
    await drag(writer, writer.row("there was a hare"), writer.row("there was a fox"), 0.05)
    await expect(writer.row("there was a hare")).to_have_attribute("aria-posinset", "1")
    assert await order(server, document, 1) == [" there was a hare.", " there was a fox.", " there was an owl."]
    await drag(writer, writer.row("Once"), writer.row("there was a fox"), 0.5)
    await expect(writer.messages).to_contain_text("A node cannot move below itself.")
    assert await order(server, document, None) == ["Once upon a time"]


@pytest.mark.parametrize(
    ("key", "below_top", "at_top"),
    [
        ("ArrowUp", [" there was an owl.", " there was a fox.", " there was a hare."], ["Once upon a time"]),
        ("ArrowDown", [" there was a fox.", " there was a hare.", " there was an owl."], ["Once upon a time"]),
        ("ArrowLeft", [" there was a fox.", " there was a hare."], ["Once upon a time", " there was an owl."]),
        ("ArrowRight", [" there was a fox.", " there was a hare."], ["Once upon a time"]),
    ],
)
async def test_a_row_is_moved_by_keys(
    writer: Writer, server: PageServer, key: str, below_top: list[str], at_top: list[str]
) -> None:
    document = await opened(writer, server, *FOX)
    await focus_tree(writer, "there was an owl")
    async with writer.page.expect_response("**/move"):
        await writer.press(f"Alt+Shift+{key}")
    assert await order(server, document, 1) == below_top
    assert await order(server, document, None) == at_top
    await expect(writer.tree).to_be_focused()
    assert await active(writer) == "tree-node-3"


async def test_a_part_of_the_tree_is_shown_alone(writer: Writer, server: PageServer) -> None:
    await opened(writer, server, "Once", [" a fox", " slept"], " an owl")
    await focus_tree(writer, "a fox")
    await writer.press("Alt+Enter")
    await expect(writer.tree.get_by_role("treeitem")).to_have_count(2)
    await expect(writer.row("a fox")).to_have_attribute("aria-level", "1")
    await writer.page.get_by_role("button", name="Show all", exact=True).click()
    await expect(writer.tree.get_by_role("treeitem")).to_have_count(4)


async def test_labels_are_chapters_and_stand_in_the_text(writer: Writer, server: PageServer) -> None:
    document = await opened(writer, server, "Once", " upon", " a time", node=3)
    await focus_tree(writer, "upon")
    await writer.press("F2")
    await writer.write("The beginning")
    await writer.press("Enter")
    await expect(writer.row("The beginning")).to_be_visible()
    assert (await server.nodes(document))[2]["label"] == "The beginning"
    await expect(writer.text).to_contain_text("The beginning")
    await writer.page.get_by_role("button", name=re.compile("^Chapters")).click()
    chapters = writer.page.get_by_role("list", name="Chapters")
    await chapters.get_by_role("button", name=re.compile("The beginning")).click()
    await expect(writer.text).not_to_contain_text("a time")


async def test_bookmarks_are_listed_and_reached_by_keys(writer: Writer, server: PageServer) -> None:
    await opened(writer, server, *FOX)
    for row in ("there was a fox", "there was a hare"):
        await focus_tree(writer, row)
        await writer.press("Control+b")
        await expect(writer.row(f"{row}., bookmarked")).to_be_visible()
    await writer.press("Home", "Enter", "Alt+PageDown")
    await expect(writer.text).to_contain_text("a fox")
    await writer.press("Alt+PageDown")
    await expect(writer.text).to_contain_text("a hare")
    await writer.page.get_by_role("button", name=re.compile("^Bookmarks")).click()
    await expect(writer.page.get_by_role("list", name="Bookmarks").get_by_role("button")).to_have_count(2)


async def test_a_note_is_written_in_a_dialog(writer: Writer, server: PageServer) -> None:
    document = await opened(writer, server, *FOX)
    await focus_tree(writer, "there was an owl")
    await writer.press("Shift+F2")
    await writer.dialog.get_by_role("textbox").fill("Why an owl?")
    await writer.dialog.get_by_role("button", name="Save").click()
    await expect(writer.row("there was an owl., has a note")).to_be_visible()
    assert (await server.nodes(document))[3]["note"] == "Why an owl?"


async def test_a_note_is_kept_when_its_dialog_is_closed_and_discarded_only_by_cancel(writer: Writer, server: PageServer) -> None:
    await opened(writer, server, *FOX)
    await focus_tree(writer, "there was an owl")
    for nth, close in enumerate(("Escape", "Close")):
        await writer.press("Shift+F2")
        await writer.dialog.get_by_role("textbox").fill(f"Note {nth}")
        if close == "Escape":
            await writer.press("Escape")
        else:
            await writer.dialog.get_by_role("button", name=close).click()
        await expect(writer.dialog).to_have_count(0)
        await writer.press("Shift+F2")
        await expect(writer.dialog.get_by_role("textbox")).to_have_value(f"Note {nth}")
        await writer.dialog.get_by_role("button", name="Cancel").click()
        await expect(writer.dialog).to_have_count(0)
    await writer.press("Shift+F2")
    await writer.dialog.get_by_role("textbox").fill("Not this")
    await writer.dialog.get_by_role("button", name="Cancel").click()
    await expect(writer.dialog).to_have_count(0)
    await writer.press("Shift+F2")
    await expect(writer.dialog.get_by_role("textbox")).to_have_value("Note 1")


async def test_a_node_is_split_at_the_cursor_and_merged_again(writer: Writer, server: PageServer) -> None:
    document = await opened(writer, server, "Once upon a time")
    await writer.cursor_after("upon")
    await writer.command("Split at the cursor")
    await expect(writer.tree.get_by_role("treeitem")).to_have_count(2)
    await server.has_texts(document, ["Once upon", " a time"])
    await focus_tree(writer, "Once")
    await writer.press("Control+j")
    await expect(writer.tree.get_by_role("treeitem")).to_have_count(1)
    await server.has_texts(document, ["Once upon a time"])
    await writer.press("Control+z")
    await expect(writer.tree.get_by_role("treeitem")).to_have_count(2)
    await writer.press("Control+z")
    await expect(writer.tree.get_by_role("treeitem")).to_have_count(1)
    await writer.shows("Once upon a time")


async def test_undo_of_a_merge_gives_both_nodes_their_labels_back(writer: Writer, server: PageServer) -> None:
    nodes = [{"id": 1, "text": "Once", "label": "One"}, {"id": 2, "parent": 1, "text": " upon", "label": "Two"}]
    document = await server.create("Merge", *nodes)
    await writer.open(document, 2)
    await focus_tree(writer, "One")
    await writer.press("Control+j")
    await expect(writer.tree.get_by_role("treeitem")).to_have_count(1)
    # The tree may change before the answer arrives, after which the merge can be undone.
    await expect(writer.page.get_by_role("banner").get_by_role("button", name="Undo")).to_be_enabled()
    await writer.press("Control+z")
    await expect(writer.messages).to_contain_text("Undone: Merge")
    await expect(writer.row("Two")).to_have_attribute("aria-level", re.compile("[12]"))
    labels = [(node["text"], node["label"]) for node in (await server.nodes(document)).values()]
    assert labels == [("Once", "One"), (" upon", "Two")]


@pytest.mark.parametrize("by", ["key", "menu"])
async def test_a_message_offers_to_undo_a_move_to_the_trash(writer: Writer, server: PageServer, by: str) -> None:
    document = await opened(writer, server, *FOX)
    await focus_tree(writer, "there was an owl")
    if by == "key":
        await writer.press("Delete")
    else:
        await writer.press("Shift+F10", "ArrowUp", "Enter")
    await expect(writer.messages).to_contain_text("Moved “there was an owl.” to the trash.")
    await writer.messages.get_by_role("button", name="Undo").click()
    await expect(writer.row("there was an owl")).to_be_visible()
    assert await order(server, document, 1) == [" there was a fox.", " there was an owl.", " there was a hare."]


async def test_the_trash_of_a_document_gives_back_and_deletes(writer: Writer, server: PageServer) -> None:
    document = await opened(writer, server, *FOX)
    for row in ("there was an owl", "there was a hare"):
        await focus_tree(writer, row)
        await writer.press("Delete")
        await expect(writer.row(row)).to_have_count(0)
    await writer.page.get_by_role("button", name=re.compile("^Trash")).click()
    trash = writer.page.get_by_role("list", name="Trash")
    await trash.get_by_role("listitem").filter(has_text="owl").get_by_role("button", name="Restore").click()
    await expect(trash.get_by_role("listitem")).to_have_count(1)
    await trash.get_by_role("button", name="Delete for good").click()
    await expect(writer.dialog).to_contain_text("This cannot be undone.")
    await writer.dialog.get_by_role("button", name="Delete for good").click()
    await expect(trash).to_have_count(0)
    await server.has_texts(document, ["Once upon a time", " there was a fox.", " there was an owl."])
    assert len(await server.nodes(document)) == 3


async def test_the_trash_of_a_document_is_emptied_after_a_question_that_names_the_number(
    writer: Writer, server: PageServer
) -> None:
    document = await opened(writer, server, "Once", [" a fox", " ran"], [" an owl"], " a hare")
    for row in ("a fox", "an owl"):
        await focus_tree(writer, row)
        await writer.press("Delete")
        await expect(writer.row(row)).to_have_count(0)
    await writer.page.get_by_role("button", name=re.compile("^Trash")).click()
    await writer.page.get_by_role("button", name="Empty the trash").click()
    await expect(writer.dialog).to_contain_text("Delete all 3 nodes in the trash of this document for good?")
    await writer.dialog.get_by_role("button", name="Delete for good").click()
    await expect(writer.page.get_by_text("The trash of this document is empty.")).to_be_visible()
    await server.has_texts(document, ["Once", " a hare"])


async def test_a_filter_finds_texts_without_diacritics(writer: Writer, server: PageServer) -> None:
    await opened(writer, server, "Once", [" in a café"], [" in a cave"], " in a house")
    await writer.press("Control+Shift+l")
    await expect(writer.page.get_by_role("searchbox", name="Filter nodes")).to_be_focused()
    await writer.write("CAFE")
    await expect(writer.page.get_by_text("1 node matches")).to_be_visible()
    await expect(writer.tree.get_by_role("treeitem")).to_have_count(2)  # The match, and the way to it.
    await writer.press("Enter", "Enter")
    await writer.shows("Once in a café")
    await writer.page.get_by_role("button", name="Clear the filter").click()
    await expect(writer.tree.get_by_role("treeitem")).to_have_count(4)


async def test_the_menu_of_a_node_has_its_actions_with_keys(writer: Writer, server: PageServer) -> None:
    await opened(writer, server, *FOX)
    await focus_tree(writer, "there was an owl")
    await writer.press("Shift+F10")
    menu = writer.page.get_by_role("menu")
    await expect(menu.get_by_role("menuitem", name="Go to the node")).to_be_focused()
    await expect(menu.get_by_role("menuitem", name="Move to the trash")).to_have_attribute("aria-keyshortcuts", re.compile("Del"))
    await writer.press("ArrowUp")
    await expect(menu.get_by_role("menuitem", name="Move to the trash")).to_be_focused()
    await writer.press("Escape")
    await expect(menu).to_have_count(0)
    await expect(writer.tree).to_be_focused()
    await writer.row("there was an owl").click(button="right")
    await menu.get_by_role("menuitem", name="Bookmark").click()
    await expect(
        writer.row("there was an owl., current, bookmarked").or_(writer.row("there was an owl., bookmarked"))
    ).to_be_visible()


async def test_ten_thousand_nodes_are_at_most_five_hundred_rows(writer: Writer, server: PageServer) -> None:
    branches = [[f" node {nth} of many"] for nth in range(9_999)]
    document = await opened(writer, server, "Once", *branches)
    rows = writer.tree.get_by_role("treeitem")
    await expect(rows.first).to_be_visible()
    assert await rows.count() <= 500
    await focus_tree(writer, "Once")
    await writer.press("End")
    await expect(writer.row("node 9998 of many")).to_be_in_viewport()
    assert await rows.count() <= 500
    for share in (0.25, 0.5, 0.75):
        await writer.tree.evaluate("(tree, share) => { tree.scrollTop = tree.scrollHeight * share; }", share)
        await expect(writer.row(f"node {int(9_999 * share)} of many")).to_be_visible()
        assert await rows.count() <= 500
    assert await writer.page.locator("*").count() < 5_000
    await writer.press("Home", "ArrowLeft")
    await expect(rows).to_have_count(1)
    assert len(await server.nodes(document)) == 10_000
