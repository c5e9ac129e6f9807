"""Constrains the answers of a chat to the format that is parsed: grammar of calls, schemas, stop strings, reasoning budget."""

import re
from collections.abc import Iterator, Mapping

import msgspec

from weft.chat.answer.form import ChatForm
from weft.chat.call_grammar_cache import CallGrammarCache, write_rules
from weft.errors import InvalidRequestError
from weft.request import Request
from weft.request.reasoning import GrammarTrigger, ReasoningConfig
from weft.request.schema import schema_text

MAX_NAME_PREFIX = 24
"""Maximum characters of a tool's name in a trigger pattern. It bounds the size of a pattern that contains many names."""


class OutputConstraint:
    """Constrains the answers of one chat to valid tool calls, and configures the engine's handling of reasoning."""

    def __init__(
        self,
        form: ChatForm,
        control_tokens: Mapping[str, int],
        budget: int | None,
        *,
        message: str = "",
        may_reason: bool = True,
        cache: CallGrammarCache | None = None,
    ) -> None:
        """Writes the grammar of the calls.

        Args:
            form: How the answers are parsed.
            control_tokens: The id of each control token by its spelling.
            budget: Maximum tokens of the reasoning; None or negative for no limit.
            message: Text to insert before the end of reasoning that has used up its budget.
            may_reason: Whether the model may reason before text that a grammar or a schema constrains.
            cache: Cache of grammars of earlier chats; None always writes the grammar.

        Raises:
            InvalidRequestError: The schema of a tool is invalid, or cannot be enforced.
        """
        self._form = form
        self._budget = None if budget is None or budget < 0 else budget
        self._message = message
        self._may_reason = may_reason
        self._rules, self._calls = (write_rules if cache is None else cache.rules)(form, control_tokens)
        markers = form.preserved_marks
        text = "\n".join(markers)
        named = [spelling for spelling in control_tokens if spelling in self._rules.named or spelling in text]
        self._preserved = list(dict.fromkeys((*named, *markers)))

    @property
    def has_tools(self) -> bool:
        """True if the answers may call tools."""
        return self._calls is not None

    def apply(self, request: Request) -> Request:
        """Returns the request with the constraint.

        Raises:
            InvalidRequestError: The request has a grammar, and tools may be called.
        """
        request = self._constrained(request)
        preserved = [*request.preserved_tokens, *self._preserved]
        stop = [*request.stop, *(() if self._calls is None else self._form.call_format.stop_strings)]
        request = msgspec.structs.replace(request, preserved_tokens=preserved, stop=stop)
        marks = self._form.reasoning_marks
        is_constrained = request.grammar is not None or request.json_schema is not None
        if is_constrained and not (request.grammar_lazy or self._may_reason or self._form.is_thinking):
            return request
        if marks is None or request.reasoning is not None or not (is_constrained or self._budget is not None):
            return request
        reasoning = ReasoningConfig(
            starts=(marks.start,),
            # A grammar that applies after the reasoning must still match the text that ends it.
            ends=(marks.end, *(self._form.implicit_ends if request.grammar_lazy else ())),
            begins_inside=self._form.is_thinking,
            budget=self._budget,
            message=self._message,
        )
        return msgspec.structs.replace(request, reasoning=reasoning)

    def _constrained(self, request: Request) -> Request:
        """Adds the grammar of the calls, or of the whole answer if the format puts markers around content."""
        call_format = self._form.call_format
        if self._calls is None:
            if not (call_format.content_start or call_format.content_end) or request.json_schema is None:
                return request
            return self._with_grammar(request, self._content_rule(request))
        if request.grammar:
            message = "grammar cannot be combined with tools, which have their own grammar; give one of them"
            raise InvalidRequestError("grammar", message)
        if self._form.use.is_required:
            return self._with_grammar(request, self._calls)
        if request.json_schema is not None:
            return self._with_grammar(request, f"{self._calls} | {self._content_rule(request)}")
        triggers = tuple(self._triggers())
        grammar = self._rules.text(self._calls)
        return msgspec.structs.replace(request, grammar=grammar, grammar_lazy=True, grammar_triggers=triggers)

    def _with_grammar(self, request: Request, root: str) -> Request:
        lead = self._form.call_format.lead
        optional_lead = f"({self._rules.literal(lead)})? " if lead else ""
        # After reasoning, models begin a new line.
        space = self._rules.add("lead-space", "[ \\n]{0,2}")
        return msgspec.structs.replace(request, grammar=self._rules.text(f"{space} {optional_lead}({root})"), json_schema=None)

    def _content_rule(self, request: Request) -> str:
        """Returns the expression that matches content that fits the request's schema, with the markers around it."""
        call_format, schema = self._form.call_format, request.json_schema
        assert schema is not None, "called only for requests with a schema"
        content = self._rules.schema_text("content", schema_text(schema))
        parts = (self._rules.literal(call_format.content_start), content, self._rules.literal(call_format.content_end))
        return " ".join(filter(None, parts))

    def _triggers(self) -> Iterator[GrammarTrigger]:
        """Yields the triggers that activate the grammar of the calls in an answer that may also contain other text."""
        call_format = self._form.call_format
        if not call_format.patterns:
            yield from (GrammarTrigger("word", trigger) for trigger in call_format.triggers)
        names = "|".join(sorted({_name_pattern(tool.name) for tool in self._form.use.tools}))
        begins = "^" if self._form.reasoning_marks is None else f"(?:^|{re.escape(self._form.reasoning_marks.end)})"
        nothing = "|".join((r"\s", *map(re.escape, call_format.fillers)))
        for pattern in call_format.patterns:
            yield GrammarTrigger("pattern", pattern.replace("BEGIN", f"{begins}(?:{nothing})*").replace("NAMES", f"(?:{names})"))


def _name_pattern(name: str) -> str:
    """Returns a pattern that matches a name. For a long name, it matches all names with the same prefix; the grammar is exact."""
    return re.escape(name[:MAX_NAME_PREFIX]) + (r"[\w./:-]*" if len(name) > MAX_NAME_PREFIX else "")
