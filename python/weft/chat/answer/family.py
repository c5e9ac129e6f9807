"""A family of models: how they write thoughts, calls of tools, and what they say."""

from collections.abc import Callable

import msgspec

from weft.chat.answer.grammar import Grammar
from weft.chat.answer.source import CallId, call_id

__all__ = ["Family", "ThoughtMarks"]


class ThoughtMarks(msgspec.Struct, frozen=True):
    """What stands around a thought."""

    start: str
    end: str
    ends_before: tuple[str, ...] = ()
    """What a thought that was not closed ends before, besides."""
    is_begun_in_words: bool = False
    """Whether `start` is no mark but the first words of the thought, which the prompt has already."""


class Family(msgspec.Struct, frozen=True):
    """How an assistant's turn is written."""

    name: str
    is_of: Callable[[str], bool]
    """Whether a template is one of this family."""
    calls: Grammar
    """A block of calls."""
    triggers: tuple[str, ...] = ()
    """Texts with which a block begins, wherever they stand in an answer; `{tool}` in one is the name of a tool."""
    openings: tuple[str, ...] = ()
    """Texts with which one begins where nothing was said yet."""
    between: str = "\n"
    """What a model writes between two blocks."""
    fillers: tuple[str, ...] = ()
    """What belongs to the format and says nothing."""
    notes: Grammar | None = None
    """Format that is read where one of `note_marks` or `openings` begins no call; also where no tools may be called."""
    note_marks: tuple[str, ...] = ()
    """Texts with which that begins."""
    ends: tuple[str, ...] = ()
    """Texts that end an answer which may call: what follows is another's."""
    lead: str = ""
    """What may stand before a block behind a thought."""
    before: str = ""
    """What stands before what is said to the user."""
    behind: str = ""
    """What stands behind it."""
    patterns: tuple[str, ...] = ()
    """Where a block begins that may begin only where these regular expressions say, in Rust's syntax: `BEGIN` is where nothing
    was said yet, `NAMES` the name of a tool, and the first group the block's beginning. Without any it begins with each of
    `triggers`."""
    ends_thoughts: tuple[str, ...] = ()
    """Marks of calls or of the format that end a thought that was not closed."""
    make_id: CallId = call_id
    thought: ThoughtMarks | None = None
    """The marks around thoughts, where templates do not spell them in one piece."""
    takes_tools: bool = True
    """Whether its templates show the tools; where not, they are described in words."""
