"""The list of documents: folders, titles, search, trash, import and export."""

import json
import re

import pytest
from playwright.async_api import FilePayload, Locator, Route, expect

from tests.documents.test_formats import LOOM, SESSION
from tests.page.served import PageServer, tree
from tests.page.writer import Writer, read
from tests.server.matchers import Json


def document_row(writer: Writer, title: str) -> Locator:
    """The entry of a document in the list."""
    return writer.page.get_by_role("navigation", name="Documents").get_by_role("button", name=re.compile(f"^{re.escape(title)}"))


async def menu_of(writer: Writer, title: str, action: str) -> None:
    """Chooses an action in the menu of a document."""
    await writer.page.get_by_role("button", name=f"Actions of “{title}”").click()
    await writer.page.get_by_role("menu").get_by_role("menuitem", name=action).click()


async def opened(writer: Writer) -> None:
    """Opens the page with the list of documents."""
    await writer.open()
    await writer.panel("Documents")


async def test_documents_are_opened_and_renamed(writer: Writer, server: PageServer) -> None:
    await server.create("The fox", *tree("A fox."))
    await server.create("The owl", *tree("An owl."))
    await opened(writer)
    await document_row(writer, "The owl").click()
    await writer.shows("An owl.")
    await writer.panel("Documents")
    await expect(document_row(writer, "The owl")).to_have_attribute("aria-current", "true")
    await menu_of(writer, "The fox", "Rename…")
    await writer.page.get_by_role("textbox", name="Title of “The fox”").fill("The vixen")
    await writer.press("Enter")
    await expect(document_row(writer, "The vixen")).to_be_visible()
    assert set(await server.documents()) == {"The vixen", "The owl"}
    await document_row(writer, "The vixen").focus()
    await writer.press("Control+z")
    await expect(document_row(writer, "The fox")).to_be_visible()


async def test_the_browsers_history_leads_back_to_documents(writer: Writer, server: PageServer) -> None:
    await writer.open(await server.create("The fox", *tree("A fox.")))
    await server.create("The owl", *tree("An owl."))
    await writer.panel("Documents")
    await document_row(writer, "The owl").click()
    await writer.shows("An owl.")
    await writer.page.go_back()
    await writer.shows("A fox.")


async def test_documents_are_moved_to_folders(writer: Writer, server: PageServer) -> None:
    await server.create("The fox", *tree("A fox."))
    await opened(writer)
    await menu_of(writer, "The fox", "Move to a folder…")
    await writer.dialog.get_by_role("combobox").fill("Stories/Animals")
    await writer.dialog.get_by_role("button", name="Move", exact=True).click()
    await expect(writer.page.get_by_role("button", name="Folder Animals", exact=True)).to_be_visible()
    await expect(document_row(writer, "The fox")).to_be_visible()
    await writer.page.get_by_role("button", name="Folder Stories", exact=True).click()
    await expect(document_row(writer, "The fox")).to_have_count(0)
    assert (await server.documents())["The fox"]["folder"] == "Stories/Animals"


async def test_documents_are_dragged_into_folders_and_out(writer: Writer, server: PageServer) -> None:
    await server.create("The fox", *tree("A fox."))
    await server.create("The owl", *tree("An owl."), folder="Stories")
    await opened(writer)
    stories = writer.page.get_by_role("button", name="Folder Stories", exact=True)
    await document_row(writer, "The fox").drag_to(stories)
    await expect(writer.page.locator("[data-folder=Stories]").get_by_role("button", name=re.compile("^The fox"))).to_be_visible()
    assert (await server.documents())["The fox"]["folder"] == "Stories"
    # A collapsed folder takes documents too, and the list those that leave their folder.
    list_of_documents = writer.page.get_by_role("navigation", name="Documents")
    size = await list_of_documents.bounding_box()
    assert size is not None
    bottom = {"x": size["width"] / 2, "y": size["height"] - 4}
    await document_row(writer, "The owl").drag_to(list_of_documents, target_position=bottom)  # type: ignore[arg-type]
    await expect(writer.page.locator("[data-folder=Stories]").get_by_role("button", name=re.compile("^The owl"))).to_have_count(0)
    await stories.click()
    await document_row(writer, "The owl").drag_to(stories)
    await expect(document_row(writer, "The owl")).to_have_count(0)
    assert [each["folder"] for each in (await server.documents()).values()] == ["Stories", "Stories"]
    await stories.focus()
    await writer.press("Control+z")
    await expect(document_row(writer, "The owl")).to_be_visible()


async def test_search_ignores_case_and_diacritics_in_all_documents(writer: Writer, server: PageServer) -> None:
    first = await server.create("Cafés", *tree("Once", " there was a CAFÉ by the sea."))
    await server.create("Houses", *tree("A house, no cafe."))
    await opened(writer)
    await writer.press("Control+Shift+f")
    search = writer.page.get_by_role("searchbox", name="Search texts, notes and labels")
    await expect(search).to_be_focused()
    await writer.write("café")
    await expect(writer.page.get_by_text("2 matches in 2 documents")).to_be_visible()
    await writer.page.get_by_role("button", name=re.compile("by the sea")).click()
    await writer.shows("Once there was a CAFÉ by the sea.")
    await expect(writer.text).to_be_focused()
    assert await writer.page.evaluate("getSelection().toString()") == "CAFÉ"
    assert f"#{first}/2" in writer.page.url
    await writer.page.get_by_label("Where to search").select_option("This document")
    await expect(writer.page.get_by_text("1 match in 1 document")).to_be_visible()
    await search.fill("nowhere")
    await expect(writer.page.get_by_text("Nothing found for “nowhere”.")).to_be_visible()
    await writer.press("Escape")
    await expect(document_row(writer, "Houses")).to_be_visible()


async def test_search_finds_notes_and_labels(writer: Writer, server: PageServer) -> None:
    nodes = [{"id": 1, "text": "Once", "label": "Prologue", "note": "Ask about the lighthouse"}]
    await server.create("Marks", *nodes)
    await opened(writer)
    await writer.page.get_by_role("searchbox").fill("lighthouse")
    await expect(writer.page.get_by_role("button", name=re.compile("Note.*lighthouse"))).to_be_visible()
    await writer.page.get_by_role("searchbox").fill("prologue")
    await expect(writer.page.get_by_role("button", name=re.compile("Label.*Prologue"))).to_be_visible()


async def test_a_document_goes_to_the_trash_and_comes_back(writer: Writer, server: PageServer) -> None:
    await server.create("The fox", *tree("A fox."))
    await opened(writer)
    await document_row(writer, "The fox").focus()
    await writer.press("Delete")
    await expect(writer.messages).to_contain_text("Moved “The fox” to the trash.")
    await writer.messages.get_by_role("button", name="Undo").click()
    await expect(document_row(writer, "The fox")).to_be_visible()
    await document_row(writer, "The fox").focus()
    await writer.press("Delete")
    await writer.page.get_by_text("Trash (1)").click()
    await writer.page.get_by_role("button", name="Restore", exact=True).click()
    await expect(document_row(writer, "The fox")).to_be_visible()
    await document_row(writer, "The fox").focus()
    await writer.press("Delete")
    await writer.page.get_by_text("Trash (1)").click()
    await writer.page.get_by_role("button", name="Empty the trash").click()
    await expect(writer.dialog).to_contain_text("Delete “The fox” with all its nodes for good?")
    await writer.dialog.get_by_role("button", name="Cancel").click()
    assert len(await server.documents()) == 1
    await writer.page.get_by_role("button", name="Empty the trash").click()
    await writer.dialog.get_by_role("button", name="Delete for good").click()
    await expect(writer.page.get_by_text("Trash (1)")).to_have_count(0)
    assert await server.documents() == {}


async def test_a_document_is_duplicated(writer: Writer, server: PageServer) -> None:
    await server.create("The fox", *tree("Once", [" a fox"], " an owl"))
    await opened(writer)
    await menu_of(writer, "The fox", "Duplicate")
    await expect(writer.messages).to_contain_text("Made a copy: “The fox (copy)”.")
    await expect(writer.page).to_have_title(re.compile(r"^The fox \(copy\)"))
    await writer.panel("Documents")
    await expect(document_row(writer, "The fox (copy)")).to_be_visible()
    assert len(writer.sent("POST", "/duplicate$")) == 1
    copy = (await server.documents())["The fox (copy)"]
    await server.has_texts(copy["id"], ["Once", " a fox", " an owl"])


async def test_two_tabs_show_the_same_documents(writer: Writer, server: PageServer) -> None:
    await opened(writer)
    await expect(writer.page.get_by_text("No documents yet.")).to_be_visible()
    await server.create("Made elsewhere")
    await expect(document_row(writer, "Made elsewhere")).to_be_visible()


async def exported(writer: Writer, name: str) -> str:
    """Exports the open document in a format; returns the content of the file."""
    await writer.press("Control+Shift+e")
    await writer.dialog.get_by_role("radio", name=re.compile(f"^{name}")).check()
    async with writer.page.expect_download() as download:
        await writer.dialog.get_by_role("button", name="Export", exact=True).click()
    await expect(writer.dialog).to_have_count(0)
    return read(await (await download.value).path())


async def imported(writer: Writer, name: str, content: str) -> None:
    """Imports a file whose format the page detects."""
    await writer.press("Control+o")
    file: FilePayload = {"name": name, "mimeType": "text/plain", "buffer": content.encode()}
    await writer.dialog.locator("input[type=file]").set_input_files(files=[file])
    await writer.dialog.get_by_role("button", name="Import", exact=True).click()
    await expect(writer.dialog).to_have_count(0)


STORY = [
    {"id": 1, "text": "Once upon a time", "label": "Beginning", "note": "A note", "is_bookmarked": True},
    {"id": 2, "parent": 1, "text": " there was a fox."},
    {"id": 3, "parent": 1, "text": " there was an öwl."},
]


def renumbered(document: Json) -> Json:
    """Returns a JSON file with nodes numbered in their order, as an import numbers them."""
    numbers = {node["id"]: nth for nth, node in enumerate(document["nodes"], 1)}
    nodes = [
        node | {"id": numbers[node["id"]]} | ({"parent": numbers[node["parent"]]} if "parent" in node else {})
        for node in document["nodes"]
    ]
    return document | {"nodes": nodes}


async def test_json_brings_everything_back(writer: Writer, server: PageServer) -> None:
    document = await server.create("The fox", *STORY, settings={"memory": "Old."}, folder="Stories")
    await writer.open(document, 2)
    await server.client.post(f"/documents/{document}/nodes/2/continue", json={"n_predict": 3, "n_probs": 4})
    await expect(writer.row("The fox found")).to_be_visible()
    await expect(writer.tree.get_by_role("treeitem", name=re.compile("being written"))).to_have_count(0)
    content = json.loads(await exported(writer, "JSON of Weft"))
    await imported(writer, "anything.json", json.dumps(content | {"title": "Imported"}))
    await expect(writer.page).to_have_title(re.compile("^Imported"))
    copy = (await server.documents())["Imported"]
    assert (copy["folder"], copy["settings"]) == ("Stories", {"memory": "Old."})
    answer = await server.client.get(f"/documents/{copy['id']}/export", params={"format": "json"})
    assert renumbered(answer.json() | {"title": "The fox"}) == renumbered(content)


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("Markdown", "fox.md", "# The fox\n\n## Beginning\n\nOnce upon a time there was an öwl.\n"),
        ("Plain text", "The fox.txt", "Once upon a time there was an öwl."),
    ],
    ids=["Markdown", "text"],
)
async def test_a_path_is_exported_and_imported(writer: Writer, server: PageServer, name: str, file: str, content: str) -> None:
    before = await server.create("The fox", *STORY)
    await writer.open(before, 3)
    assert (await exported(writer, name)).strip() == content.strip()
    await imported(writer, file, content)
    await expect(writer.page).not_to_have_url(re.compile(before))
    await expect(writer.page).to_have_title(re.compile("^The fox"))
    await expect(writer.text).to_contain_text("an öwl.")
    [copy] = [each for each in (await server.client.get("/documents")).json()["documents"] if each["id"] != before]
    assert [text.strip() for text in await server.texts(copy["id"]) if text.strip()] == ["Once upon a time there was an öwl."]


async def test_a_tree_of_the_loom_comes_back_as_it_was(writer: Writer, server: PageServer) -> None:
    await writer.open(await server.create("Before", *tree("Once")))
    await imported(writer, "tree.json", json.dumps(LOOM))
    await expect(writer.page).to_have_title(re.compile("^tree"))
    assert json.loads(await exported(writer, "loom")) == LOOM


async def test_a_session_of_mikupad_comes_back_as_it_was(writer: Writer, server: PageServer) -> None:
    session = {name: json.dumps(value) for name, value in SESSION.items()}
    await writer.open(await server.create("Before", *tree("Once")))
    await expect(writer.page).to_have_title(re.compile("^Before"))
    await imported(writer, "session.json", json.dumps(session))
    await expect(writer.page).not_to_have_title(re.compile("^Before"))
    found = json.loads(await exported(writer, "mikupad"))
    assert {name: json.loads(value) for name, value in found.items()}.keys() >= SESSION.keys()
    text = "".join(each["content"] for each in json.loads(found["prompt"]))
    assert text == "".join(each["content"] for each in SESSION["prompt"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("lore.json", {"name": "Lore", "entries": {"0": {"comment": "Mira", "key": ["Mira"], "content": "Mira is a fox."}}}),
        ("story.json", {"gamestarted": True, "prompt": "Once", "actions": [" upon"], "memory": "", "authorsnote": "",
                        "worldinfo": [{"comment": "Mira", "key": "Mira", "content": "Mira is a fox."}]}),
    ],
    ids=["SillyTavern", "KoboldAI"],
)  # fmt: skip
async def test_lore_books_are_imported(writer: Writer, server: PageServer, name: str, content: object) -> None:
    await writer.open(await server.create("Before", *tree("Once")))
    await expect(writer.page).to_have_title(re.compile("^Before"))
    await imported(writer, name, json.dumps(content))
    await expect(writer.page).not_to_have_title(re.compile("^Before"))
    await writer.panel("Context")
    await writer.page.get_by_role("tab", name="Lore").click()
    await expect(writer.page.get_by_role("button", name=re.compile("^Mira"))).to_be_visible()


async def test_what_an_import_has_assumed_is_shown_until_it_is_closed(writer: Writer, server: PageServer) -> None:
    notes = ["The author's note has a depth in messages; 3 lines were assumed.", "2 lore entries have a probability."]

    async def with_notes(route: Route) -> None:
        answer = await route.fetch()
        await route.fulfill(response=answer, json=await answer.json() | {"notes": notes})

    await writer.page.route("**/documents/import", with_notes)
    await opened(writer)
    await imported(writer, "lore.json", json.dumps({"entries": {"0": {"key": ["Mira"], "content": "Mira is a fox."}}}))
    notice = writer.page.get_by_text("About lore.json:")
    for note in notes:
        await expect(notice).to_contain_text(note)
    await writer.messages.locator("div").filter(has=notice).get_by_role("button", name="Close").click()
    await expect(notice).to_have_count(0)


async def test_files_are_dropped_on_the_list(writer: Writer, server: PageServer) -> None:
    await opened(writer)
    transfer = await writer.page.evaluate_handle(
        "() => { const t = new DataTransfer(); t.items.add(new File(['Once upon'], 'drop.txt')); return t; }"
    )
    panel = writer.page.get_by_role("region", name="Documents")
    for event in ("dragover", "drop"):
        await panel.dispatch_event(event, {"dataTransfer": transfer})
    await writer.dialog.get_by_role("button", name="Import", exact=True).click()
    await writer.shows("Once upon")
    assert set(await server.documents()) == {"drop"}


async def test_an_imported_copy_says_so_and_has_a_title_of_its_own(writer: Writer, server: PageServer) -> None:
    await server.create("The fox", *tree("A fox."))
    await opened(writer)
    await imported(writer, "The fox.txt", "Another fox.")
    await expect(writer.messages).to_contain_text("Imported “The fox (imported)”.")
    assert set(await server.documents()) == {"The fox", "The fox (imported)"}


async def test_import_needs_a_file(writer: Writer, server: PageServer) -> None:
    await opened(writer)
    await writer.press("Control+o")
    await expect(writer.dialog.get_by_role("button", name="Import", exact=True)).to_be_disabled()


async def test_enter_exports(writer: Writer, server: PageServer) -> None:
    await writer.open(await server.create("The fox", *tree("A fox.")), 1)
    await writer.press("Control+Shift+e")
    await expect(writer.dialog).to_be_visible()
    async with writer.page.expect_download() as download:
        await writer.press("Enter")
    assert (await download.value).suggested_filename == "The fox.json"


async def test_a_file_that_is_no_text_is_refused(writer: Writer, server: PageServer) -> None:
    await opened(writer)
    await writer.press("Control+o")
    file: FilePayload = {"name": "picture.png", "mimeType": "image/png", "buffer": b"\x89PNG\x00\xff"}
    await writer.dialog.locator("input[type=file]").set_input_files(files=[file])
    await expect(writer.dialog.get_by_role("alert")).to_have_text("picture.png is not a text file in UTF-8.")
    await expect(writer.dialog.get_by_role("button", name=re.compile("^Import"))).to_be_disabled()


async def test_a_file_of_another_format_keeps_the_dialog_open_and_says_why(writer: Writer, server: PageServer) -> None:
    await opened(writer)
    await writer.press("Control+o")
    file: FilePayload = {"name": "broken.json", "mimeType": "text/plain", "buffer": b"{not JSON"}
    await writer.dialog.locator("input[type=file]").set_input_files(files=[file])
    await writer.dialog.get_by_label("Format of broken.json").select_option("json")
    await writer.dialog.get_by_role("button", name="Import", exact=True).click()
    await expect(writer.dialog.get_by_role("alert")).to_contain_text("broken.json was not imported")
    assert await server.documents() == {}


async def test_find_and_replace_is_one_step_of_undo(writer: Writer, server: PageServer) -> None:
    document = await server.create("Replace", *tree("The fox met", [" a fox and"], " another fox"))
    await writer.open(document, 3)
    await writer.command("Find and replace…")
    dialog = writer.page.get_by_role("dialog", name="Find and replace")
    await dialog.get_by_label("Find", exact=True).fill("fox")
    await dialog.get_by_label("Replace with").fill("owl")
    await dialog.get_by_role("radio", name="In all nodes of the document").check()
    await expect(dialog.get_by_role("status")).to_have_text("3 matches in 3 nodes")
    await dialog.get_by_role("button", name="Replace 3 matches").click()
    await expect(writer.messages).to_contain_text("Replaced 3 matches in 3 nodes.")
    await dialog.get_by_role("button", name="Close").last.click()
    await server.has_texts(document, ["The owl met", " a owl and", " another owl"])
    await writer.shows("The owl met another owl")
    await writer.text.focus()
    await writer.press("Control+z")
    await writer.shows("The fox met another fox")
    await writer.saved()
    await server.has_texts(document, ["The fox met", " a fox and", " another fox"])


async def test_regular_expressions_replace_with_groups_and_slow_ones_end(writer: Writer, server: PageServer) -> None:
    document = await server.create("Expressions", *tree("Mira and Lena", " " + "a" * 40 + "!"))
    await writer.open(document, 2)
    await writer.command("Find and replace…")
    dialog = writer.page.get_by_role("dialog", name="Find and replace")
    await dialog.get_by_label("Regular expression").check()
    await dialog.get_by_label("Find", exact=True).fill("(a+)+$")
    await expect(dialog.get_by_role("status")).to_contain_text("takes too long")
    await dialog.get_by_label("Find", exact=True).fill(r"(\w+) and (\w+)")
    await dialog.get_by_label("Replace with").fill("$2 and $1")
    await dialog.get_by_role("button", name="Replace 1 match").click()
    await expect(writer.messages).to_contain_text("Replaced 1 match in 1 node.")
    assert (await server.texts(document))[0] == "Lena and Mira"
