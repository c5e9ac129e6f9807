"""What the model reads: memory, note, lore and instructions in the prompt, and sampling parameters in the request."""

import json
import re
from typing import Any

import pytest
from playwright.async_api import Locator, expect

from tests.page.served import PageServer, tree
from tests.page.writer import Writer

TEXT = "Once upon a time there was a fox."


async def opened(writer: Writer, server: PageServer, text: str = TEXT, **settings: Any) -> str:  # noqa: ANN401 (settings)
    document = await server.create("Context", *tree(text), settings=settings)
    await writer.open(document, 1)
    return document


async def context_tab(writer: Writer, name: str) -> Locator:
    """Shows a part of the context; returns its panel."""
    await writer.panel("Context")
    await writer.page.get_by_role("tab", name=name, exact=True).click()
    return writer.page.get_by_role("tabpanel", name=name)


async def prompt_of(writer: Writer, server: PageServer) -> str:
    """Continues the text; returns the prompt that the engine received."""
    n_before = len(server.engine.prompts)
    await writer.text.focus()
    async with writer.page.expect_response("**/continue"):
        await writer.press("Control+Shift+Enter")
    assert len(server.engine.prompts) == n_before + 1
    return server.engine.prompts[-1]


def last_request(writer: Writer) -> Any:  # noqa: ANN401 (JSON)
    """Returns the body of the last request for branches."""
    [*_, request] = writer.sent("POST", "/continue$")
    return json.loads(request.post_data or "")


async def test_without_memory_the_text_is_the_prompt(writer: Writer, server: PageServer) -> None:
    await opened(writer, server)
    assert await prompt_of(writer, server) == TEXT
    assert "prompt" not in last_request(writer)


async def test_memory_stands_before_the_text(writer: Writer, server: PageServer) -> None:
    document = await opened(writer, server)
    panel = await context_tab(writer, "Memory")
    await panel.get_by_label("Memory", exact=True).fill("Mira is a fox of eleven years.")
    prompt = await prompt_of(writer, server)
    assert prompt.startswith("Mira is a fox of eleven years.")
    assert prompt.endswith(TEXT)
    record = (await server.client.get(f"/documents/{document}")).json()
    assert record["settings"]["memory"] == "Mira is a fox of eleven years."


async def test_a_change_of_the_memory_is_a_step_of_undo(writer: Writer, server: PageServer) -> None:
    await opened(writer, server)
    memory = (await context_tab(writer, "Memory")).get_by_label("Memory", exact=True)
    await memory.fill("Mira is a fox.")
    assert (await prompt_of(writer, server)).startswith("Mira is a fox.")
    await writer.press("Control+z", "Control+z")
    await expect(memory).to_have_value("")
    assert (await prompt_of(writer, server)).startswith("Once upon a time")


async def test_the_authors_note_stands_at_its_depth(writer: Writer, server: PageServer) -> None:
    lines = "".join(f"Line {nth} of the story.\n" for nth in range(20))
    await opened(writer, server, lines)
    panel = await context_tab(writer, "Memory")
    await panel.get_by_label(re.compile("^Author.s note$")).fill("[Style: short sentences.]")
    await panel.get_by_label("Unit of the distance").select_option("lines")
    await panel.get_by_label("Distance from the end").fill("4")
    before, note, after = (await prompt_of(writer, server)).partition("[Style: short sentences.]")
    assert note
    assert before.startswith("Line 0 of the story.")
    assert after.rstrip().endswith("Line 19 of the story.")
    assert 3 <= after.count("Line") <= 6


async def test_lore_is_sent_when_a_key_occurs(writer: Writer, server: PageServer) -> None:
    await opened(writer, server)
    panel = await context_tab(writer, "Lore")
    await panel.get_by_role("button", name="New entry").click()
    await expect(panel.get_by_label("Name")).to_be_focused()
    await writer.write("Foxes")
    await panel.get_by_label("Keys", exact=True).fill("/fox(es)?/i")
    await panel.get_by_label("Text", exact=True).fill("Foxes of this land can talk.")
    await panel.get_by_role("button", name="New entry").click()
    await panel.get_by_label("Keys", exact=True).fill("owl")
    await panel.get_by_label("Text", exact=True).fill("Owls keep the time.")
    await expect(panel.get_by_role("button", name=re.compile("Foxes.*a key occurs"))).to_be_visible()
    await expect(panel.get_by_role("button", name=re.compile("owl.*no key occurs"))).to_be_visible()
    prompt = await prompt_of(writer, server)
    assert "Foxes of this land can talk." in prompt
    assert "Owls" not in prompt
    await panel.get_by_role("checkbox", name="Enable Foxes").uncheck()
    assert "Foxes" not in await prompt_of(writer, server)


async def test_an_invalid_or_slow_expression_is_named_and_stops_nothing(writer: Writer, server: PageServer) -> None:
    entry = {"name": "Bad", "secondary_keys": [], "is_constant": False, "is_enabled": True, "order": 1, "depth": 0}
    lore = [entry | {"keys": ["/fox(/"], "text": "Never."}, entry | {"keys": ["/(a+)+$/"], "text": "Never either."}]
    await opened(writer, server, TEXT + " " + "a" * 40 + "!", lore=lore)
    panel = await context_tab(writer, "Lore")
    await expect(panel).to_contain_text("“/fox(/” is no valid regular expression")
    await expect(panel.get_by_role("alert")).to_contain_text("takes too long to search and is skipped")
    assert "Never" not in await prompt_of(writer, server)


async def test_the_inspector_shows_what_is_sent_and_what_a_change_costs(writer: Writer, server: PageServer) -> None:
    await opened(writer, server, memory="Mira is a fox.", author_note={"text": "[Short.]", "depth": 2, "unit": "tokens"})
    panel = await context_tab(writer, "What is sent")
    headings = panel.get_by_role("heading")
    await expect(headings.first).to_contain_text("Memory")
    await expect(panel.get_by_role("region", name=re.compile("^Memory"))).to_contain_text("Mira is a fox.")
    await expect(panel.get_by_role("region", name=re.compile("^Author.s note"))).to_contain_text("[Short.]")
    await expect(panel.get_by_role("region", name=re.compile("^Memory"))).to_contain_text(
        re.compile(r"After a change here, the model has to read")
    )
    prompt = await prompt_of(writer, server)
    shown = [await part.inner_text() for part in await panel.get_by_role("region").all()]
    assert "Mira is a fox." in prompt
    assert "[Short.]" in prompt
    assert len(shown) >= 3


async def test_text_that_does_not_fit_is_named_and_not_sent(writer: Writer, server: PageServer) -> None:
    n_words = 70_000
    await opened(writer, server, "BEGINNING. " + "word " * n_words + "END.")
    panel = await context_tab(writer, "What is sent")
    await expect(panel).to_contain_text("does not fit")
    await expect(panel.get_by_text("Not sent")).to_be_visible()
    prompt = await prompt_of(writer, server)
    assert "BEGINNING" not in prompt
    assert prompt.endswith("END.")
    assert server.engine.limits.n_ctx_slot > len(server.engine.requests[-1].prompt) > 10_000


async def test_an_instruction_is_formatted_by_the_template(writer: Writer, server: PageServer) -> None:
    await opened(writer, server)
    panel = await context_tab(writer, "Memory")
    await panel.get_by_label("Follow an instruction").check()
    await panel.get_by_label("System text").fill("You are a novelist.")
    await panel.get_by_label("Instruction", exact=True).fill("Write about a fox.")
    prompt = await prompt_of(writer, server)
    assert prompt.index("You are a novelist.") < prompt.index("Write about a fox.") < prompt.index(TEXT)
    assert prompt.endswith(TEXT)
    assert "<|im_start|>" in prompt


async def test_a_preset_and_a_changed_value_reach_the_request(writer: Writer, server: PageServer) -> None:
    await opened(writer, server)
    await writer.panel("Sampling")
    panel = writer.page.get_by_role("tabpanel", name="Sampling")
    await panel.get_by_label("Preset", exact=True).select_option("Precise")
    await panel.get_by_label("Temperature", exact=True).fill("0.42")
    await panel.get_by_text("Ends and extras").click()
    await panel.get_by_label("Seed", exact=True).fill("1234")
    await expect(panel.get_by_label("Preset", exact=True)).to_contain_text("Precise, changed")
    await prompt_of(writer, server)
    sent = last_request(writer)
    assert (sent["temperature"], sent["seed"]) == (0.42, 1234)
    request = server.engine.requests[-1]
    assert (round(request.temperature, 2), request.seed) == (0.42, 1234)


async def test_every_parameter_counts_as_a_change_of_the_preset_and_is_undone(writer: Writer, server: PageServer) -> None:
    await opened(writer, server)
    await writer.panel("Sampling")
    panel = writer.page.get_by_role("tabpanel", name="Sampling")
    await panel.get_by_text("Ends and extras").click()
    await panel.get_by_label("Never end by itself").check()
    await expect(panel.get_by_label("Preset", exact=True)).to_contain_text("Balanced, changed")
    await panel.get_by_role("button", name="Undo the changes").click()
    await expect(panel.get_by_label("Never end by itself")).not_to_be_checked()
    await expect(panel.get_by_label("Preset", exact=True)).not_to_contain_text("Balanced, changed")


async def test_invalid_values_are_named_and_nothing_is_sent(writer: Writer, server: PageServer) -> None:
    await opened(writer, server)
    await writer.panel("Sampling")
    temperature = writer.page.get_by_role("tabpanel", name="Sampling").get_by_label("Temperature", exact=True)
    await temperature.fill("hot")
    await expect(temperature).to_have_attribute("aria-invalid", "true")
    await writer.text.focus()
    await writer.press("Control+Enter")
    await expect(writer.messages).to_contain_text("Nothing was generated. Temperature must be a number.")
    assert server.engine.requests == []


async def test_branches_have_presets_of_their_own(writer: Writer, server: PageServer) -> None:
    await opened(writer, server)
    await writer.panel("Sampling")
    panel = writer.page.get_by_role("tabpanel", name="Sampling")
    await panel.get_by_text("Different presets for branches").click()
    for number, preset in enumerate(("Precise", "Wild"), 1):
        await panel.get_by_role("button", name="Add a preset").click()
        await panel.get_by_label(f"Preset of branch {number}", exact=True).select_option(preset)
    await writer.page.get_by_role("combobox", name="Branches").select_option("× 4")
    await writer.text.focus()
    async with writer.page.expect_response("**/continue"):
        await writer.press("Control+Enter")
    sent = last_request(writer)
    assert "n" not in sent
    assert len(sent["branches"]) == 4
    assert sent["branches"][0]["temperature"] == sent["branches"][2]["temperature"]
    assert sent["branches"][0]["temperature"] < sent["branches"][1]["temperature"]


async def test_own_presets_are_saved_renamed_and_deleted(writer: Writer, server: PageServer) -> None:
    document = await opened(writer, server)
    await writer.panel("Sampling")
    panel = writer.page.get_by_role("tabpanel", name="Sampling")
    await panel.get_by_label("Temperature", exact=True).fill("1.3")
    await panel.get_by_role("button", name="Save as…").click()
    await writer.write("Mine")
    await writer.press("Enter")
    await expect(panel.get_by_label("Preset", exact=True)).to_have_value("Mine")
    await panel.get_by_role("button", name="Rename…").click()
    await panel.get_by_label("Name of the preset").fill("Ours")
    await writer.press("Enter")
    await expect(panel.get_by_label("Preset", exact=True)).to_have_value("Ours")
    record = (await server.client.get(f"/documents/{document}")).json()
    assert [each["name"] for each in record["settings"]["presets"]] == ["Ours"]
    await panel.get_by_role("button", name="Delete preset").click()
    await expect(panel.get_by_label("Preset", exact=True).get_by_role("option", name="Ours")).to_have_count(0)


@pytest.mark.parametrize(
    ("choice", "fields"),
    [
        ("Different first tokens", {"distinct": True}),
        ("Evenly spread", {"diverse": "arithmetic"}),
        ("Beam search", {"beam_width": 4}),
    ],
    ids=["distinct", "arithmetic", "beams"],
)
async def test_branches_are_kept_different(writer: Writer, server: PageServer, choice: str, fields: dict[str, Any]) -> None:
    await opened(writer, server)
    await writer.panel("Sampling")
    panel = writer.page.get_by_role("tabpanel", name="Sampling")
    await panel.get_by_role("radio", name=re.compile(f"^{choice}")).check()
    if "beam_width" in fields:
        await panel.get_by_label("Beams", exact=True).fill("4")
    await writer.page.get_by_role("combobox", name="Branches").select_option("× 3")
    await writer.text.focus()
    async with writer.page.expect_response("**/continue"):
        await writer.press("Control+Enter")
    assert last_request(writer) | fields == last_request(writer)


async def test_words_are_favoured_and_texts_end_a_branch(writer: Writer, server: PageServer) -> None:
    await opened(writer, server)
    await writer.panel("Sampling")
    panel = writer.page.get_by_role("tabpanel", name="Sampling")
    await panel.get_by_text("Words to favour or avoid").click()
    await panel.get_by_role("button", name="Add a text").click()
    await panel.get_by_label("Text", exact=True).fill(" fox")
    await panel.get_by_label("Bias", exact=True).fill("-5")
    await panel.get_by_text("Ends and extras").click()
    await panel.get_by_label("End a branch at these texts").fill("The end\\n")
    await prompt_of(writer, server)
    sent = last_request(writer)
    assert sent["logit_bias"] == [[" fox", -5]]
    assert sent["stop"] == ["The end\n"]
