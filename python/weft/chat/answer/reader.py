"""Incremental parser of an answer: reasoning, content and tool calls."""

import logging
import re
from collections.abc import Callable, Sequence
from enum import Enum

from weft.chat.answer.family import Family, ReasoningMarks
from weft.chat.answer.grammar import Either
from weft.chat.answer.partial_mark import n_partial_mark
from weft.chat.answer.parts import CallArguments, Content, Part, Reasoning
from weft.chat.answer.source import Reading, Source
from weft.chat.answer.tools import Tool
from weft.fields.excerpt import excerpt

__all__ = ["FamilyReader", "ReasoningFormat"]

logger = logging.getLogger(__name__)

MAX_LOGGED = 80
"""Characters of text that could not be parsed to log, at debug level."""


MAX_RESCANNED = 1_024
"""Text that turns out to be no call is searched again for the beginning of another call, but only this many of its last
characters. The text before them becomes content."""

MAX_TRIES = 8
"""Maximum number of marks in the rescanned text that are tried, the last ones."""


class ReasoningFormat(Enum):
    """Where reasoning is returned. The values are named as in llama-server."""

    SEPARATE = "deepseek"
    IN_CONTENT = "none"
    """As part of the content, with its marks."""
    BOTH = "deepseek-legacy"


class FamilyReader:
    """Parses one branch. Each character is scanned a bounded number of times, and is returned in a part unless it is format."""

    def __init__(
        self,
        family: Family | None,
        reasoning_marks: ReasoningMarks | None,
        tools: Sequence[Tool],
        *,
        is_thinking: bool,
        reasoning_opening: str = "",
        continues_reasoning: bool = False,
        is_parallel: bool,
        is_constrained: bool,
        reasoning_format: ReasoningFormat,
        earlier: Sequence[str] = (),
        on_unparsed_call: Callable[[], None],
    ) -> None:
        """Creates a reader at the beginning of an answer.

        Args:
            family: Format of calls and content; None to parse only reasoning.
            reasoning_marks: Marks around reasoning; None if it is not separated.
            tools: The tools that may be called, the longest name first; empty if calls are not parsed.
            is_thinking: True if the answer begins within reasoning.
            reasoning_opening: The text with which the prompt begins that reasoning.
            continues_reasoning: True if the prompt contains a part of that reasoning, so that leading space is significant.
            is_parallel: True if there may be several calls.
            is_constrained: True if a grammar excludes reasoning and calls after content.
            reasoning_format: Where reasoning is returned.
            earlier: Ids of all earlier calls in the chat.
            on_unparsed_call: Called when text that looks like a call cannot be parsed.
        """
        self._family, self._reasoning_marks = family, reasoning_marks
        self._tools, self._is_parallel, self._is_constrained = tools, is_parallel, is_constrained
        self._is_thinking = is_thinking and reasoning_marks is not None
        self._reasoning_format, self._on_unparsed_call = reasoning_format, on_unparsed_call
        self._notes = None if family is None else family.notes
        self._triggers: tuple[str, ...] = ()
        """Texts that may begin a block of calls, or parts of the format that need a grammar."""
        self._openings: tuple[str, ...] = ()
        if family is not None:
            self._triggers = (*(family.triggers if tools else ()), *family.note_marks)
            self._openings = family.openings if tools or family.notes is not None else ()
        self._fillers = family.fillers if family is not None else ()
        self._content_start = "" if family is None else family.content_start
        """Optional mark before the content; empty once the answer is past its beginning."""
        # An answer that begins with the end mark of reasoning has none. Empty once the answer is past its beginning.
        self._empty_reasoning_end = (
            _end_of_none(reasoning_marks)
            if reasoning_format is ReasoningFormat.SEPARATE and not (is_thinking or is_constrained)
            else ""
        )
        starts = (reasoning_marks.start,) if reasoning_marks is not None else ()
        marks = sorted({*self._triggers, *self._fillers, *starts}, key=len, reverse=True)
        self._mark = re.compile("|".join(map(re.escape, marks))) if marks else None
        first = f"[{re.escape(''.join({mark[0] for mark in marks}))}]|" if marks else ""
        self._not_plain = re.compile(rf"{first}\s\Z").search
        """Matches characters that may begin a mark, and trailing space. Most pieces of text contain neither."""
        self._trigger = re.compile("|".join(map(re.escape, self._triggers))) if self._triggers else None
        self._longest = max(map(len, marks), default=0)
        self._mark_prefixes = {mark[:n] for mark in marks for n in range(1, len(mark))}
        ends = () if reasoning_marks is None else (reasoning_marks.end, *reasoning_marks.implicit_ends)
        self._end = re.compile("|".join(map(re.escape, ends))) if ends else None
        self._text = (
            f"{reasoning_marks.start}\n"
            if self._is_thinking and reasoning_marks is not None and reasoning_marks.start_is_text
            else ""
        )
        """Unprocessed text."""
        self._space: list[str] = []
        """Space at the end of the content so far, in pieces. It is returned only if more content follows."""
        self._is_fresh = self._is_thinking and not continues_reasoning
        """True if leading space of the next text is dropped, because reasoning or a call has just ended, or begun."""
        self._has_content = False
        self._n_calls = self._n_complete = 0
        self._n_earlier = len(earlier)
        self._ids = set(earlier)
        """Ids of calls in this answer and earlier in the chat."""
        self._source: Source | None = None
        """The block of calls that is being parsed."""
        self._reading: Reading | None = None
        self._is_ended = False
        self._is_plain = False
        """True if text without marks is content, without further checks."""
        self._has_warned = self._is_truncated = False
        self._calls_within_reasoning = False
        """True if the block that is being parsed began within reasoning, which continues if the block is no call."""
        self._reasoning_opening = "" if reasoning_format is ReasoningFormat.SEPARATE else reasoning_opening
        """Text to prepend to the content, if reasoning that the prompt has begun contains any text or is closed."""
        self._parts: list[Part] = []

    @property
    def is_cut(self) -> bool:
        """True if the last call is incomplete."""
        return self._n_calls > self._n_complete

    def read(self, text: str) -> list[Part]:
        """Parses the next piece of the text."""
        if self._is_plain and text and self._not_plain(text) is None:
            # Fast path for most of the text.
            if self._space:
                text, self._space = "".join([*self._space, text]), []
            return [Content(text)]
        if self._source is None:
            self._text += text
        else:
            self._source.text += text
        return self._process()

    def end(self, *, is_truncated: bool = False) -> list[Part]:
        """Ends the text, and returns the parts that were held back.

        Args:
            is_truncated: True if the text was truncated, for example by `max_tokens`. An incomplete call is dropped then.
        """
        self._is_ended, self._is_truncated = True, is_truncated
        if self._source is not None:
            self._source.is_ended, self._source.is_truncated = True, is_truncated
        if is_truncated:
            self._drop_incomplete()
        self._process_to_end()
        parts, self._parts = self._parts, []
        return _merged(parts)

    def _drop_incomplete(self) -> None:
        """Drops an incomplete mark or call at the end of the text. A call whose tool is known is kept, without arguments."""
        source = self._source
        if source is None:
            n_incomplete = n_partial_mark(self._text, *marks) if (marks := self._next_marks()) else 0
            # A single letter is more likely to be the end of a word.
            if n_incomplete > 1 or (n_incomplete and not self._text[-1].isalnum()):
                self._text = self._text[:-n_incomplete].rstrip()
                self._space = self._space if self._text else []
            return
        if source.has_open_call():
            source.commit()
            self._take(source)
        elif source.has_committed:
            return
        self._source = self._reading = None
        self._space = []

    def _next_marks(self) -> list[str]:
        """Returns the marks that may follow the processed text."""
        if self._is_thinking:
            return [] if self._reasoning_marks is None else [self._reasoning_marks.end, *self._reasoning_marks.implicit_ends]
        starts = () if self._reasoning_marks is None else (self._reasoning_marks.start,)
        first = () if self._has_content else (self._empty_reasoning_end, self._content_start, *self._openings)
        return [mark for mark in (*self._triggers, *self._fillers, *starts, *first) if mark]

    def _process_to_end(self) -> None:
        self._run()
        if self._is_thinking:
            self._add_reasoning(self._text)
        else:
            self._add_content(self._text)
            if not self._is_fresh:
                self._flush_space()
        self._text, self._space = "", []

    def _process(self) -> list[Part]:
        self._run()
        is_apart = self._is_thinking or self._is_fresh or self._content_start or self._text
        self._is_plain = self._has_content and self._source is None and not is_apart
        parts, self._parts = self._parts, []
        return _merged(parts)

    def _run(self) -> None:
        should_continue = True
        while should_continue:
            if self._source is not None:
                should_continue = self._process_call()
            elif self._is_thinking:
                should_continue = self._process_reasoning()
            else:
                should_continue = self._process_content()

    def _process_reasoning(self) -> bool:
        """Processes text up to the end of reasoning. Returns False if more text is needed."""
        assert self._end is not None
        assert self._reasoning_marks is not None
        if (match := self._end.search(self._text)) is not None:
            self._add_reasoning(self._text[: match.start()])
            is_implicit = match.group() != self._reasoning_marks.end
            if match.group() in self._triggers and self._may_call():
                self._text = self._text[match.start() :]
                self._calls_within_reasoning = True
                self._begin()
                return True
            self._text = self._text[match.start() if is_implicit else match.end() :]
            self._is_thinking, self._is_fresh, self._space = False, True, []
            if self._reasoning_format is not ReasoningFormat.SEPARATE:
                self._is_fresh = False
                self._parts.append(Content("" if is_implicit else f"{self._reasoning_opening}{self._reasoning_marks.end}"))
                self._reasoning_opening = ""
            return True
        n_kept = (
            0 if self._is_ended else n_partial_mark(self._text, self._reasoning_marks.end, *self._reasoning_marks.implicit_ends)
        )
        stop = len(self._text) - n_kept
        self._add_reasoning(self._text[:stop])
        self._text = self._text[stop:]
        return False

    def _add_reasoning(self, text: str) -> None:
        if text and self._reasoning_format is not ReasoningFormat.SEPARATE:
            self._parts.append(Content(f"{self._reasoning_opening}{text}"))
            self._reasoning_opening = ""
        if self._reasoning_format is not ReasoningFormat.IN_CONTENT and (trimmed := self._without_outer_space(text)):
            self._parts.append(Reasoning(trimmed))

    def _without_outer_space(self, text: str) -> str:
        """Strips a text: leading space if it is dropped here, and trailing space, which is kept for later."""
        if self._is_fresh:
            text = text.lstrip()
            if not text:
                return ""
            self._is_fresh = False
        trimmed = text.rstrip()
        space = text[len(trimmed) :]
        if trimmed:
            trimmed, self._space = "".join([*self._space, trimmed]), []
        if space:
            self._space.append(space)
        return trimmed

    def _add_content(self, text: str) -> None:
        if trimmed := self._without_outer_space(text):
            self._has_content = True
            self._parts.append(Content(trimmed))

    def _process_content(self) -> bool:
        """Processes text up to the next mark. Returns False if more text is needed."""
        if self._empty_reasoning_end or self._content_start:
            return self._skip_opening_mark()
        if self._openings and not self._has_content and self._may_open():
            return self._begin_at_opening()
        if self._mark is None or self._not_plain(self._text) is None:
            self._add_content(self._text)
            self._text = ""
            return False
        if (match := self._mark.search(self._text)) is None:
            stop = len(self._text) - (0 if self._is_ended else self._n_incomplete())
            self._add_content(self._text[:stop])
            self._text = self._text[stop:]
            return False
        mark = match.group()
        self._add_content(self._text[: match.start()])
        self._text = self._text[match.start() :]
        if self._text in self._mark_prefixes and not self._is_ended:
            # It may become a longer mark.
            return False
        if self._is_constrained and self._has_content and mark not in self._fillers:
            self._add_content(mark)
            self._text = self._text[len(mark) :]
        elif self._reasoning_marks is not None and mark == self._reasoning_marks.start:
            self._text = self._text[len(mark) :]
            if self._has_content or self._reasoning_format is not ReasoningFormat.SEPARATE:
                self._flush_space()
            if self._reasoning_format is not ReasoningFormat.SEPARATE:
                self._parts.append(Content(mark))
            self._is_thinking, self._is_fresh, self._space = True, True, []
        elif mark in self._triggers and self._may_call():
            self._begin()
        elif mark in self._fillers:
            self._text = self._text[len(mark) :]
        else:
            self._add_content(mark)
            self._text = self._text[len(mark) :]
        return True

    def _skip_opening_mark(self) -> bool:
        """Drops a mark at the beginning of the answer. Returns False if more text is needed to detect it."""
        mark = self._empty_reasoning_end or self._content_start
        self._hold_space()
        if self._text != mark and mark.startswith(self._text) and not self._is_ended:
            return False
        if is_present := self._text.startswith(mark):
            self._text, self._space = self._text.removeprefix(mark), []
        else:
            self._restore_space()
        if self._empty_reasoning_end:
            self._empty_reasoning_end, self._is_fresh = "", is_present
        else:
            self._content_start = ""
            # The text after the mark is content, even if it looks like a call.
            self._has_content |= is_present
        return True

    def _hold_space(self) -> None:
        """Moves leading space from the text to `_space`, so that it is scanned once."""
        stripped = self._text.lstrip()
        if space := self._text[: len(self._text) - len(stripped)]:
            self._space.append(space)
        self._text = stripped

    def _restore_space(self) -> None:
        """Moves the space back: a mark may begin with it."""
        self._text, self._space = "".join([*self._space, self._text]), []

    def _flush_space(self) -> None:
        """Appends the held-back space to the content, because another part follows."""
        if self._space:
            self._parts.append(Content("".join(self._space)))
            self._space = []

    def _n_incomplete(self) -> int:
        """Returns the length of an incomplete mark at the end of the text."""
        for n in range(min(self._longest - 1, len(self._text)), 0, -1):
            if self._text[-n:] in self._mark_prefixes:
                return n
        return 0

    def _may_call(self) -> bool:
        return self._notes is not None or self._may_call_tools()

    def _may_call_tools(self) -> bool:
        return bool(self._tools) and (self._is_parallel or self._n_calls == 0)

    def _may_open(self) -> bool:
        """Returns True if the text begins a block, or more text could make it begin one."""
        self._hold_space()
        incomplete = () if self._is_ended else (opening for opening in self._openings if opening.startswith(self._text))
        if self._may_call() and (self._text.startswith(self._openings) or any(incomplete)):
            return True
        self._restore_space()
        return False

    def _begin_at_opening(self) -> bool:
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

    def _process_call(self) -> bool:
        """Continues a block of calls. Returns False if more text is needed."""
        source, reading = self._source, self._reading
        assert source is not None
        assert reading is not None
        try:
            next(reading)
            is_read = None
        except StopIteration as end:
            is_read = bool(end.value)
        self._take(source)
        if is_read is None and not (source.is_full and not source.has_committed):
            return False
        self._source = self._reading = None
        if source.has_committed or is_read:
            if self._calls_within_reasoning:
                self._calls_within_reasoning, self._is_thinking, self._is_fresh, self._space = False, False, True, []
            if not self._has_content:
                self._is_fresh, self._space = True, []
            if source.has_unparsed_call:
                self._warn(source.text)
            self._text = "" if self._is_truncated else source.text[source.at :]
            if not is_read and self._text:
                self._warn(self._text)
            return True
        # At least the first character is content. The text after it may contain a mark.
        n_content = self._n_content(source)
        self._text = source.text[n_content:]
        if self._calls_within_reasoning:
            self._calls_within_reasoning = False
            self._add_reasoning(source.text[:n_content])
            return True
        if source.text.startswith(self._triggers):
            self._warn(source.text)
        self._add_content(source.text[:n_content])
        self._has_content = True
        return True

    def _take(self, source: Source) -> None:
        """Takes the committed parts. A call ends the reasoning within which it began."""
        if parts := source.take_parts():
            self._space, self._is_fresh, self._is_thinking = [], True, False
            self._parts += parts
            self._n_calls, self._n_complete = 1 + max(getattr(part, "call", -1) for part in parts), source.n_complete

    def _n_content(self, source: Source) -> int:
        """Returns how many characters of a rejected block are content without rescanning; at least one."""
        if self._trigger is None:
            return 1
        end = max(source.at, source.farthest)
        found = [match.start() for match in self._trigger.finditer(source.text, 1, end)]
        again = [start for start in found if start >= end - MAX_RESCANNED][-MAX_TRIES:]
        if len(again) == len(found):
            return 1
        return again[0] if again else max(1, end - self._longest)

    def _warn(self, text: str) -> None:
        self._on_unparsed_call()
        if self._has_warned:
            return
        # Once per branch, because a model may repeat a mark.
        self._has_warned = True
        assert self._family is not None
        logger.warning(
            "the text looks like a tool call in the format of %s, but cannot be parsed; it becomes content", self._family.name
        )
        logger.debug("the text begins with %s", excerpt(text[:MAX_LOGGED]))


def _merged(parts: list[Part]) -> list[Part]:
    """Merges adjacent parts of the same kind."""
    if len(parts) == 1 and not isinstance(parts[0], Content):
        return parts
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, Content) and not part.text:
            continue
        last = merged[-1] if merged else None
        if isinstance(part, Content) and isinstance(last, Content):
            merged[-1] = Content(last.text + part.text)
        elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
            merged[-1] = Reasoning(last.text + part.text)
        elif isinstance(part, CallArguments) and isinstance(last, CallArguments) and part.call == last.call:
            merged[-1] = CallArguments(part.call, last.text + part.text)
        else:
            merged.append(part)
    return merged


def _end_of_none(reasoning_marks: ReasoningMarks | None) -> str:
    """Returns the end mark of reasoning, or an empty text if the start mark begins with it."""
    return "" if reasoning_marks is None or reasoning_marks.start.startswith(reasoning_marks.end) else reasoning_marks.end
