"""Family of models with the same format of reasoning, tool calls and content."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from weft.chat.answer.grammar import Grammar
from weft.chat.answer.source import CallId, call_id

__all__ = ["Family", "ReasoningMarks"]


class ReasoningMarks(msgspec.Struct, frozen=True):
    """Marks around reasoning."""

    start: str
    end: str
    implicit_ends: tuple[str, ...] = ()
    """Texts that also end reasoning, but are not part of it."""
    start_is_text: bool = False
    """True if `start` is not a mark but the first words of the reasoning, which the prompt contains."""


class Family(msgspec.Struct, frozen=True):
    """Format of an assistant's turn."""

    name: str
    is_of: Callable[[str], bool]
    """Returns True if the source of a template belongs to this family."""
    calls: Grammar
    """Grammar of a block of calls."""
    triggers: tuple[str, ...] = ()
    """Texts that begin a block anywhere in an answer. `{tool}` is replaced with the name of each tool."""
    openings: tuple[str, ...] = ()
    """Texts that begin a block only before any content."""
    between: str = "\n"
    """Text between two blocks."""
    fillers: tuple[str, ...] = ()
    """Marks of the format, which are dropped from the content."""
    notes: Grammar | None = None
    """Format that is parsed if one of `note_marks` or `openings` does not begin a call, even if no tools may be called."""
    note_marks: tuple[str, ...] = ()
    """Texts that begin `notes`."""
    stop_strings: tuple[str, ...] = ()
    """Stop strings of answers that may call tools: the text after them belongs to another turn."""
    lead: str = ""
    """Optional text between reasoning and a block."""
    content_start: str = ""
    """Mark before content."""
    content_end: str = ""
    """Mark after content."""
    patterns: tuple[str, ...] = ()
    """Regular expressions, in Rust syntax, for the start of a block, which is the first group. `BEGIN` matches the beginning of
    the content, `NAMES` the name of a tool. Without patterns, each of `triggers` begins a block."""
    ends_reasoning: tuple[str, ...] = ()
    """Marks of calls or of the format that end unclosed reasoning."""
    make_id: CallId = call_id
    write_calls: Callable[[Sequence[Mapping[str, Any]]], str] | None = None
    """Writes calls with `name` and `arguments` as text, for templates that do not render them; None uses the generic format."""
    reasoning_marks: ReasoningMarks | None = None
    """Marks around reasoning, for templates that do not contain them as one text."""
    takes_tools: bool = True
    """True if the family's templates render tools. Otherwise tools are described in words."""
