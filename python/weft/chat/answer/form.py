"""How to parse the answers of one chat, and the grammar that constrains them."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Self

import msgspec

from weft.chat.answer.call_format import CallFormat, ReasoningMarks
from weft.chat.answer.gbnf import Rules
from weft.chat.answer.marks import AnswerMarks
from weft.chat.answer.parts import AnswerForm
from weft.chat.answer.reader import ChatReader, ReasoningFormat
from weft.chat.answer.tools import NO_TOOLS, Tool, ToolUse

_HARMONY_ANALYSIS = ReasoningMarks("<|channel|>analysis<|message|>", "<|end|>")
"""Not in `_REASONING_MARKS`: its end also closes other messages, and occurs in templates of many models that do not reason."""

_REASONING_MARKS = (
    ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningMarks("<seed:think>", "</seed:think>"),
    ReasoningMarks("[THINK]", "[/THINK]"),
    ReasoningMarks("<|channel>thought", "<channel|>"),
    ReasoningMarks("<|inner_prefix|>", "<|inner_suffix|>"),
    ReasoningMarks("◁think▷", "◁/think▷"),
    ReasoningMarks("<think>", "</think>"),
    ReasoningMarks("<thought>", "</thought>"),
)


def reasoning_marks_of(template: str) -> ReasoningMarks | None:
    """Returns the marks around reasoning that occur in a template, or None."""
    if "<|channel|>" in template:
        return _HARMONY_ANALYSIS
    return next((marks for marks in _REASONING_MARKS if marks.end in template), None)


class ChatForm(msgspec.Struct, AnswerForm, frozen=True, dict=True):
    """How to parse the answers of one chat, and the grammar of the calls in them."""

    call_format: CallFormat
    """Format of calls and content; `NO_CALLS` to parse only reasoning."""
    reasoning_marks: ReasoningMarks | None = None
    """Marks around reasoning; None if it is not separated."""
    use: ToolUse = NO_TOOLS
    """The tools that may be called; without tools, calls are not parsed."""
    is_thinking: bool = False
    """True if an answer begins within reasoning."""
    reasoning_opening: str = ""
    """The text with which the prompt begins that reasoning. It is prepended to content that includes it."""
    continues_reasoning: bool = False
    """True if the prompt contains a part of that reasoning, so that leading space is significant."""
    reasoning_format: ReasoningFormat = ReasoningFormat.SEPARATE
    """Where reasoning is returned."""
    earlier: Sequence[str] = ()
    """Ids of all earlier calls in the chat."""
    on_unparsed_call: Callable[[], None] = lambda: None
    """Called when text that looks like a call cannot be parsed."""
    is_constrained: bool = False
    """True if a grammar excludes reasoning and calls after content."""

    def reader(self) -> ChatReader:
        """Returns a new reader for one branch."""
        return ChatReader(self)

    def constrained(self) -> Self:
        """Returns the form for answers that a grammar constrains after the first reasoning, which only its end mark ends."""
        return msgspec.structs.replace(self, is_constrained=True)

    @property
    def implicit_ends(self) -> tuple[str, ...]:
        """Marks that also end reasoning, but are not part of it."""
        if self.reasoning_marks is None or self.is_constrained:
            return ()
        marks = self.call_format.ends_reasoning
        return tuple(mark for mark in marks if self.use.tools or mark not in self.call_format.triggers)

    @cached_property
    def tools(self) -> Sequence[Tool]:
        """The tools that may be called, the longest name first."""
        return sorted(self.use.tools, key=lambda tool: len(tool.name), reverse=True)

    @cached_property
    def marks(self) -> AnswerMarks:
        """The marks that readers look for."""
        return AnswerMarks(self.call_format, self.reasoning_marks, self.implicit_ends, self.tools)

    @property
    def preserved_marks(self) -> Sequence[str]:
        """Texts that the parser must see in an answer, even if they are control tokens."""
        starts = () if self.reasoning_marks is None else (self.reasoning_marks.start, self.reasoning_marks.end)
        call_format = self.call_format
        return (*starts, *self.implicit_ends, *call_format.fillers, *call_format.triggers, *call_format.stop_strings)

    def write(self, rules: Rules) -> str:
        """Returns the GBNF expression for an answer that consists of calls, after any reasoning.

        Raises:
            InvalidRequestError: A schema is invalid, or cannot be enforced.
        """
        call_format = self.call_format
        block, between = rules.add("block", call_format.calls.write(rules)), call_format.between
        blocks = f"{block} ({rules.loosely(between)} {block})*" if self.use.is_parallel else block
        # Models that begin each block with a new line may also end the last one with it.
        line_end = rules.loosely(between) if between.isspace() else ""
        ends = f"({' | '.join(map(rules.literal, call_format.stop_strings))})?" if call_format.stop_strings else ""
        return " ".join(filter(None, (blocks, line_end, ends)))
