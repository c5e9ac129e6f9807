"""What holds an answer to the form in which it is read."""

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from weft.chat.answer.form import FamilyForm
from weft.chat.answer.tools import ToolUse
from weft.chat.known_calls import KnownCalls, write
from weft.errors import InvalidRequest
from weft.request import Request
from weft.request.schema import schema_text
from weft.request.thought import GrammarTrigger, Thought

__all__ = ["OutputConstraint"]

_NONE = ToolUse(())

MAX_LETTERS = 24
"""Characters of a tool's name that begin a call; the names of many tools would be more than may be looked for at once."""


class OutputConstraint:
    """Holds the answers of one chat to the calls that they may make, and tells the engine of their thoughts."""

    def __init__(
        self,
        form: FamilyForm,
        control_tokens: Mapping[str, int],
        budget: int | None,
        *,
        may_think: bool = True,
        known: KnownCalls | None = None,
    ) -> None:
        """Writes the grammar of the calls.

        Args:
            form: How the answers are read.
            control_tokens: The id of each control token by its spelling.
            budget: Most tokens of a thought, below 0 any number; None leaves it to the server.
            may_think: Whether the model may begin a thought before what a grammar or a schema holds.
            known: The calls that other chats could make; None writes these anew.

        Raises:
            InvalidRequest: the schema of a tool is none, or cannot be held to.
        """
        self._form = form
        self._budget = budget
        self._may_think = may_think
        self._use = form.use or _NONE
        self._rules, self._calls = (write if known is None else known.write)(form, control_tokens)
        marks = form.marks()
        held = "\n".join(marks)
        named = [spelling for spelling in control_tokens if spelling in self._rules.named or spelling in held]
        self._preserved = list(dict.fromkeys((*named, *marks)))

    @property
    def has_tools(self) -> bool:
        """Whether tools may be called."""
        return self._calls is not None

    @property
    def ends(self) -> Sequence[str]:
        """What ends a thought."""
        marks = self._form.thought
        return () if marks is None else (marks.end, *marks.ends_before)

    def request(self, request: Request, *, budget: int | None = None, message: str = "") -> Request:
        """A request whose answers are held to it.

        Args:
            request: What is asked for besides.
            budget: Most tokens of a thought where the chat does not say; None is any number.
            message: What is said before the end of a thought whose budget is used up.

        Raises:
            InvalidRequest: the request holds them to something else already.
        """
        request = self._constrained(request)
        preserved = [*request.preserved_tokens, *self._preserved]
        request = msgspec.structs.replace(request, preserved_tokens=preserved, stop=[*request.stop, *self._ends()])
        most = budget if self._budget is None else self._budget if self._budget >= 0 else None
        marks = self._form.thought
        is_held = request.grammar is not None or request.json_schema is not None
        if is_held and not (request.grammar_lazy or self._may_think or self._form.is_thinking):
            return request
        if marks is None or request.thought is not None or not (is_held or most is not None):
            return request
        thought = Thought(
            starts=(marks.start,),
            # Where the grammar follows the thought, it has its beginning still before it.
            ends=(marks.end, *(marks.ends_before if request.grammar_lazy else ())),
            begins_inside=self._form.is_thinking,
            budget=most,
            message=message,
        )
        return msgspec.structs.replace(request, thought=thought)

    def _constrained(self, request: Request) -> Request:
        """The same with the grammar of the calls, or of the whole answer where it has marks around what is said."""
        family = self._form.family
        if self._calls is None:
            if family is None or not (family.before or family.behind) or request.json_schema is None:
                return request
            return self._with_grammar(request, self._said(request))
        if request.grammar:
            raise InvalidRequest(
                "grammar", "grammar cannot stand beside tools, which have a grammar of their own; give one of them"
            )
        if self._use.is_required:
            return self._with_grammar(request, self._calls)
        if request.json_schema is not None:
            return self._with_grammar(request, f"{self._calls} | {self._said(request)}")
        triggers = tuple(self._triggers())
        grammar = self._rules.text(self._calls)
        return msgspec.structs.replace(request, grammar=grammar, grammar_lazy=True, grammar_triggers=triggers)

    def _with_grammar(self, request: Request, root: str) -> Request:
        family = self._form.family
        lead = f"({self._rules.literal(family.lead)})? " if family is not None and family.lead else ""
        # What follows a thought stands in a line of its own.
        space = self._rules.add("lead-space", "[ \\n]{0,2}")
        return msgspec.structs.replace(request, grammar=self._rules.text(f"{space} {lead}({root})"), json_schema=None)

    def _said(self, request: Request) -> str:
        """What is said to the user and fits the schema that the request has."""
        family, schema = self._form.family, request.json_schema
        assert schema is not None, "only asked where there is one"
        said = self._rules.schema_text("said", schema_text(schema))
        before, behind = ("", "") if family is None else (family.before, family.behind)
        return " ".join(filter(None, (self._rules.literal(before), said, self._rules.literal(behind))))

    def _ends(self) -> Sequence[str]:
        """What ends an answer besides."""
        family = self._form.family
        return () if family is None or self._calls is None else family.ends

    def _triggers(self) -> Iterator[GrammarTrigger]:
        """Where the grammar of the calls begins in an answer that may say something else."""
        family = self._form.family
        assert family is not None, "what calls is of a family"
        if not family.patterns:
            yield from (GrammarTrigger("word", trigger) for trigger in family.triggers)
        names = "|".join(sorted({_beginning(tool.name) for tool in self._use.tools}))
        begins = "^" if self._form.thought is None else f"(?:^|{re.escape(self._form.thought.end)})"
        nothing = "|".join((r"\s", *map(re.escape, family.fillers)))
        for pattern in family.patterns:
            yield GrammarTrigger("pattern", pattern.replace("BEGIN", f"{begins}(?:{nothing})*").replace("NAMES", f"(?:{names})"))


def _beginning(name: str) -> str:
    """What matches a name, and of a long one others that begin as it does: the grammar tells them apart."""
    return re.escape(name[:MAX_LETTERS]) + (r"[\w./:-]*" if len(name) > MAX_LETTERS else "")
