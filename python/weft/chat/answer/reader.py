"""Incremental parser of an answer: reasoning, content and tool calls."""

import logging
from enum import Enum
from typing import TYPE_CHECKING

from weft.chat.answer.call_format import ReasoningMarks
from weft.chat.answer.grammar import Either
from weft.chat.answer.parts import AnswerReader, CallArguments, Content, Part, Reasoning
from weft.chat.answer.source import Reading, Source, n_partial_mark
from weft.fields.excerpt import excerpt

if TYPE_CHECKING:
    from weft.chat.answer.form import ChatForm

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


class ChatReader(AnswerReader):
    """Parses one branch. Each character is scanned a bounded number of times, and is returned in a part unless it is format."""

    def __init__(self, form: "ChatForm") -> None:
        """Creates a reader at the beginning of an answer."""
        self._form, self._marks, self._call_format = form, form.marks, form.call_format
        reasoning_marks = form.reasoning_marks
        self._is_thinking = form.is_thinking and reasoning_marks is not None
        self._is_separate = form.reasoning_format is ReasoningFormat.SEPARATE
        self._content_start = form.call_format.content_start
        """Optional mark before the content; empty once the answer is past its beginning."""
        # An answer that begins with the end mark of reasoning has none. Empty once the answer is past its beginning.
        is_plain_start = self._is_separate and not (form.is_thinking or form.is_constrained)
        self._empty_reasoning_end = _end_of_none(reasoning_marks) if is_plain_start else ""
        begins_in_words = self._is_thinking and reasoning_marks is not None and reasoning_marks.start_is_text
        self._text = f"{reasoning_marks.start}\n" if reasoning_marks is not None and begins_in_words else ""
        """Unprocessed text."""
        self._space: list[str] = []
        """Space at the end of the content so far, in pieces. It is returned only if more content follows."""
        self._is_fresh = self._is_thinking and not form.continues_reasoning
        """True if leading space of the next text is dropped, because reasoning or a call has just ended, or begun."""
        self._has_content = False
        self._n_calls = self._n_complete = 0
        self._ids = set(form.earlier)
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
        self._reasoning_opening = "" if self._is_separate else form.reasoning_opening
        """Text to prepend to the content, if reasoning that the prompt has begun contains any text or is closed."""
        self._parts: list[Part] = []

    @property
    def is_cut(self) -> bool:
        """True if the last call is incomplete."""
        return self._n_calls > self._n_complete

    def read(self, text: str) -> list[Part]:
        """Parses the next piece of the text."""
        if self._is_plain and text and self._marks.not_plain(text) is None:
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
            return list(self._marks.reasoning_ends)
        start = self._marks.reasoning_start or ""
        first = () if self._has_content else (self._empty_reasoning_end, self._content_start, *self._marks.openings)
        return [mark for mark in (*self._marks.triggers, *self._call_format.fillers, start, *first) if mark]

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
        assert self._marks.any_reasoning_end is not None
        reasoning_end = self._marks.reasoning_ends[0]
        if (match := self._marks.any_reasoning_end.search(self._text)) is not None:
            self._add_reasoning(self._text[: match.start()])
            is_implicit = match.group() != reasoning_end
            if match.group() in self._marks.triggers and self._may_call():
                self._text = self._text[match.start() :]
                self._calls_within_reasoning = True
                self._begin()
                return True
            self._text = self._text[match.start() if is_implicit else match.end() :]
            self._is_thinking, self._is_fresh, self._space = False, True, []
            if not self._is_separate:
                self._is_fresh = False
                self._parts.append(Content("" if is_implicit else f"{self._reasoning_opening}{reasoning_end}"))
                self._reasoning_opening = ""
            return True
        n_kept = 0 if self._is_ended else n_partial_mark(self._text, *self._marks.reasoning_ends)
        stop = len(self._text) - n_kept
        self._add_reasoning(self._text[:stop])
        self._text = self._text[stop:]
        return False

    def _add_reasoning(self, text: str) -> None:
        if text and not self._is_separate:
            self._parts.append(Content(f"{self._reasoning_opening}{text}"))
            self._reasoning_opening = ""
        if self._form.reasoning_format is not ReasoningFormat.IN_CONTENT and (trimmed := self._without_outer_space(text)):
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
        if self._marks.openings and not self._has_content and self._may_open():
            if is_begun := self._text.startswith(self._marks.openings):
                self._begin()
            return is_begun
        if self._marks.any is None or self._marks.not_plain(self._text) is None:
            self._add_content(self._text)
            self._text = ""
            return False
        if (match := self._marks.any.search(self._text)) is None:
            stop = len(self._text) - (0 if self._is_ended else self._marks.n_incomplete(self._text))
            self._add_content(self._text[:stop])
            self._text = self._text[stop:]
            return False
        mark = match.group()
        self._add_content(self._text[: match.start()])
        self._text = self._text[match.start() :]
        if self._text in self._marks.prefixes and not self._is_ended:
            # It may become a longer mark.
            return False
        is_filler = mark in self._call_format.fillers
        is_content = self._form.is_constrained and self._has_content and not is_filler
        begins_reasoning = mark == self._marks.reasoning_start and not is_content
        if mark in self._marks.triggers and not (is_content or begins_reasoning) and self._may_call():
            self._begin()
            return True
        self._text = self._text[len(mark) :]
        if begins_reasoning:
            if self._has_content or not self._is_separate:
                self._flush_space()
            if not self._is_separate:
                self._parts.append(Content(mark))
            self._is_thinking, self._is_fresh, self._space = True, True, []
        elif not is_filler:
            self._add_content(mark)
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

    def _may_call(self) -> bool:
        return self._call_format.notes is not None or self._may_call_tools()

    def _may_call_tools(self) -> bool:
        return bool(self._form.tools) and (self._form.use.is_parallel or self._n_calls == 0)

    def _may_open(self) -> bool:
        """Returns True if the text begins a block, or more text could make it begin one."""
        self._hold_space()
        incomplete = () if self._is_ended else (opening for opening in self._marks.openings if opening.startswith(self._text))
        if self._may_call() and (self._text.startswith(self._marks.openings) or any(incomplete)):
            return True
        self._restore_space()
        return False

    def _begin(self) -> None:
        self._source = Source(
            self._form.tools,
            self._n_calls,
            self._call_format.make_id,
            self._ids,
            n_earlier=len(self._form.earlier),
            is_parallel=self._form.use.is_parallel,
        )
        self._source.text, self._text = self._text, ""
        self._source.is_ended, self._source.is_truncated = self._is_ended, self._is_truncated
        block = self._call_format.calls
        if self._call_format.notes is not None:
            block = Either(block, self._call_format.notes) if self._may_call_tools() else self._call_format.notes
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
        if source.text.startswith(self._marks.triggers):
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
        if self._marks.any_trigger is None:
            return 1
        end = max(source.at, source.farthest)
        found = [match.start() for match in self._marks.any_trigger.finditer(source.text, 1, end)]
        again = [start for start in found if start >= end - MAX_RESCANNED][-MAX_TRIES:]
        if len(again) == len(found):
            return 1
        return again[0] if again else max(1, end - self._marks.n_longest)

    def _warn(self, text: str) -> None:
        self._form.on_unparsed_call()
        if self._has_warned:
            return
        # Once per branch, because a model may repeat a mark.
        self._has_warned = True
        logger.warning(
            "the text looks like a tool call in the format of %s, but cannot be parsed; it becomes content",
            self._call_format.name,
        )
        logger.debug("the text begins with %s", excerpt(text[:MAX_LOGGED]))


def _merged(parts: list[Part]) -> list[Part]:
    """Merges adjacent parts of the same kind, and drops empty content."""
    merged: list[Part] = []
    for part in parts:
        match merged[-1] if merged else None, part:
            case _, Content(""):
                pass
            case Content(before), Content(text):
                merged[-1] = Content(before + text)
            case Reasoning(before), Reasoning(text):
                merged[-1] = Reasoning(before + text)
            case CallArguments(call, before), CallArguments(same, text) if call == same:
                merged[-1] = CallArguments(call, before + text)
            case _:
                merged.append(part)
    return merged


def _end_of_none(reasoning_marks: ReasoningMarks | None) -> str:
    """Returns the end mark of reasoning, or an empty text if the start mark begins with it."""
    return "" if reasoning_marks is None or reasoning_marks.start.startswith(reasoning_marks.end) else reasoning_marks.end
