"""How the answers of one chat are to be read, and what holds them to it."""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Self

import msgspec

from weft.chat.answer.family import Family, ThoughtMarks
from weft.chat.answer.gbnf import Rules
from weft.chat.answer.parts import AnswerReader
from weft.chat.answer.reader import FamilyReader, ReasoningFormat
from weft.chat.answer.tools import ToolUse

__all__ = ["FamilyForm", "thought_of"]

_HARMONY_ANALYSIS = ThoughtMarks("<|channel|>analysis<|message|>", "<|end|>")
"""Its end closes other messages, too, and stands in the templates of many models that do not reason."""

_THOUGHTS = (
    ThoughtMarks("<|START_THINKING|>", "<|END_THINKING|>"),
    ThoughtMarks("<seed:think>", "</seed:think>"),
    ThoughtMarks("[THINK]", "[/THINK]"),
    ThoughtMarks("<|channel>thought", "<channel|>"),
    ThoughtMarks("<|inner_prefix|>", "<|inner_suffix|>"),
    ThoughtMarks("◁think▷", "◁/think▷"),
    ThoughtMarks("<think>", "</think>"),
    ThoughtMarks("<thought>", "</thought>"),
)


_TOOL = "{tool}"
"""Stands in a trigger for the name of any tool."""


def thought_of(template: str) -> ThoughtMarks | None:
    """What stands around the thoughts of a model, by the marks that stand in its template; None where it has none."""
    if "<|channel|>" in template:
        return _HARMONY_ANALYSIS
    return next((marks for marks in _THOUGHTS if marks.end in template), None)


class FamilyForm:
    """Answers of a family."""

    def __init__(
        self,
        family: Family | None,
        thought: ThoughtMarks | None,
        use: ToolUse | None,
        *,
        is_thinking: bool = False,
        thought_opening: str = "",
        continues_thought: bool = False,
        reasoning_format: ReasoningFormat = ReasoningFormat.SEPARATE,
        earlier: Sequence[str] = (),
        unread: Callable[[], None] = lambda: None,
    ) -> None:
        """Answers as a family writes them.

        Args:
            family: How calls are written, and what is format; None where neither is looked for.
            thought: What stands around thoughts; None where they are not told apart.
            use: The tools that may be called; None where calls are not looked for.
            is_thinking: Whether an answer begins within a thought.
            thought_opening: How the prompt begins that thought, which is part of the content where thoughts stay in it.
            continues_thought: Whether the prompt contains the beginning of that thought, so that space at its beginning counts.
            thoughts: Where a thought is told.
            earlier: The ids of all calls that were made in the chat before.
            unread: Called where something looked like a call, and was none.
        """
        self.family = family
        if family is not None and thought is not None:
            marks = tuple(mark for mark in family.ends_thoughts if use is not None or mark not in family.triggers)
            thought = msgspec.structs.replace(thought, ends_before=marks)
        self.thought = thought
        self.use = use
        self.is_thinking = is_thinking
        self._thought_opening = thought_opening
        self._continues_thought = continues_thought
        self._reasoning_format = reasoning_format
        self.is_held = False
        self._earlier = earlier
        self._unread = unread
        tools = () if use is None else use.tools
        self._tools = sorted(tools, key=lambda tool: len(tool.name), reverse=True)
        self._family_of_tools = None if family is None else _with_names(family, use)

    def reader(self) -> AnswerReader:
        """A reader of one branch."""
        return FamilyReader(
            self._family_of_tools,
            self.thought,
            self._tools,
            is_thinking=self.is_thinking,
            thought_opening=self._thought_opening,
            continues_thought=self._continues_thought,
            is_parallel=self.use is None or self.use.is_parallel,
            is_held=self.is_held,
            reasoning_format=self._reasoning_format,
            earlier=self._earlier,
            unread=self._unread,
        )

    def held(self) -> Self:
        """The same where a grammar holds all that follows a first thought, which nothing but its end ends."""
        form = copy(self)
        form.is_held = True
        if self.thought is not None:
            form.thought = msgspec.structs.replace(self.thought, ends_before=())
        return form

    def write(self, rules: Rules) -> str:
        """What an answer is that calls tools and says nothing else, in GBNF, as it is behind a thought.

        Raises:
            InvalidRequest: a schema is none, or one that cannot be held to.
        """
        assert self.use is not None
        assert self.family is not None
        block, between = rules.add("block", self.family.calls.write(rules)), self.family.between
        blocks = f"{block} ({rules.loosely(between)} {block})*" if self.use.is_parallel else block
        # Models that begin a line for each block may end the last one's.
        line_end = rules.loosely(between) if between.isspace() else ""
        ends = f"({' | '.join(map(rules.literal, self.family.ends))})?" if self.family.ends else ""
        return " ".join(filter(None, (blocks, line_end, ends)))

    def marks(self) -> Sequence[str]:
        """Texts that must be seen for an answer to be read."""
        thought = () if self.thought is None else (self.thought.start, self.thought.end, *self.thought.ends_before)
        return (*thought, *(() if self.family is None else (*self.family.fillers, *self.family.triggers, *self.family.ends)))


def _with_names(family: Family, use: ToolUse | None) -> Family:
    """The family with the name of each tool in the triggers that have a place for it."""
    if not any(_TOOL in trigger for trigger in family.triggers):
        return family
    names = [] if use is None else [tool.name for tool in use.tools]
    triggers = [trigger.replace(_TOOL, name) for trigger in family.triggers for name in (names if _TOOL in trigger else ("",))]
    return msgspec.structs.replace(family, triggers=tuple(triggers))
