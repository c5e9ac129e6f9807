"""What holds an answer to the form in which it is read."""

from collections.abc import Mapping, Sequence

import msgspec

from weft.chat.answer.form import FamilyForm
from weft.chat.answer.gbnf import Rules
from weft.errors import InvalidRequest
from weft.request import Request

__all__ = ["Held"]


class Held:
    """Holds the answers of one chat to the calls that they may make, and tells the engine of their thoughts."""

    def __init__(self, form: FamilyForm, control_tokens: Mapping[str, int], budget: int | None) -> None:
        """Writes the grammar of the calls.

        Args:
            form: How the answers are read.
            control_tokens: The id of each control token by its spelling.
            budget: Most tokens of a thought; None leaves it to the request.

        Raises:
            InvalidRequest: the schema of a tool is none, or cannot be held to.
        """
        self._form = form
        self._budget = budget
        use = form.use
        self._rules = None if use is None else Rules(use.tools, control_tokens, is_parallel=use.is_parallel)
        self._calls = "" if self._rules is None else form.write(self._rules)
        marks = "\n".join(form.marks())
        named = set() if self._rules is None else self._rules.named
        self.preserved: Sequence[str] = [spelling for spelling in control_tokens if spelling in named or spelling in marks]
        """Control tokens that the text must show."""

    def request(self, request: Request) -> Request:
        """A request whose answers are held to it.

        Raises:
            InvalidRequest: the request holds them to something else already.
        """
        if self._rules is None or self._form.use is None:
            return request
        if request.grammar:
            raise InvalidRequest(
                "grammar", "grammar cannot stand beside tools, which have a grammar of their own; give one of them"
            )
        if self._form.use.is_required:
            return msgspec.structs.replace(request, grammar=self._rules.text(self._calls), json_schema=None)
        return request
