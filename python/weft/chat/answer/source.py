"""Where a grammar reads from: text that comes piece by piece, and what was read of it."""

import secrets
import string
from collections.abc import Callable, Generator, Sequence

from weft.chat.answer.parts import CallArguments, CallBegun, Part
from weft.chat.answer.tools import Tool

__all__ = ["MAX_HELD", "CallId", "Reading", "Source", "call_id", "numbered_id", "short_id"]

Reading = Generator[None, None, bool]
"""Reads until it needs more text, and goes on once there is more. In the end it says whether the text is what it must be."""

MAX_HELD = 64 * 1024
"""Characters of a call that are held back at most, until it is clear that it is one. More of them are content."""

CallId = Callable[[str, int], str]
"""Makes the id of a call out of the tool's name and the call's number in the chat, from 0."""

_NO_TOOL = Tool("", {})

_LETTERS = string.ascii_letters + string.digits


def call_id(_name: str, _call: int) -> str:
    """An id that no other call has, in OpenAI's way."""
    return f"call_{_random(24)}"


def short_id(_name: str, _call: int) -> str:
    """One of nine letters and digits, as Mistral's templates want it."""
    return _random(9)


def numbered_id(name: str, call: int) -> str:
    """One by the call's number in the chat, as Kimi's templates want it."""
    return f"functions.{name}:{call}"


def _random(n: int) -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(n))


class Source:
    """Text of one block of calls.

    What is read may be taken back until it is settled. The text that settled parts were made of is dropped.
    """

    def __init__(
        self, tools: Sequence[Tool], n_calls: int, make_id: CallId, ids: set[str], *, n_earlier: int, is_parallel: bool
    ) -> None:
        """Nothing is there yet.

        Args:
            tools: Those that may be called, the longest name first.
            n_calls: How many calls the answer has made before.
            make_id: Makes the ids of calls.
            ids: Those that calls of the chat have; what is made here is added.
            n_earlier: How many calls were made in the chat before the answer.
            is_parallel: Whether there may be several calls.
        """
        self.tools = tools
        self.text = ""
        """What is there and not dropped."""
        self.at = 0
        """Where in it is to be read next."""
        self.farthest = 0
        """Where in it was read at most before some of that was taken back."""
        self.is_ended = False
        """Whether no more will come."""
        self.is_truncated = False
        """Whether the text was cut off where it ends, so that the beginning of a mark is no part of an argument."""
        self.n_settled = 0
        """How many times parts were settled: what was read before that cannot be taken back."""
        self.n_calls = n_calls
        self.n_whole = n_calls
        """How many calls there were up to the last that is whole."""
        self.is_unread = False
        """Whether what looked like a call was read as something else."""
        self.is_cut = False
        """Whether all text has ended before something that closes a call."""
        self.tool = tools[0] if tools else _NO_TOOL
        """The one that was called last."""
        self.held_arguments = ""
        """What was read of arguments before the tool was known."""
        self.given_id = ""
        """The id that the model has given the call that begins next."""
        self.n_earlier = n_earlier
        self._make_id = make_id
        self._ids = ids
        self.is_parallel = is_parallel
        self._open: list[Part] = []
        self._settled: list[Part] = []

    @property
    def is_settled(self) -> bool:
        """Whether anything was."""
        return self.n_settled > 0

    def begin(self, name: str) -> None:
        """A tool is called."""
        number = self.n_earlier + self.n_calls
        while (call_id := self._make_id(name, number)) in self._ids:
            number += 1
        given, self.given_id = self.given_id, ""
        self._open.append(CallBegun(self.n_calls, given if given and given not in self._ids else call_id, name))
        self.n_calls += 1

    def rename(self, call_id: str) -> None:
        """The call that was begun last has this id, unless another one has it."""
        if call_id in self._ids:
            return
        for position in range(len(self._open) - 1, -1, -1):
            if isinstance(begun := self._open[position], CallBegun):
                self._open[position] = CallBegun(begun.call, call_id, begun.name)
                return

    def argue(self, text: str) -> None:
        """The arguments of the call that was begun last go on."""
        if text:
            self._open.append(CallArguments(self.n_calls - 1, text))

    def settle(self) -> None:
        """All that was read is so for good."""
        self._ids.update(part.id for part in self._open if isinstance(part, CallBegun))
        self._settled += self._open
        self._open = []
        self.text = self.text[self.at :]
        self.at = self.farthest = 0
        self.n_settled += 1

    def has_open_call(self) -> bool:
        """Returns whether a tool was named whose call is not settled yet."""
        return any(isinstance(part, CallBegun) for part in self._open)

    def mark(self) -> tuple[int, int, int, int]:
        """Where to go back to."""
        return self.at, len(self._open), self.n_calls, self.n_settled

    def back(self, mark: tuple[int, int, int, int]) -> bool:
        """Takes back what was read since; False where some of it was settled."""
        at, n_open, n_calls, n_settled = mark
        if self.n_settled != n_settled:
            return False
        self.farthest = max(self.farthest, self.at)
        self.at, self.n_calls, self.held_arguments, self.given_id = at, n_calls, "", ""
        del self._open[n_open:]
        return True

    def taken(self) -> list[Part]:
        """What was settled since this was asked last."""
        settled, self._settled = self._settled, []
        return settled

    @property
    def is_full(self) -> bool:
        """Whether more is held back than may be."""
        return len(self.text) > MAX_HELD
