"""What the branches of a chat say, part by part."""

import pytest

from tests.chat.families import FAMILIES
from weft import Finished, Token, Usage
from weft.chat.answer.branches import BranchParsers
from weft.chat.answer.call_format import ReasoningMarks
from weft.chat.answer.form import ChatForm
from weft.chat.answer.formats import HERMES
from weft.chat.answer.parts import PLAIN, CallArguments, CallStart, Content, Part, Reasoning
from weft.chat.answer.tools import Tool, ToolUse

USAGE = Usage(n_computed=1, n_cached=2, n_predicted=1, n_context=3, prompt_ms=1.0, predicted_ms=1.0)


def token(index: int, text: str) -> Token:
    """A token of a branch."""
    return Token(index=index, token=7, text=text, slot=0, n_predicted=1)


def test_what_is_neither_thought_nor_call_is_content_and_the_rest_comes_at_the_end() -> None:
    spoken = BranchParsers(PLAIN)
    assert spoken.read(token(0, "He")) == [Content("He")]
    assert spoken.read(token(1, "")) == []
    finished = Finished(index=0, finish_reason="stop", text="y", usage=USAGE, slot=0)
    assert spoken.read(finished) == [Content("y")]
    assert spoken.finish_reason(finished) != "tool_calls"


WRITTEN = (
    "<think>It may rain.</think>\n\nLet me look. "
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
)
TOOLS = (Tool("weather", {"type": "object", "properties": {"city": {"type": "string"}}}),)


def reading(before: str = "") -> BranchParsers:
    """Branch 5 of a chat with a tool was forked behind this text."""
    form = ChatForm(HERMES, ReasoningMarks("<think>", "</think>"), ToolUse(TOOLS))
    return BranchParsers(form, lambda index: before if index == 5 else "")


def said(spoken: BranchParsers, text: str) -> tuple[list[Part], bool]:
    """What comes of a text of branch 5, and whether it is a call."""
    parts = [part for piece in text for part in spoken.read(token(5, piece))]
    end = Finished(index=5, finish_reason="stop", text="", usage=USAGE, slot=0)
    return [*parts, *spoken.read(end)], spoken.finish_reason(end) == "tool_calls"


def joined(parts: list[Part], kind: type[Content | Reasoning]) -> str:
    return "".join(part.text for part in parts if isinstance(part, kind))


def calls(parts: list[Part]) -> list[tuple[int, str, str]]:
    """The number, the name and the arguments of each call."""
    begun = [part for part in parts if isinstance(part, CallStart)]
    told = [part for part in parts if isinstance(part, CallArguments)]
    return [(one.call, one.name, "".join(part.text for part in told if part.call == one.call)) for one in begun]


@pytest.mark.parametrize(
    ("behind", "thought", "content", "cities"),
    [
        ("", "It may rain.", "Let me look.", ["Rome", "Oslo"]),
        ("<thi", "It may rain.", "Let me look.", ["Rome", "Oslo"]),
        ("It may", " rain.", "Let me look.", ["Rome", "Oslo"]),
        ("Let me", "", " look.", ["Rome", "Oslo"]),
        ('{"name": "wea', "", "", ["Rome", "Oslo"]),
        ('"city": "Ro', "", "", ["Rome", "Oslo"]),
        ("</tool_call>", "", "", ["Oslo"]),
        ('"Os', "", "", ["Oslo"]),
        ('{"city": "Oslo"}}\n</tool_call>', "", "", []),
    ],
)
def test_a_fork_is_read_as_its_branch_would_be_and_a_call_that_it_completes_is_its_own(
    behind: str, thought: str, content: str, cities: list[str]
) -> None:
    at = WRITTEN.index(behind) + len(behind)
    parts, is_call = said(reading(WRITTEN[:at]), WRITTEN[at:])
    assert (joined(parts, Reasoning), joined(parts, Content).rstrip()) == (thought, content)
    assert calls(parts) == [(nth, "weather", f'{{"city": "{city}"}}') for nth, city in enumerate(cities)]
    assert is_call == bool(cities)


KIMI = (
    "<|tool_calls_section_begin|>"
    '<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{"city": "Rome"}<|tool_call_end|>'
    '<|tool_call_begin|>functions.weather:1<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|>'
    "<|tool_calls_section_end|>"
)


@pytest.mark.parametrize(
    ("behind", "ids"),
    [
        ("", ["functions.weather:0", "functions.weather:1"]),
        ('"city": "Ro', ["functions.weather:0", "functions.weather:1"]),
        ('"Rome"}<|tool_call_end|>', ["functions.weather:1"]),
        ('"Os', ["functions.weather:1"]),
    ],
)
def test_numbered_ids_go_on_from_where_the_branch_of_a_fork_was(behind: str, ids: list[str]) -> None:
    at = KIMI.index(behind) + len(behind)
    spoken = BranchParsers(ChatForm(FAMILIES["Kimi K2"], None, ToolUse(TOOLS)), lambda index: KIMI[:at] if index == 5 else "")
    parts, _ = said(spoken, KIMI[at:])
    assert [part.id for part in parts if isinstance(part, CallStart)] == ids
    # Another choice counts its own.
    others = [part for piece in KIMI for part in spoken.read(token(0, piece)) if isinstance(part, CallStart)]
    assert [part.id for part in others] == ["functions.weather:0", "functions.weather:1"]


def test_other_branches_begin_with_nothing() -> None:
    spoken = reading("<think>It may")
    assert spoken.read(token(0, "<think>so")) == [Reasoning("so")]
