"""Reads an answer: what is thought, what is said, and what is called."""

import logging
import re
from collections.abc import Callable, Sequence
from enum import Enum

from weft.chat.answer.begun import n_begun
from weft.chat.answer.family import Family, ThoughtMarks
from weft.chat.answer.grammar import Either
from weft.chat.answer.parts import CallArguments, Content, Part, Thought
from weft.chat.answer.source import Reading, Source
from weft.chat.answer.tools import Tool
from weft.fields.shown import shown

__all__ = ["FamilyReader", "ReasoningFormat"]

logger = logging.getLogger(__name__)

N_SHOWN = 80
"""Characters of what could not be read that the log has, where it has everything."""


MAX_AGAIN = 1_024
"""Of what was held back and turns out to be no call, so many characters are looked through for another one that begins in it, the
last ones. What comes before them is content."""

MAX_TRIES = 8
"""So many marks in them, the last ones, may begin it."""


class ReasoningFormat(Enum):
    """Where thoughts are told."""

    SEPARATE = "deepseek"
    IN_CONTENT = "none"
    """As they are written, with what stands around them."""
    BOTH = "deepseek-legacy"


class FamilyReader:
    """Reads one branch. Each character is looked at a few times at most, and all of it comes out again in a part or is format."""

    def __init__(
        self,
        family: Family | None,
        thought: ThoughtMarks | None,
        tools: Sequence[Tool],
        *,
        is_thinking: bool,
        thought_opening: str = "",
        continues_thought: bool = False,
        is_parallel: bool,
        is_held: bool,
        reasoning_format: ReasoningFormat,
        earlier: Sequence[str] = (),
        unread: Callable[[], None],
    ) -> None:
        """A reader at the beginning of an answer.

        Args:
            family: How calls are written, and what is format; None where neither is looked for.
            thought: What stands around thoughts; None where they are not told apart.
            tools: Those that may be called, the longest name first; none where calls are not looked for.
            is_thinking: Whether the answer begins within a thought.
            thought_opening: How the prompt begins that thought.
            continues_thought: Whether the prompt contains the beginning of that thought, so that space at its beginning counts.
            is_parallel: Whether there may be several calls.
            is_held: Whether neither a thought nor a call follows on what is said.
            thoughts: Where a thought is told.
            earlier: The ids of all calls that were made in the chat before.
            unread: Called where something looked like a call, and was none.
        """
        self._family, self._thought = family, thought
        self._tools, self._is_parallel, self._is_held = tools, is_parallel, is_held
        self._is_thinking = is_thinking and thought is not None
        self._reasoning_format, self._unread = reasoning_format, unread
        self._notes = None if family is None else family.notes
        self._triggers: tuple[str, ...] = ()
        """Texts with which a block of calls may begin, or format that takes more than a mark to read."""
        self._openings: tuple[str, ...] = ()
        if family is not None:
            self._triggers = (*(family.triggers if tools else ()), *family.note_marks)
            self._openings = family.openings if tools or family.notes is not None else ()
        self._fillers = family.fillers if family is not None else ()
        self._before = "" if family is None else family.before
        """What the answer may begin with that is format; nothing once it is past its beginning."""
        # An answer that begins with the end of reasoning has none. Empty once the answer is past its beginning.
        self._empty = (
            _end_of_none(thought) if reasoning_format is ReasoningFormat.SEPARATE and not (is_thinking or is_held) else ""
        )
        starts = (thought.start,) if thought is not None else ()
        marks = sorted({*self._triggers, *self._fillers, *starts}, key=len, reverse=True)
        self._mark = re.compile("|".join(map(re.escape, marks))) if marks else None
        first = f"[{re.escape(''.join({mark[0] for mark in marks}))}]|" if marks else ""
        self._not_plain = re.compile(rf"{first}\s\Z").search
        """Finds what may begin a mark, and space that may be told later: most stretches of a text have neither."""
        self._trigger = re.compile("|".join(map(re.escape, self._triggers))) if self._triggers else None
        self._longest = max(map(len, marks), default=0)
        self._begun = {mark[:n] for mark in marks for n in range(1, len(mark))}
        ends = () if thought is None else (thought.end, *thought.ends_before)
        self._end = re.compile("|".join(map(re.escape, ends))) if ends else None
        self._text = f"{thought.start}\n" if self._is_thinking and thought is not None and thought.is_begun_in_words else ""
        """What was not looked at to its end."""
        self._space: list[str] = []
        """Space at the end of the content so far, which is returned if more content follows. Its pieces are joined once."""
        self._is_fresh = self._is_thinking and not continues_thought
        """Whether space is no part of what is said next: a thought or a call has just ended, or begun."""
        self._has_said = False
        self._n_calls = self._n_whole = 0
        self._n_earlier = len(earlier)
        self._ids = set(earlier)
        """Those of calls in this answer and before."""
        self._source: Source | None = None
        """The block of calls that is being read."""
        self._reading: Reading | None = None
        self._is_ended = False
        self._is_plain = False
        """Whether a stretch in which nothing can begin is said as it is."""
        self._has_warned = self._is_truncated = False
        self._calls_within_thought = False
        """Whether the block of calls that is being read began in a thought, which goes on if that is no call."""
        self._thought_opening = "" if reasoning_format is ReasoningFormat.SEPARATE else thought_opening
        """What the content begins with, if the thought that the prompt has opened has any text, or is closed."""
        self._parts: list[Part] = []

    @property
    def is_cut(self) -> bool:
        """Whether the call that was begun last was not written to its end."""
        return self._n_calls > self._n_whole

    def read(self, text: str) -> list[Part]:
        """What a next stretch of the text adds."""
        if self._is_plain and text and self._not_plain(text) is None:
            # Most of most answers is this.
            if self._space:
                text, self._space = "".join([*self._space, text]), []
            return [Content(text)]
        if self._source is None:
            self._text += text
        else:
            self._source.text += text
        return self._advanced()

    def end(self, *, is_truncated: bool = False) -> list[Part]:
        """Returns the parts that were held back, once the text has ended.

        Args:
            is_truncated: Whether the text was cut off, as by `max_tokens`. The beginning of a call is no content then.
        """
        self._is_ended, self._is_truncated = True, is_truncated
        if self._source is not None:
            self._source.is_ended, self._source.is_truncated = True, is_truncated
        if is_truncated:
            self._drop_begun()
        self._advanced_to_end()
        parts, self._parts = self._parts, []
        return _joined(parts)

    def _drop_begun(self) -> None:
        """Drops the beginning of a mark or a call at the end of the text. A tool that was named is called, without arguments."""
        source = self._source
        if source is None:
            n_begun_mark = n_begun(self._text, *marks) if (marks := self._next_marks()) else 0
            # A single letter is more likely the end of a word.
            if n_begun_mark > 1 or (n_begun_mark and not self._text[-1].isalnum()):
                self._text = self._text[:-n_begun_mark].rstrip()
                self._space = self._space if self._text else []
            return
        if source.has_open_call():
            source.settle()
            self._take(source)
        elif source.is_settled:
            return
        self._source = self._reading = None
        self._space = []

    def _next_marks(self) -> list[str]:
        """Returns the marks that may follow the text that was read."""
        if self._is_thinking:
            return [] if self._thought is None else [self._thought.end, *self._thought.ends_before]
        starts = () if self._thought is None else (self._thought.start,)
        first = () if self._has_said else (self._empty, self._before, *self._openings)
        return [mark for mark in (*self._triggers, *self._fillers, *starts, *first) if mark]

    def _advanced_to_end(self) -> None:
        self._advance()
        if self._is_thinking:
            self._think(self._text)
        else:
            self._say(self._text)
            if not self._is_fresh:
                self._tell_space()
        self._text, self._space = "", []

    def _advanced(self) -> list[Part]:
        self._advance()
        is_apart = self._is_thinking or self._is_fresh or self._before or self._text
        self._is_plain = self._has_said and self._source is None and not is_apart
        parts, self._parts = self._parts, []
        return _joined(parts)

    def _advance(self) -> None:
        goes_on = True
        while goes_on:
            if self._source is not None:
                goes_on = self._call()
            elif self._is_thinking:
                goes_on = self._thought_goes_on()
            else:
                goes_on = self._content_goes_on()

    def _thought_goes_on(self) -> bool:
        """Reads up to the end of a thought; False where that is not there yet."""
        assert self._end is not None
        assert self._thought is not None
        if (match := self._end.search(self._text)) is not None:
            self._think(self._text[: match.start()])
            is_before = match.group() != self._thought.end
            if match.group() in self._triggers and self._may_call():
                self._text = self._text[match.start() :]
                self._calls_within_thought = True
                self._begin()
                return True
            self._text = self._text[match.start() if is_before else match.end() :]
            self._is_thinking, self._is_fresh, self._space = False, True, []
            if self._reasoning_format is not ReasoningFormat.SEPARATE:
                self._is_fresh = False
                self._parts.append(Content("" if is_before else f"{self._thought_opening}{self._thought.end}"))
                self._thought_opening = ""
            return True
        n_kept = 0 if self._is_ended else n_begun(self._text, self._thought.end, *self._thought.ends_before)
        stop = len(self._text) - n_kept
        self._think(self._text[:stop])
        self._text = self._text[stop:]
        return False

    def _think(self, text: str) -> None:
        if text and self._reasoning_format is not ReasoningFormat.SEPARATE:
            self._parts.append(Content(f"{self._thought_opening}{text}"))
            self._thought_opening = ""
        if self._reasoning_format is not ReasoningFormat.IN_CONTENT and (told := self._without_ends(text)):
            self._parts.append(Thought(told))

    def _without_ends(self, text: str) -> str:
        """A text without the space at its beginning, where something has just begun, and at its end, which may be told later."""
        if self._is_fresh:
            text = text.lstrip()
            if not text:
                return ""
            self._is_fresh = False
        told = text.rstrip()
        space = text[len(told) :]
        if told:
            told, self._space = "".join([*self._space, told]), []
        if space:
            self._space.append(space)
        return told

    def _say(self, text: str) -> None:
        if told := self._without_ends(text):
            self._has_said = True
            self._parts.append(Content(told))

    def _content_goes_on(self) -> bool:
        """Reads up to the next mark; False where there is none yet."""
        if self._empty or self._before:
            return self._begins()
        if self._openings and not self._has_said and self._may_open():
            return self._opened()
        if self._mark is None or self._not_plain(self._text) is None:
            self._say(self._text)
            self._text = ""
            return False
        if (match := self._mark.search(self._text)) is None:
            stop = len(self._text) - (0 if self._is_ended else self._n_begun())
            self._say(self._text[:stop])
            self._text = self._text[stop:]
            return False
        mark = match.group()
        self._say(self._text[: match.start()])
        self._text = self._text[match.start() :]
        if self._text in self._begun and not self._is_ended:
            # It may become a longer one.
            return False
        if self._is_held and self._has_said and mark not in self._fillers:
            self._say(mark)
            self._text = self._text[len(mark) :]
        elif self._thought is not None and mark == self._thought.start:
            self._text = self._text[len(mark) :]
            if self._has_said or self._reasoning_format is not ReasoningFormat.SEPARATE:
                self._tell_space()
            if self._reasoning_format is not ReasoningFormat.SEPARATE:
                self._parts.append(Content(mark))
            self._is_thinking, self._is_fresh, self._space = True, True, []
        elif mark in self._triggers and self._may_call():
            self._begin()
        elif mark in self._fillers:
            self._text = self._text[len(mark) :]
        else:
            self._say(mark)
            self._text = self._text[len(mark) :]
        return True

    def _begins(self) -> bool:
        """Drops format that the answer begins with; False where more text may make it that."""
        mark = self._empty or self._before
        self._hold_space()
        if self._text != mark and mark.startswith(self._text) and not self._is_ended:
            return False
        if is_there := self._text.startswith(mark):
            self._text, self._space = self._text.removeprefix(mark), []
        else:
            self._restore_space()
        if self._empty:
            self._empty, self._is_fresh = "", is_there
        else:
            self._before = ""
            # What follows is said to the user, whatever it looks like.
            self._has_said |= is_there
        return True

    def _hold_space(self) -> None:
        """Moves the space that the answer begins with out of the text, so that it is scanned once."""
        said = self._text.lstrip()
        if space := self._text[: len(self._text) - len(said)]:
            self._space.append(space)
        self._text = said

    def _restore_space(self) -> None:
        """Moves it back: a mark may begin with it."""
        self._text, self._space = "".join([*self._space, self._text]), []

    def _tell_space(self) -> None:
        """What follows is another part: what was said ends with its space."""
        if self._space:
            self._parts.append(Content("".join(self._space)))
            self._space = []

    def _n_begun(self) -> int:
        """How many characters at the end may begin a mark."""
        for n in range(min(self._longest - 1, len(self._text)), 0, -1):
            if self._text[-n:] in self._begun:
                return n
        return 0

    def _may_call(self) -> bool:
        return self._notes is not None or self._may_call_tools()

    def _may_call_tools(self) -> bool:
        return bool(self._tools) and (self._is_parallel or self._n_calls == 0)

    def _may_open(self) -> bool:
        """Whether what is there begins a block, or may do so."""
        self._hold_space()
        begun = () if self._is_ended else (opening for opening in self._openings if opening.startswith(self._text))
        if self._may_call() and (self._text.startswith(self._openings) or any(begun)):
            return True
        self._restore_space()
        return False

    def _opened(self) -> bool:
        if not self._text.startswith(self._openings):
            return False
        self._begin()
        return True

    def _begin(self) -> None:
        assert self._family is not None
        self._source = Source(
            self._tools, self._n_calls, self._family.make_id, self._ids, n_earlier=self._n_earlier, is_parallel=self._is_parallel
        )
        self._source.text, self._text = self._text, ""
        self._source.is_ended, self._source.is_truncated = self._is_ended, self._is_truncated
        block = self._family.calls
        if self._notes is not None:
            block = Either(block, self._notes) if self._may_call_tools() else self._notes
        self._reading = block.read(self._source)

    def _call(self) -> bool:
        """Reads on in a block of calls; False where it has not ended yet."""
        source, reading = self._source, self._reading
        assert source is not None
        assert reading is not None
        try:
            next(reading)
            is_read = None
        except StopIteration as end:
            is_read = bool(end.value)
        self._take(source)
        if is_read is None and not (source.is_full and not source.is_settled):
            return False
        self._source = self._reading = None
        if source.is_settled or is_read:
            if self._calls_within_thought:
                self._calls_within_thought, self._is_thinking, self._is_fresh, self._space = False, False, True, []
            if not self._has_said:
                self._is_fresh, self._space = True, []
            if source.is_unread:
                self._warn(source.text)
            self._text = "" if self._is_truncated else source.text[source.at :]
            if not is_read and self._text:
                self._warn(self._text)
            return True
        # The first character is content in any case; what follows may be a mark.
        n_content = self._n_content(source)
        self._text = source.text[n_content:]
        if self._calls_within_thought:
            self._calls_within_thought = False
            self._think(source.text[:n_content])
            return True
        if source.text.startswith(self._triggers):
            self._warn(source.text)
        self._say(source.text[:n_content])
        self._has_said = True
        return True

    def _take(self, source: Source) -> None:
        """Takes the parts that were settled: a call ends a thought in which it began."""
        if parts := source.taken():
            self._space, self._is_fresh, self._is_thinking = [], True, False
            self._parts += parts
            self._n_calls, self._n_whole = 1 + max(getattr(part, "call", -1) for part in parts), source.n_whole

    def _n_content(self, source: Source) -> int:
        """How many characters of what is no call are content, whatever they look like; one at least."""
        if self._trigger is None:
            return 1
        end = max(source.at, source.farthest)
        found = [match.start() for match in self._trigger.finditer(source.text, 1, end)]
        again = [start for start in found if start >= end - MAX_AGAIN][-MAX_TRIES:]
        if len(again) == len(found):
            return 1
        return again[0] if again else max(1, end - self._longest)

    def _warn(self, text: str) -> None:
        self._unread()
        if self._has_warned:
            return
        # Once for a branch: a model may write the same mark over and over.
        self._has_warned = True
        assert self._family is not None
        logger.warning("what looked like a call of a tool, in the way of %s, is none, and is told as content", self._family.name)
        logger.debug("it begins with %s", shown(text[:N_SHOWN]))


def _joined(parts: list[Part]) -> list[Part]:
    """The same, with stretches of one kind as one."""
    if len(parts) == 1 and not isinstance(parts[0], Content):
        return parts
    joined: list[Part] = []
    for part in parts:
        if isinstance(part, Content) and not part.text:
            continue
        last = joined[-1] if joined else None
        if isinstance(part, Content) and isinstance(last, Content):
            joined[-1] = Content(last.text + part.text)
        elif isinstance(part, Thought) and isinstance(last, Thought):
            joined[-1] = Thought(last.text + part.text)
        elif isinstance(part, CallArguments) and isinstance(last, CallArguments) and part.call == last.call:
            joined[-1] = CallArguments(part.call, last.text + part.text)
        else:
            joined.append(part)
    return joined


def _end_of_none(thought: ThoughtMarks | None) -> str:
    """Returns the end of reasoning, or nothing where reasoning begins in the same way."""
    return "" if thought is None or thought.start.startswith(thought.end) else thought.end
