"""The marks in the answers to one chat, prepared for the search in streamed text."""

import re
from collections.abc import Sequence

from weft.chat.answer.call_format import CallFormat, ReasoningMarks
from weft.chat.answer.tools import Tool

_TOOL_PLACEHOLDER = "{tool}"
"""Placeholder in a trigger for the name of a tool."""


class AnswerMarks:
    """Marks of a format, and of the tools that may be called. Immutable, and shared by the readers of all branches."""

    def __init__(
        self, call_format: CallFormat, reasoning_marks: ReasoningMarks | None, implicit_ends: Sequence[str], tools: Sequence[Tool]
    ) -> None:
        triggers = (
            trigger.replace(_TOOL_PLACEHOLDER, name)
            for trigger in call_format.triggers
            for name in ([tool.name for tool in tools] if _TOOL_PLACEHOLDER in trigger else ("",))
        )
        self.triggers = (*(triggers if tools else ()), *call_format.note_marks)
        """Texts that may begin a block of calls, or parts of the format that need a grammar."""
        self.openings = call_format.openings if tools or call_format.notes is not None else ()
        self.reasoning_ends = () if reasoning_marks is None else (reasoning_marks.end, *implicit_ends)
        self.reasoning_start = None if reasoning_marks is None else reasoning_marks.start
        starts = () if self.reasoning_start is None else (self.reasoning_start,)
        marks = sorted({*self.triggers, *call_format.fillers, *starts}, key=len, reverse=True)
        self.any = _alternatives(marks)
        """Matches any mark outside of reasoning."""
        first = f"[{re.escape(''.join({mark[0] for mark in marks}))}]|" if marks else ""
        self.not_plain = re.compile(rf"{first}\s\Z").search
        """Matches characters that may begin a mark, and trailing space. Most pieces of text contain neither."""
        self.any_trigger = _alternatives(self.triggers)
        self.any_reasoning_end = _alternatives(self.reasoning_ends)
        self.n_longest = max(map(len, marks), default=0)
        self.prefixes = {mark[:n] for mark in marks for n in range(1, len(mark))}

    def n_incomplete(self, text: str) -> int:
        """Returns the length of an incomplete mark at the end of a text outside of reasoning."""
        lengths = range(min(self.n_longest - 1, len(text)), 0, -1)
        return next((n for n in lengths if text[-n:] in self.prefixes), 0)


def _alternatives(texts: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(re.escape, texts))) if texts else None
