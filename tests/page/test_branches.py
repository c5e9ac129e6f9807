"""Branches: written beside each other, chosen, stopped, pruned, forked from a token, compared, and resumed."""

import asyncio
import json
import re
from typing import Any

import pytest
from playwright.async_api import Route, expect

from tests.page.engine import ANIMALS
from tests.page.served import PageServer, tree
from tests.page.writer import Writer


async def begun(writer: Writer, server: PageServer, text: str = "Once upon a time") -> str:
    """Opens a new document with a text, with the cursor at its end."""
    document = await server.create("Story", *tree(text))
    await writer.open(document, 1)
    await writer.to_end()
    return document


async def continued(writer: Writer, n: int, length: str = "16 tokens") -> None:
    """Continues the text with branches."""
    await writer.page.get_by_role("combobox", name="Branches").select_option(f"× {n}")
    await writer.page.get_by_role("combobox", name="Until").select_option(length)
    await writer.text.focus()
    await writer.press("Control+Enter")


async def test_eight_branches_are_written_live_and_one_is_chosen_by_keys(writer: Writer, server: PageServer) -> None:
    server.engine.hold(4)
    document = await begun(writer, server)
    await continued(writer, 8)
    for number, animal in enumerate(ANIMALS, 1):
        # Cards that are not in view are not in the DOM: each comes into view with the focus.
        if number == 1:
            await writer.press("Alt+3", "Home")
        else:
            await writer.press("ArrowDown")
        await expect(writer.branch(number)).to_contain_text(f"The {animal} found door")
        await expect(writer.branch(number)).to_contain_text("writing…")
        await expect(writer.branch(number)).to_be_focused()
    assert len(await server.nodes(document)) == 9
    server.engine.release()
    await expect(writer.branch(8)).to_contain_text("reached its length")
    await writer.press("3")
    await writer.shows("Once upon a time The hare found door 1 and went through it. The hare found door 2 and went")
    await expect(writer.branch(3)).to_have_attribute("aria-current", "true")


async def test_a_branch_is_kept_with_its_button_and_siblings_are_reached_from_the_text(
    writer: Writer, server: PageServer
) -> None:
    await begun(writer, server)
    await continued(writer, 3)
    await writer.branch(2).get_by_role("button", name="Keep").click()
    await expect(writer.text).to_contain_text("The owl")
    await writer.press("Alt+2", "Alt+ArrowDown")
    await expect(writer.text).to_contain_text("The hare")
    await writer.press("Alt+ArrowUp", "Alt+ArrowUp")
    await expect(writer.text).to_contain_text("The fox")
    await writer.press("Alt+ArrowLeft")
    await writer.shows("Once upon a time")
    await writer.press("Alt+ArrowRight")
    await expect(writer.text).to_contain_text("The fox")


async def test_one_branch_is_followed_in_the_text(writer: Writer, server: PageServer) -> None:
    server.engine.hold(3)
    await begun(writer, server)
    await continued(writer, 1, "End of sentence")
    await writer.shows("Once upon a time The fox found")
    server.engine.release()
    await writer.shows("Once upon a time The fox found door 1 and went through it.")


async def test_a_branch_ends_with_a_paragraph(writer: Writer, server: PageServer) -> None:
    server.engine.say(" One two. Three four.\n\nFive six.")
    document = await begun(writer, server)
    await continued(writer, 1, "End of paragraph")
    await expect(writer.text).to_contain_text("Three four.")
    await expect(writer.page.get_by_role("button", name="Stop all")).to_have_count(0)
    await server.has_texts(document, ["Once upon a time", " One two. Three four."])


async def test_one_branch_is_stopped_then_all(writer: Writer, server: PageServer) -> None:
    server.engine.hold(4)
    document = await begun(writer, server)
    await continued(writer, 3)
    await expect(writer.branch(2)).to_contain_text("The owl found door")
    await writer.branch(2).get_by_role("button", name="Stop").click()
    await expect(writer.branch(2)).to_contain_text("stopped")
    await expect(writer.branch(1)).to_contain_text("writing…")
    await writer.press("Control+.")
    await expect(writer.branch(1)).to_contain_text("stopped")
    await expect(writer.branch(3)).to_contain_text("stopped")
    nodes = list((await server.nodes(document)).values())[1:]
    assert [(node["state"], node["text"]) for node in nodes] == [("done", f" The {each} found door") for each in ANIMALS[:3]]


async def test_a_pruned_branch_is_in_the_trash_and_comes_back(writer: Writer, server: PageServer) -> None:
    server.engine.hold(4)
    document = await begun(writer, server)
    await continued(writer, 3)
    await writer.branch(2).get_by_role("button", name="Prune").click()
    await expect(writer.branches.get_by_role("article")).to_have_count(2)
    # The cards may change before the answer arrives, after which the move can be undone.
    await expect(writer.messages).to_contain_text("to the trash.")
    assert [node["is_trashed"] for node in (await server.nodes(document)).values()] == [False, False, True, False]
    await writer.press("Control+z")
    await expect(writer.branches.get_by_role("article")).to_have_count(3)


async def test_more_like_this_has_the_parameters_of_a_branch_and_another_seed(writer: Writer, server: PageServer) -> None:
    document = await begun(writer, server)
    body = {"n": 1, "n_predict": 4, "temperature": 0.25, "seed": 7}
    await server.client.post(f"/documents/{document}/nodes/1/continue", json=body)
    await writer.press("Alt+ArrowRight")
    await writer.press("Alt+3")
    await writer.branch(1).get_by_role("button", name="More like this").click()
    await expect(writer.branch(3)).to_be_visible()
    sent = [(await server.nodes(document))[node]["parameters"] for node in (2, 3, 4)]
    assert [each["temperature"] for each in sent] == [0.25] * 3
    assert [each["n_predict"] for each in sent] == [4] * 3
    assert len({each["seed"] for each in sent}) == 3


async def test_more_like_this_reads_the_present_text_and_memory(writer: Writer, server: PageServer) -> None:
    document = await begun(writer, server)
    # Clients may store the prompt of a branch with its parameters.
    server.engine.hold(2)
    await server.client.post(f"/documents/{document}/nodes/1/continue", json={"n_predict": 4, "prompt": "An old memory."})
    await server.client.patch(f"/documents/{document}", json={"settings": {"memory": "A new memory."}})
    await writer.press("Alt+ArrowRight", "Alt+3")
    await expect(writer.branch(1)).to_contain_text("writing…")
    server.engine.release()
    await expect(writer.branch(1)).to_contain_text("reached its length")
    await writer.branch(1).get_by_role("button", name="More like this").click()
    await expect(writer.branch(2)).to_contain_text("reached its length")
    assert " ".join(server.engine.prompts[-1].split()) == "A new memory. Once upon a time"


async def test_undo_of_a_continuation_trashes_its_branches(writer: Writer, server: PageServer) -> None:
    document = await begun(writer, server)
    await continued(writer, 2)
    await expect(writer.branch(2)).to_contain_text("reached its length")
    await expect(writer.page.get_by_role("banner").get_by_role("button", name="Undo")).to_be_enabled()
    await writer.press("Control+z")
    await expect(writer.branches.get_by_role("article")).to_have_count(0)
    await server.has_texts(document, ["Once upon a time"])
    await writer.press("Control+y")
    await expect(writer.branch(2)).to_be_visible()


async def inspect(writer: Writer, word: str) -> Any:  # noqa: ANN401 (a locator, typed where it is used)
    """Shows the token at a word of the text column by hovering over it; returns its popover."""
    place = await writer.place(writer.text, word)
    popover = writer.page.get_by_role("dialog", name="Token", exact=True)
    # The pointer comes from elsewhere, as a hand moves it.
    await writer.page.mouse.move(place["right"] - 1, place["y"] + 200)
    await writer.page.mouse.move((place["left"] + place["right"]) / 2, place["y"], steps=3)
    await expect(popover).to_be_visible()
    return popover


async def test_hovering_shows_alternatives_and_a_click_continues_with_one(writer: Writer, server: PageServer) -> None:
    document = await begun(writer, server)
    await continued(writer, 1)
    await expect(writer.text).to_contain_text("door 2")
    await writer.page.get_by_role("combobox", name="Branches").select_option("× 4")
    popover = await inspect(writer, "door 1")
    await expect(popover.get_by_role("option", name=re.compile("door, in the text, 60"))).to_be_visible()
    await popover.get_by_role("option", name=re.compile("^.*red, 22")).click()
    await expect(writer.branches.get_by_role("article", name=re.compile("^Branch"))).to_have_count(5)
    [*_, request] = writer.sent("POST", "/continue$")
    at = json.loads(request.post_data or "")
    assert at["n"] == 4
    assert len(at["append"]) == 1
    nodes = await server.nodes(document)
    made = [node for node in nodes.values() if node["text"].startswith(" red")]
    assert [node["parent"] for node in made] == [2] * 4
    assert nodes[2]["text"] == " The fox found"
    assert server.engine.prompts[-1] == "Once upon a time The fox found red"
    # The tokens before it were computed by the branch: one is left, which the first of the branches computes.
    await expect(writer.branches.get_by_text("1 token read")).to_have_count(1)
    assert sum(node["n_computed"] for node in made) == 1


async def test_an_alternative_that_ends_inside_a_character_is_continued_by_its_token(writer: Writer, server: PageServer) -> None:
    first, last = ("\N{FOX FACE}".encode()[part].decode(errors="surrogateescape") for part in (slice(2), slice(2, 4)))
    server.engine.likely = (first,)
    document = await begun(writer, server)
    await continued(writer, 1)
    await expect(writer.text).to_contain_text("door 2 and went")
    await writer.page.get_by_role("combobox", name="Branches").select_option("× 2")
    popover = await inspect(writer, "door 1")
    server.engine.say(f"{last} slept.")
    server.engine.hold()
    await popover.get_by_role("option", name=re.compile("bytes F0 9F, 22")).click()
    await expect(writer.branch(3)).to_contain_text("F0 9F")
    [*_, request] = writer.sent("POST", "/continue$")
    assert json.loads(request.post_data or "")["append"] == server.engine.tokenize(first)
    server.engine.release()
    await expect(writer.branch(3)).to_contain_text("\N{FOX FACE} slept.")
    await expect(writer.branch(3)).not_to_contain_text("F0 9F")
    made = [node["text"] for node in (await server.nodes(document)).values() if node["parent"] == 2]
    assert sorted(made)[1:] == ["\N{FOX FACE} slept."] * 2


async def test_alternatives_are_chosen_by_keys(writer: Writer, server: PageServer) -> None:
    document = await begun(writer, server)
    await continued(writer, 1)
    await expect(writer.text).to_contain_text("door 2")
    await writer.page.get_by_role("combobox", name="Branches").select_option("× 2")
    await writer.text.focus()
    await writer.press("Control+Home", *["Control+ArrowRight"] * 5, "ArrowRight")
    await writer.press("Alt+Enter")
    popover = writer.page.get_by_role("dialog", name="Token", exact=True)
    alternatives = popover.get_by_role("listbox", name="Alternatives")
    await expect(alternatives).to_be_focused()
    token = re.sub(r"\W+", "", await popover.get_by_role("option", selected=True).inner_text())
    await writer.press("ArrowRight")
    await expect(popover.get_by_role("option", selected=True)).not_to_contain_text(token)
    await writer.press("ArrowDown", "ArrowDown", "Enter")
    await expect(popover).to_have_count(0)
    await expect(writer.branches.get_by_role("article")).to_have_count(3)
    await expect(writer.branches.get_by_role("article").filter(has_text="reached its length")).to_have_count(3)
    made = [node["text"] for node in (await server.nodes(document)).values()]
    assert sum(text.startswith(" old") for text in made) == 2


async def test_branches_that_begin_late_leave_the_focus_where_it_went(writer: Writer, server: PageServer) -> None:
    await begun(writer, server)
    await continued(writer, 1)
    await expect(writer.branch(1)).to_contain_text("reached its length")
    is_elsewhere = asyncio.Event()

    async def continue_later(route: Route) -> None:
        await is_elsewhere.wait()
        await route.continue_()

    await writer.page.route("**/continue", continue_later)
    await writer.text.focus()
    await writer.press("Control+Home", *["Control+ArrowRight"] * 5, "Alt+Enter")
    await expect(writer.page.get_by_role("listbox", name="Alternatives")).to_be_focused()
    async with writer.page.expect_request("**/continue"):
        await writer.press("ArrowDown", "Enter")
    await writer.press("Control+Shift+f")
    search = writer.page.get_by_role("searchbox", name="Search texts, notes and labels")
    await expect(search).to_be_focused()
    is_elsewhere.set()
    await expect(writer.branches.get_by_role("article")).to_have_count(2)
    await writer.write("door")
    await expect(search).to_have_value("door")


async def test_a_running_branch_is_forked_at_a_token_and_goes_on(writer: Writer, server: PageServer) -> None:
    server.engine.hold(8)
    document = await begun(writer, server)
    await continued(writer, 1)
    await expect(writer.text).to_contain_text("went through")
    await writer.page.get_by_role("combobox", name="Branches").select_option("× 2")
    popover = await inspect(writer, "found")
    server.engine.hold(4)  # The first branch has written eight words; the forks may write four.
    await popover.get_by_role("button", name="Fork here").click()
    await expect(writer.branch(3)).to_contain_text("The owl found door")
    nodes = await server.nodes(document)
    assert [(node["parent"], node["state"], node["text"]) for node in nodes.values()] == [
        (None, "done", "Once upon a time"),
        (1, "done", " The fox found"),
        (2, "running", " door 1 and went through"),
        (2, "running", " The fox found door"),
        (2, "running", " The owl found door"),
    ]
    server.engine.release()
    await expect(writer.branch(1)).to_contain_text("door 1 and went through it. The fox found door 2 and went")


async def parents(server: PageServer, document: str) -> list[tuple[str, str | None]]:
    """Returns the texts of nodes outside of the trash, each with that of its parent."""
    nodes = await server.nodes(document)
    shown = [node for node in nodes.values() if not node["is_trashed"]]
    return [(node["text"], node["parent"] and nodes[node["parent"]]["text"]) for node in shown]


async def test_undo_of_a_fork_joins_the_node_again_and_redo_splits_it(writer: Writer, server: PageServer) -> None:
    document = await begun(writer, server)
    await continued(writer, 1, "16 tokens")
    await expect(writer.text).to_contain_text("door 2 and went")
    await expect(writer.page.get_by_role("button", name="Stop all")).to_have_count(0)
    await writer.to_end()
    await writer.write(" She slept.")
    await writer.saved()
    before = await parents(server, document)
    shown = await writer.text.inner_text()
    await writer.page.get_by_role("combobox", name="Branches").select_option("× 2")
    popover = await inspect(writer, "found door 1")
    await popover.get_by_role("button", name="Fork here").click()
    await expect(writer.branch(3)).to_contain_text("reached its length")
    after = await parents(server, document)
    assert len(after) == len(before) + 3
    for _ in range(2):
        await writer.text.focus()
        await writer.press("Control+z")
        await expect(writer.messages).to_contain_text("Undone: Continue")
        await expect(writer.tree.get_by_role("treeitem")).to_have_count(3)
        await writer.shows(shown)
        assert await parents(server, document) == before
        await writer.press("Control+y")
        await expect(writer.messages).to_contain_text("Redone: Continue")
        await expect(writer.tree.get_by_role("treeitem")).to_have_count(6)
        assert sorted(await parents(server, document)) == sorted(after)
    await expect(writer.messages).not_to_contain_text("cannot be undone")


async def test_undo_of_a_fork_leaves_alone_what_is_still_being_written(writer: Writer, server: PageServer) -> None:
    server.engine.hold(8)
    document = await begun(writer, server)
    await continued(writer, 1)
    await expect(writer.text).to_contain_text("went through")
    await writer.page.get_by_role("combobox", name="Branches").select_option("× 2")
    popover = await inspect(writer, "found")
    await popover.get_by_role("button", name="Fork here").click()
    await expect(writer.tree.get_by_role("treeitem")).to_have_count(5)
    await writer.text.focus()
    await writer.press("Control+z")
    await expect(writer.messages).to_contain_text("Undone: Continue")
    await expect(writer.tree.get_by_role("treeitem")).to_have_count(3)
    server.engine.release()
    await expect(writer.row("door 1")).not_to_have_accessible_name(re.compile("being written"))
    texts = await server.texts(document)
    assert texts[:2] == ["Once upon a time", " The fox found"]
    assert texts[2].startswith(" door 1 and went through it. The fox found door 2")
    await writer.press("Control+y")
    await expect(writer.messages).to_contain_text("Redone: Continue")
    await expect(writer.tree.get_by_role("treeitem")).to_have_count(5)
    assert (await server.texts(document))[:3] == texts


async def test_the_token_panel_follows_the_cursor(writer: Writer, server: PageServer) -> None:
    await begun(writer, server)
    await continued(writer, 1)
    await expect(writer.text).to_contain_text("door 2")
    await writer.panel("Token")
    panel = writer.page.get_by_role("tabpanel", name="Token")
    await writer.cursor_after("fox")
    await writer.press("ArrowLeft")
    await expect(panel.get_by_role("option", selected=True)).to_contain_text("fox")
    await writer.press("Control+Home")
    await expect(panel).to_contain_text("This text was written by hand")


async def test_text_is_marked_by_probability_without_colour_alone(writer: Writer, server: PageServer) -> None:
    await begun(writer, server)
    await continued(writer, 1)
    await expect(writer.text).to_contain_text("door 2")
    await writer.text.focus()
    marks = writer.text.locator(".token-mark")
    if await marks.count() == 0:
        await writer.press("Alt+p")
    await expect(marks.first).to_be_visible()
    style = await marks.first.evaluate("element => getComputedStyle(element).textDecorationLine")
    assert style == "underline"
    await writer.press("Alt+p")
    await expect(marks).to_have_count(0)
    await expect(writer.messages).to_contain_text("not marked any more")


async def test_two_branches_are_compared_side_by_side(writer: Writer, server: PageServer) -> None:
    await begun(writer, server)
    await continued(writer, 2)
    await writer.branch(1).get_by_role("button", name="Keep").click()
    await writer.branch(2).get_by_role("button", name="Compare").click()
    dialog = writer.page.get_by_role("dialog", name="Compare two branches")
    left, right = dialog.get_by_role("region", name="Left"), dialog.get_by_role("region", name="Right")
    await expect(left.locator("del").first).to_have_text("fox")
    await expect(right.locator("ins").first).to_have_text("owl")
    await expect(dialog.get_by_role("status")).to_have_text("Difference 1 of 2")
    await writer.press("n")
    await expect(dialog.get_by_role("status")).to_have_text("Difference 2 of 2")
    await writer.press("s")
    await expect(left.locator("del").first).to_have_text("owl")
    await writer.press("Escape")
    await expect(dialog).to_have_count(0)


async def test_branches_of_a_stopped_server_are_resumed_with_one_key(writer: Writer, server: PageServer) -> None:
    server.engine.hold(4)
    document = await begun(writer, server)
    await continued(writer, 2)
    await expect(writer.branch(2)).to_contain_text("The owl found door")
    await server.stop()
    await expect(writer.page.get_by_role("banner")).to_contain_text("Connection lost")
    await writer.to_end()
    await writer.write(" there was")
    await expect(writer.save_state).to_have_text("Offline: kept in this browser")
    await server.start()
    await writer.saved()
    await expect(writer.branch(1)).to_contain_text("interrupted")
    await expect(writer.text).to_contain_text("Once upon a time there was")
    await writer.press("Alt+r")
    await expect(writer.branch(2)).to_contain_text("reached its length")
    texts = [node["text"] for node in (await server.nodes(document)).values() if node["model"] is not None]
    assert [text[:19] for text in texts] == [" The fox found door", " The owl found door"]
    assert server.engine.prompts == [f"Once upon a time The {each} found door" for each in ANIMALS[:2]]
    assert len(writer.sent("POST", "/resume$")) == 1


async def test_resumed_branches_have_memory_and_note_in_their_prompts(writer: Writer, server: PageServer) -> None:
    settings = {"memory": "A memory.", "author_note": {"text": "[A note.]", "depth": 1, "unit": "lines"}}
    document = await server.create("Story", *tree("Once upon\na time"), settings=settings)
    await writer.open(document, 1)
    await writer.to_end()
    server.engine.hold(4)
    await continued(writer, 2)
    await expect(writer.branch(2)).to_contain_text("The owl found door")
    [prompt] = server.engine.prompts
    assert prompt == "A memory.\nOnce upon\n[A note.]\na time"
    await server.stop()
    await server.start()
    await expect(writer.branch(2)).to_contain_text("interrupted")
    server.engine.hold(2)
    await writer.branch(2).get_by_role("button", name="Resume").click()
    await expect(writer.branch(2)).to_contain_text("writing…")
    assert server.engine.prompts == [f"{prompt} The owl found door"]
    await writer.text.focus()
    await writer.press("Alt+r")
    await expect(writer.branch(1)).to_contain_text("writing…")
    assert server.engine.prompts[1:] == [f"{prompt} The fox found door"]
    server.engine.release()
    await expect(writer.branch(1)).to_contain_text("reached its length")


async def test_a_failed_branch_says_why_and_is_resumed(writer: Writer, server: PageServer) -> None:
    server.engine.hold(4)
    await begun(writer, server)
    await continued(writer, 2)
    await expect(writer.branch(2)).to_contain_text("The owl found door")
    server.engine.fail(RuntimeError("the model has failed"))
    await expect(writer.branch(1)).to_contain_text("interrupted")
    server.engine.reset()
    await writer.branch(1).get_by_role("button", name="Resume").click()
    await expect(writer.branch(1)).to_contain_text("reached its length")


@pytest.mark.parametrize("n", [1, 3])
async def test_without_text_there_is_nothing_to_continue(writer: Writer, server: PageServer, n: int) -> None:
    await writer.open(await server.create("Empty"))
    await writer.page.get_by_role("combobox", name="Branches").select_option(f"× {n}")
    await expect(writer.page.get_by_role("button", name="Continue", exact=True)).to_be_disabled()
    await writer.text.focus()
    await writer.press("Control+Enter")
    assert writer.sent("POST", "/continue$") == []
