"""How the answers of one chat are to be read, and what holds them to it."""

from collections.abc import Callable, Mapping, Sequence

from weft.chat.answer.family import Family, ThoughtMarks
from weft.chat.answer.gbnf import Rules
from weft.chat.answer.reader import FamilyReader
from weft.chat.answer.tools import ToolUse

__all__ = ["FamilyForm", "thought_of"]

_THOUGHTS = (
    ThoughtMarks("<|channel|>analysis<|message|>", "<|end|>"),
    ThoughtMarks("<|START_THINKING|>", "<|END_THINKING|>"),
    ThoughtMarks("<seed:think>", "</seed:think>"),
    ThoughtMarks("[THINK]", "[/THINK]"),
    ThoughtMarks("◁think▷", "◁/think▷"),
    ThoughtMarks("<think>", "</think>"),
    ThoughtMarks("<thought>", "</thought>"),
)


def thought_of(template: str) -> ThoughtMarks | None:
    """What stands around the thoughts of a model, by the marks that stand in its template; None where it has none."""
    if "<|channel|>" in template:
        return _THOUGHTS[0]
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
        unread: Callable[[], None] = lambda: None,
    ) -> None:
        """Answers as a family writes them.

        Args:
            family: How calls are written, and what is format; None where neither is looked for.
            thought: What stands around thoughts; None where they are not told apart.
            use: The tools that may be called; None where calls are not looked for.
            is_thinking: Whether an answer begins within a thought.
            unread: Called where something looked like a call, and was none.
        """
        self.family = family
        self.thought = thought
        self.use = use
        self.is_thinking = is_thinking
        self._unread = unread
        tools = () if use is None else use.tools
        self._tools = sorted(tools, key=lambda tool: len(tool.name), reverse=True)

    def reader(self) -> FamilyReader:
        """A reader of one branch."""
        return FamilyReader(
            self.family,
            self.thought,
            self._tools,
            is_thinking=self.is_thinking,
            is_parallel=self.use is None or self.use.is_parallel,
            unread=self._unread,
        )

    def grammar(self, control_tokens: Mapping[str, int], *, instead: str | None = None) -> str:
        """The grammar in GBNF of an answer that calls tools and says nothing else, as it is behind a thought.

        Args:
            control_tokens: The id of each control token by its spelling.
            instead: A JSON schema; an answer may be what fits it in place of calls.

        Raises:
            InvalidRequest: a schema is none, or one that cannot be held to.
        """
        assert self.use is not None
        assert self.family is not None
        rules = Rules(self.use.tools, control_tokens, is_parallel=self.use.is_parallel)
        block = rules.add("block", self.family.calls.write(rules))
        between = rules.literal(self.family.between)
        blocks = f"{block} ({between} {block})*" if self.use.is_parallel else block
        lead = f"({rules.literal(self.family.lead)})? " if self.family.lead else ""
        space = rules.add("lead-space", "[ \\n]{0,2}")
        return rules.text(f"{space} {lead}{blocks}")

    @property
    def triggers(self) -> Sequence[str]:
        """What calls begin with."""
        return () if self.family is None else (*self.family.triggers, *self.family.openings)
