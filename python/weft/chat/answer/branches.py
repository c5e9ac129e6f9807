"""Parses the events of a chat's branches into parts of messages."""

from collections.abc import Callable
from typing import Literal

import msgspec

from weft.chat.answer.parts import AnswerForm, AnswerReader, CallArguments, CallStart, Part
from weft.events import Finished, Token

ChatFinishReason = Literal["stop", "length", "tool_calls", "cancelled"]
"""Why an answer ended, by OpenAI's names."""

CHUNK_CHARACTERS = 1_024
"""Characters of the text before a fork that are parsed in one step."""


class BranchParsers:
    """Parses the text of each branch of a chat into message parts."""

    def __init__(self, form: AnswerForm, before: Callable[[int], str] = lambda _: "") -> None:
        """Creates parsers.

        Args:
            form: Format of the generated text.
            before: Returns the text before a forked branch's own text.
        """
        self._form = form
        self._before = before
        self._readers: dict[int, AnswerReader] = {}
        self._n_calls_before: dict[int, int] = {}
        """For forked branches: complete tool calls before the fork."""
        self._callers: set[int] = set()
        self._cut: set[int] = set()

    def read(self, event: Token | Finished) -> list[Part]:
        """Returns the parts that an event adds to its branch. The final event also releases withheld text."""
        reader = self._readers.get(event.index)
        parts: list[Part] = []
        if reader is None:
            reader = self._readers[event.index] = self._form.reader()
            if before := self._before(event.index):
                parts = self._parse_prefix(event.index, reader, before)
        text = event.text
        parts += reader.read(text) if text else []
        if isinstance(event, Finished):
            parts += reader.end(is_truncated=event.finish_reason != "stop")
            if reader.is_cut:
                self._cut.add(event.index)
            del self._readers[event.index]
        if n_before := self._n_calls_before.get(event.index, 0):
            parts = [_renumbered(part, n_before) for part in parts]
        if any(isinstance(part, CallStart) for part in parts):
            self._callers.add(event.index)
        return parts

    def _parse_prefix(self, index: int, reader: AnswerReader, before: str) -> list[Part]:
        """Parses the text before a forked branch.

        If the fork is inside a tool call, the branch repeats that call from its beginning.
        """
        # In one step, the remaining text would be searched again after each marker.
        parts_before = [
            part
            for start in range(0, len(before), CHUNK_CHARACTERS)
            for part in reader.read(before[start : start + CHUNK_CHARACTERS])
        ]
        n_calls = sum(isinstance(part, CallStart) for part in parts_before)
        n_whole = self._n_calls_before[index] = n_calls - reader.is_cut
        return [part for part in parts_before if isinstance(part, CallStart | CallArguments) and part.call >= n_whole]

    def finish_reason(self, finished: Finished) -> ChatFinishReason:
        """Returns why a branch ended: "tool_calls" if it called a tool, and no limit or stop string interrupted the call."""
        is_cut = isinstance(finished.stop_reason, str) and self.is_cut(finished.index)
        is_call = finished.index in self._callers and finished.finish_reason == "stop" and not is_cut
        return "tool_calls" if is_call else finished.finish_reason

    def is_cut(self, index: int) -> bool:
        """Returns whether a branch ended within a tool call."""
        return index in self._cut


def _renumbered(part: Part, n_before: int) -> Part:
    """Returns the part with its call index counted from the fork."""
    return msgspec.structs.replace(part, call=part.call - n_before) if isinstance(part, CallStart | CallArguments) else part
