"""Input of a grammar: streamed text, with backtracking, and the parts that were parsed from it."""

import re
import secrets
import string
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from weft.chat.answer.parts import CallArguments, CallStart, Part
from weft.chat.answer.tools import Tool

T = TypeVar("T")

Parser = Generator[None, None, T]
"""Parser that yields whenever it needs more text, and returns what it has found."""

Reading = Parser[bool]
"""Parser that returns True if the text matched."""

MAX_HELD = 64 * 1024
"""Maximum characters that are held back until they are known to be a call. Beyond that, they become content."""

CallId = Callable[[str, int], str]
"""Creates the id of a call from the name of the tool and the index of the call in the chat, from 0."""

_NO_TOOL = Tool("", {})

_LETTERS = string.ascii_letters + string.digits


def call_id(_name: str, _call: int) -> str:
    """Returns a random id in OpenAI's format."""
    return f"call_{_random(24)}"


def short_id(_name: str, _call: int) -> str:
    """Returns a random id of nine letters and digits, as Mistral's templates require."""
    return _random(9)


def numbered_id(name: str, call: int) -> str:
    """Returns an id that contains the index of the call in the chat, as Kimi's templates require."""
    return f"functions.{name}:{call}"


def _random(n: int) -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(n))


def n_partial_mark(text: str, *marks: str) -> int:
    """Returns the length of the longest suffix of a text that is a proper prefix of one of `marks`, which must not be empty."""
    for n in range(min(max(map(len, marks)) - 1, len(text)), 0, -1):
        tail = text[-n:]
        if any(mark.startswith(tail) for mark in marks):
            return n
    return 0


def n_ahead(source: "Source", mark: str, offset: int = 0) -> Parser[int]:
    """Returns how much of a mark follows after `offset` characters: a part if the text ends there, -1 if other text follows."""
    while True:
        # While the parser waits, a commit may discard the text before it.
        start = source.at + offset
        ahead = source.text[start : start + len(mark)]
        if not mark.startswith(ahead):
            return -1
        if ahead == mark or source.is_ended:
            return len(ahead)
        yield


def read_word(source: "Source", pattern: re.Pattern[str], limit: int) -> Parser[str]:
    """Parses the longest text that matches a pattern, and returns it; empty if it is longer than `limit` characters.

    The pattern matches any beginning of a text that it matches, and also the empty text.
    """
    while True:
        match = pattern.match(source.text, source.at)
        word = match.group() if match is not None else ""
        if source.at + len(word) < len(source.text) or source.is_ended or len(word) > limit:
            break
        yield
    if len(word) > limit:
        return ""
    source.at += len(word)
    return word


class Source:
    """Text of one block of calls.

    A parser may backtrack until it commits its parts. Committed text is discarded.
    """

    def __init__(
        self, tools: Sequence[Tool], n_calls: int, make_id: CallId, ids: set[str], *, n_earlier: int, is_parallel: bool
    ) -> None:
        """Creates an empty source.

        Args:
            tools: The tools that may be called, the longest name first.
            n_calls: Number of earlier calls in the answer.
            make_id: Creates the ids of calls.
            ids: Ids of all calls of the chat. New ids are added to it.
            n_earlier: Number of calls in the chat before this answer.
            is_parallel: True if there may be several calls.
        """
        self.tools = tools
        self.text = ""
        """Received text that is not discarded yet."""
        self.at = 0
        """Position of the parser in `text`."""
        self.farthest = 0
        """Highest position that the parser has reached, including before backtracking."""
        self.is_ended = False
        """True once the text is complete."""
        self.is_truncated = False
        """True if the text was truncated. An incomplete mark at its end is not part of an argument then."""
        self.n_commits = 0
        """Number of commits. The parser cannot backtrack beyond the last one."""
        self.n_calls = n_calls
        self.n_complete = n_calls
        """Number of calls up to and including the last complete one."""
        self.has_unparsed_call = False
        """True if text that looked like a call was parsed as something else."""
        self.is_cut = False
        """True if the text ended before the mark that closes a call."""
        self.tool = tools[0] if tools else _NO_TOOL
        """The tool of the last call."""
        self.buffered_arguments = ""
        """Arguments that were parsed before the name of the tool."""
        self.given_id = ""
        """Id that the model gave to the next call."""
        self.n_earlier = n_earlier
        self._make_id = make_id
        self._ids = ids
        self.is_parallel = is_parallel
        self._open: list[Part] = []
        self._committed: list[Part] = []

    @property
    def has_committed(self) -> bool:
        """True if anything was committed."""
        return self.n_commits > 0

    def begin(self, tool: Tool) -> None:
        """Begins a call of a tool."""
        self.tool = tool
        number = self.n_earlier + self.n_calls
        while (call_id := self._make_id(tool.name, number)) in self._ids:
            number += 1
        given, self.given_id = self.given_id, ""
        self._open.append(CallStart(self.n_calls, given if given and given not in self._ids else call_id, tool.name))
        self.n_calls += 1

    def rename(self, call_id: str) -> None:
        """Sets the id of the last call, unless another call has it."""
        if call_id in self._ids:
            return
        for position in range(len(self._open) - 1, -1, -1):
            if isinstance(start := self._open[position], CallStart):
                self._open[position] = CallStart(start.call, call_id, start.name)
                return

    def give_id(self, call_id: str) -> None:
        """Sets the id that the model gives to the next call."""
        self.given_id = call_id

    def number(self, digits: str) -> None:
        """Sets the id of the last call from its index in the chat as the model counts it."""
        # Some models count from 0 in each answer.
        if int(digits) >= self.n_earlier + self.n_calls - 1:
            self.rename(numbered_id(self.tool.name, int(digits)))

    def add_arguments(self, text: str) -> None:
        """Appends text to the arguments of the last call."""
        if text:
            self._open.append(CallArguments(self.n_calls - 1, text))

    def emit(self, text: str) -> None:
        """Appends text to the arguments of the last call, and commits them."""
        self.add_arguments(text)
        self.commit()

    def commit(self) -> None:
        """Commits all parts up to the current position."""
        self._ids.update(part.id for part in self._open if isinstance(part, CallStart))
        self._committed += self._open
        self._open = []
        self.text = self.text[self.at :]
        self.at = self.farthest = 0
        self.n_commits += 1

    def has_open_call(self) -> bool:
        """Returns True if a call has begun that is not committed yet."""
        return any(isinstance(part, CallStart) for part in self._open)

    def mark(self) -> tuple[int, int, int, int]:
        """Returns the state for `backtrack`."""
        return self.at, len(self._open), self.n_calls, self.n_commits

    def backtrack(self, mark: tuple[int, int, int, int]) -> bool:
        """Restores a state. Returns False, and does nothing, if there was a commit since."""
        at, n_open, n_calls, n_commits = mark
        if self.n_commits != n_commits:
            return False
        self.farthest = max(self.farthest, self.at)
        self.at, self.n_calls, self.buffered_arguments, self.given_id = at, n_calls, "", ""
        del self._open[n_open:]
        return True

    def take_parts(self) -> list[Part]:
        """Returns the parts that were committed since the last call."""
        committed, self._committed = self._committed, []
        return committed

    @property
    def is_full(self) -> bool:
        """True if more text is held back than `MAX_HELD`."""
        return len(self.text) > MAX_HELD


def complete_source(text: str, *, is_truncated: bool = False) -> Source:
    """Returns a source that contains a complete text, for parsers of values."""
    source = Source((), 0, call_id, set(), n_earlier=0, is_parallel=False)
    source.text, source.is_ended, source.is_truncated = text, True, is_truncated
    return source
