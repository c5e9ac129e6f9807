"""How to parse the answers of one chat, and the grammar that constrains them."""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Self

import msgspec

from weft.chat.answer.family import Family, ReasoningMarks
from weft.chat.answer.gbnf import Rules
from weft.chat.answer.parts import AnswerReader
from weft.chat.answer.reader import FamilyReader, ReasoningFormat
from weft.chat.answer.tools import ToolUse

__all__ = ["FamilyForm", "reasoning_marks_of"]

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


_TOOL_PLACEHOLDER = "{tool}"
"""Placeholder in a trigger for the name of a tool."""


def reasoning_marks_of(template: str) -> ReasoningMarks | None:
    """Returns the marks around reasoning that occur in a template, or None."""
    if "<|channel|>" in template:
        return _HARMONY_ANALYSIS
    return next((marks for marks in _REASONING_MARKS if marks.end in template), None)


class FamilyForm:
    """Answers in the format of a family."""

    def __init__(
        self,
        family: Family | None,
        reasoning_marks: ReasoningMarks | None,
        use: ToolUse | None,
        *,
        is_thinking: bool = False,
        reasoning_opening: str = "",
        continues_reasoning: bool = False,
        reasoning_format: ReasoningFormat = ReasoningFormat.SEPARATE,
        earlier: Sequence[str] = (),
        on_unparsed_call: Callable[[], None] = lambda: None,
    ) -> None:
        """Describes the answers of a chat.

        Args:
            family: Format of calls and content; None to parse only reasoning.
            reasoning_marks: Marks around reasoning; None if it is not separated.
            use: The tools that may be called; None if calls are not parsed.
            is_thinking: True if an answer begins within reasoning.
            reasoning_opening: The text with which the prompt begins that reasoning. It is prepended to content that includes it.
            continues_reasoning: True if the prompt contains a part of that reasoning, so that leading space is significant.
            reasoning_format: Where reasoning is returned.
            earlier: Ids of all earlier calls in the chat.
            on_unparsed_call: Called when text that looks like a call cannot be parsed.
        """
        self.family = family
        if family is not None and reasoning_marks is not None:
            marks = tuple(mark for mark in family.ends_reasoning if use is not None or mark not in family.triggers)
            reasoning_marks = msgspec.structs.replace(reasoning_marks, implicit_ends=marks)
        self.reasoning_marks = reasoning_marks
        self.use = use
        self.is_thinking = is_thinking
        self._reasoning_opening = reasoning_opening
        self._continues_reasoning = continues_reasoning
        self._reasoning_format = reasoning_format
        self.is_constrained = False
        self._earlier = earlier
        self._on_unparsed_call = on_unparsed_call
        tools = () if use is None else use.tools
        self._tools = sorted(tools, key=lambda tool: len(tool.name), reverse=True)
        self._family_of_tools = None if family is None else _with_tool_names(family, use)

    def reader(self) -> AnswerReader:
        """Returns a new reader for one branch."""
        return FamilyReader(
            self._family_of_tools,
            self.reasoning_marks,
            self._tools,
            is_thinking=self.is_thinking,
            reasoning_opening=self._reasoning_opening,
            continues_reasoning=self._continues_reasoning,
            is_parallel=self.use is None or self.use.is_parallel,
            is_constrained=self.is_constrained,
            reasoning_format=self._reasoning_format,
            earlier=self._earlier,
            on_unparsed_call=self._on_unparsed_call,
        )

    def constrained(self) -> Self:
        """Returns the form for answers that a grammar constrains after the first reasoning, which only its end mark ends."""
        form = copy(self)
        form.is_constrained = True
        if self.reasoning_marks is not None:
            form.reasoning_marks = msgspec.structs.replace(self.reasoning_marks, implicit_ends=())
        return form

    def write(self, rules: Rules) -> str:
        """Returns the GBNF expression for an answer that consists of calls, after any reasoning.

        Raises:
            InvalidRequestError: A schema is invalid, or cannot be enforced.
        """
        assert self.use is not None
        assert self.family is not None
        block, between = rules.add("block", self.family.calls.write(rules)), self.family.between
        blocks = f"{block} ({rules.loosely(between)} {block})*" if self.use.is_parallel else block
        # Models that begin each block with a new line may also end the last one with it.
        line_end = rules.loosely(between) if between.isspace() else ""
        ends = f"({' | '.join(map(rules.literal, self.family.stop_strings))})?" if self.family.stop_strings else ""
        return " ".join(filter(None, (blocks, line_end, ends)))

    def marks(self) -> Sequence[str]:
        """Returns the texts that the parser must see in an answer, even if they are control tokens."""
        reasoning_marks = (
            ()
            if self.reasoning_marks is None
            else (self.reasoning_marks.start, self.reasoning_marks.end, *self.reasoning_marks.implicit_ends)
        )
        return (
            *reasoning_marks,
            *(() if self.family is None else (*self.family.fillers, *self.family.triggers, *self.family.stop_strings)),
        )


def _with_tool_names(family: Family, use: ToolUse | None) -> Family:
    """Returns the family with the names of the tools in its triggers."""
    if not any(_TOOL_PLACEHOLDER in trigger for trigger in family.triggers):
        return family
    names = [] if use is None else [tool.name for tool in use.tools]
    triggers = [
        trigger.replace(_TOOL_PLACEHOLDER, name)
        for trigger in family.triggers
        for name in (names if _TOOL_PLACEHOLDER in trigger else ("",))
    ]
    return msgspec.structs.replace(family, triggers=tuple(triggers))
