"""Space that a model writes without end is read in linear time."""

from itertools import chain
from typing import Self, SupportsIndex

import pytest

from tests.chat.families import FAMILIES, TOOLS
from weft.chat.answer.call_format import ReasoningMarks
from weft.chat.answer.form import ChatForm
from weft.chat.answer.grammar import End, Lookahead
from weft.chat.answer.parsed_message import ParsedMessage
from weft.chat.answer.source import MAX_HELD, Source, call_id
from weft.chat.answer.tools import ToolUse

N_PIECES = 4_000


class CountedText(str):
    """Text that counts the characters that are scanned or copied where it is stripped, cut or joined."""

    __slots__ = ()
    n_characters = 0

    def _counted(self, text: str, n_characters: int) -> Self:
        CountedText.n_characters += n_characters
        return type(self)(text)

    def lstrip(self, chars: str | None = None, /) -> Self:
        return self._counted(super().lstrip(chars), len(self))

    def rstrip(self, chars: str | None = None, /) -> Self:
        return self._counted(super().rstrip(chars), len(self))

    def __getitem__(self, at: SupportsIndex | slice, /) -> Self:
        text = super().__getitem__(at)
        return self._counted(text, len(text))

    def __add__(self, other: str, /) -> Self:
        return self._counted(super().__add__(other), len(self) + len(other))

    def __radd__(self, other: str, /) -> Self:
        return self._counted(f"{other}{self!s}", len(self) + len(other))


@pytest.fixture(autouse=True)
def count_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountedText, "n_characters", 0)


LONG = " " * MAX_HELD
"""More space than is held back of a call."""


@pytest.mark.parametrize(
    "before",
    ["", "x", "</think>", "<think>x", f"<think>x<tool_call>{LONG}", f"<tool_call>{LONG}"],
    ids=["first", "content", "behind reasoning", "reasoning", "call in reasoning", "call"],
)
@pytest.mark.parametrize("name", ["Hermes", "Qwen3 Coder", "Llama 3", "Command R7B"])
def test_space_in_an_answer_is_scanned_a_few_times(name: str, before: str) -> None:
    reader = ChatForm(FAMILIES[name], ReasoningMarks("<think>", "</think>"), ToolUse(TOOLS)).reader()
    message = ParsedMessage()
    pieces = (before, *(CountedText("\n") for _ in range(N_PIECES)), "x")
    for part in [*chain.from_iterable(map(reader.read, pieces)), *reader.end()]:
        message.add(part)
    assert 0 < CountedText.n_characters < 20 * N_PIECES
    n_told = 0 if before == "</think>" else N_PIECES
    assert f"{message.reasoning}{message.content}".count("\n") == n_told


@pytest.mark.parametrize("piece", [End("\n</tool_call>"), Lookahead("</tool_call>")], ids=["end", "ahead"])
def test_space_before_what_closes_a_call_is_scanned_a_few_times(piece: End | Lookahead) -> None:
    source = Source(TOOLS, 0, call_id, set(), n_earlier=0, is_parallel=True)
    reading = piece.read(source)
    for n in range(N_PIECES):
        next(reading)
        source.text = CountedText("\n" * n)
    assert 0 < CountedText.n_characters < 20 * N_PIECES
    source.text = f"{source.text!s}</tool_call>"
    with pytest.raises(StopIteration) as ended:
        next(reading)
    assert ended.value.value is True
