"""Combinators of the formats' grammars. Each parses text, and writes the GBNF that constrains a model to it.

A combinator parses everything that it writes. It may parse more: if models write a part in several ways, GBNF allows one of
them, except at the beginning of a call, which is not constrained until it is detected.
"""

import re
from collections.abc import Callable
from typing import Protocol

import msgspec

from weft.chat.answer import values
from weft.chat.answer.gbnf import Rules
from weft.chat.answer.source import Parser, Reading, Source, n_ahead, read_word
from weft.chat.answer.tools import Tool

MAX_KEY = 256
"""Maximum characters of an argument's name."""


class Grammar(Protocol):
    """Part of a grammar."""

    def read(self, source: Source) -> Reading:
        """Parses the part. If it does not match, the position of the source is undefined, but not before its start."""

    def write(self, rules: Rules) -> str:
        """Returns the GBNF expression of the part, which may be empty."""


def _n_space(source: Source) -> Parser[int]:
    """Returns how many characters of whitespace follow."""
    at = source.at
    while True:
        while at < len(source.text) and source.text[at].isspace():
            at += 1
        if at < len(source.text) or source.is_ended:
            return at - source.at
        yield


class Text(msgspec.Struct, frozen=True):
    """Literal text."""

    text: str

    def read(self, source: Source) -> Reading:
        """Parses the text."""
        if (yield from n_ahead(source, self.text)) < len(self.text):
            return False
        source.at += len(self.text)
        return True

    def write(self, rules: Rules) -> str:
        """Returns the literal."""
        return rules.literal(self.text)


class End(msgspec.Struct, frozen=True):
    """Closing mark. It may be missing. If the text ends within it, it is treated as complete."""

    text: str
    is_optional: bool = False
    """True if the GBNF also allows the mark to be missing, for models that omit it."""

    def read(self, source: Source) -> Reading:
        """Parses optional space and the mark, or nothing."""
        closing = self.text.lstrip()
        n_space = yield from _n_space(source)
        n_read = yield from n_ahead(source, closing, n_space)
        if n_read >= 0:
            source.at += n_space + n_read
            source.is_cut |= n_read < len(closing)
        return True

    def write(self, rules: Rules) -> str:
        """Returns the text, with optional line breaks."""
        written = rules.loosely(self.text)
        return f"({written})?" if self.is_optional else written


class Lookahead(msgspec.Struct, frozen=True):
    """Requires a text after optional space, or the end of the input before or within it. Nothing is consumed."""

    text: str

    def read(self, source: Source) -> Reading:
        """Checks the text without consuming it."""
        n_space = yield from _n_space(source)
        return (yield from n_ahead(source, self.text.lstrip(), n_space)) >= 0

    def write(self, rules: Rules) -> str:  # noqa: ARG002 (as every piece)
        """Returns an empty expression: the next part writes the text."""
        return ""


class Space(msgspec.Struct, frozen=True):
    """Optional whitespace. In GBNF, each character of `written` is optional; None allows up to 16 characters of any kind."""

    written: str | None = ""

    def read(self, source: Source) -> Reading:
        """Parses all whitespace."""
        while True:
            while source.at < len(source.text) and source.text[source.at] in " \t\r\n":
                source.at += 1
            if source.at < len(source.text) or source.is_ended:
                return True
            yield

    def write(self, rules: Rules) -> str:
        """Returns the optional space."""
        if self.written is None:
            return rules.add("blank", "[ \\t\\n]{0,16}")
        return " ".join(f"{rules.literal(character)}?" for character in self.written)


class Seq:
    """Sequence of parts. A `str` is short for [`Text`]."""

    def __init__(self, *pieces: "Grammar | str") -> None:
        self.parts = [Text(piece) if isinstance(piece, str) else piece for piece in pieces]

    def read(self, source: Source) -> Reading:
        """Parses all parts in order."""
        for piece in self.parts:
            if not (yield from piece.read(source)):
                return False
        return True

    def write(self, rules: Rules) -> str:
        """Returns all parts in order."""
        return " ".join(filter(None, (piece.write(rules) for piece in self.parts)))


class Either:
    """Ordered choice: the first alternative that matches. GBNF allows the first `n_written` alternatives."""

    def __init__(self, *alternatives: Grammar, n_written: int = 1) -> None:
        self._alternatives = alternatives
        self._n_written = n_written

    def read(self, source: Source) -> Reading:
        """Parses the first alternative that matches. A commit within an alternative excludes the others."""
        mark = source.mark()
        for alternative in self._alternatives:
            if (yield from alternative.read(source)):
                return True
            if not source.backtrack(mark):
                return False
        return False

    def write(self, rules: Rules) -> str:
        """Returns the alternatives that may be written."""
        written = [alternative.write(rules) for alternative in self._alternatives[: self._n_written]]
        return written[0] if len(written) == 1 else f"({' | '.join(written)})"


class Optional(msgspec.Struct, frozen=True):
    """Optional part. GBNF omits it unless `is_written`."""

    part: Grammar
    is_written: bool = False

    def read(self, source: Source) -> Reading:
        """Parses the part, or nothing."""
        mark = source.mark()
        return (yield from self.part.read(source)) or source.backtrack(mark)

    def write(self, rules: Rules) -> str:
        """Returns the optional part, or an empty expression."""
        return f"({self.part.write(rules)})?" if self.is_written else ""


class OneCall(msgspec.Struct, frozen=True):
    """A call of any of the tools."""

    part: Grammar

    def read(self, source: Source) -> Reading:
        """Parses the call and commits it."""
        if not (yield from self.part.read(source)):
            return False
        source.commit()
        if not source.is_cut:
            source.n_complete = source.n_calls
        return True

    def write(self, rules: Rules) -> str:
        """Returns the alternatives of all tools."""
        names = []
        for nth, tool in enumerate(rules.tools):
            rules.tool = tool
            names.append(rules.add(f"call-{nth}", self.part.write(rules)))
        rules.tool = None
        return names[0] if len(names) == 1 else f"({' | '.join(names)})"


class Calls(msgspec.Struct, frozen=True):
    """One call, or several with separators if parallel calls are allowed."""

    call: Grammar
    between: Grammar

    def read(self, source: Source) -> Reading:
        """Parses as many calls as there are."""
        if not (yield from self.call.read(source)):
            return False
        while source.is_parallel:
            mark = source.mark()
            if not ((yield from self.between.read(source)) and (yield from self.call.read(source))):
                return source.backtrack(mark)
        return True

    def write(self, rules: Rules) -> str:
        """Returns one call, or a repetition."""
        call = self.call.write(rules)
        return f"{call} ({self.between.write(rules)} {call})*" if rules.is_parallel else call


class ToolName(msgspec.Struct, frozen=True):
    """Name of a tool, which begins a call unless the format repeats it later (`begins_call` is False)."""

    begins_call: bool = True

    def read(self, source: Source) -> Reading:
        """Parses the longest name that matches."""
        for tool in source.tools:
            if (yield from n_ahead(source, tool.name)) == len(tool.name):
                source.at += len(tool.name)
                if self.begins_call:
                    source.begin(tool)
                return True
        return False

    def write(self, rules: Rules) -> str:
        """Returns the name of the tool that is being written."""
        return rules.literal(rules.current_tool.name)


def check_schema(tool: Tool) -> None:
    """Checks the whole schema of a tool's arguments, for grammars that are written from parts of it.

    Raises:
        InvalidRequestError: The schema is not a valid JSON schema.
    """
    rules = Rules((tool,), {}, is_parallel=False)
    rules.tool = tool
    rules.schema("whole", tool.parameters)


class Word(msgspec.Struct, frozen=True):
    """Word within a call, such as an id or a number.

    Attributes:
        characters: Regular expression of one of its characters.
        written: GBNF of the words that a model may write.
        use: Receives the word that was parsed.
    """

    characters: str
    written: str
    use: Callable[[Source, str], object] = lambda _source, _word: None

    def read(self, source: Source) -> Reading:
        """Parses the word, which must not be empty."""
        word = yield from read_word(source, re.compile(f"(?:{self.characters})*"), MAX_KEY)
        if word:
            self.use(source, word)
        return bool(word)

    def write(self, rules: Rules) -> str:  # noqa: ARG002 (as every piece)
        """Returns the expression of the words that may be written."""
        return self.written


_WORD = re.compile("[A-Za-z0-9_.:-]{0,64}")


class TextValue(msgspec.Struct, frozen=True):
    """Quoted word that is not part of the call. If it matches `pattern`, it is the id of the call."""

    written: str
    pattern: str

    def read(self, source: Source) -> Reading:
        """Parses the word."""
        made: list[str] = []
        if not (yield from values.read_json(source, made.append)):
            return False
        text = "".join(made).strip()
        if not text.startswith('"') or _WORD.fullmatch(found := msgspec.json.decode(text)) is None:
            return False
        if re.fullmatch(self.pattern, found):
            source.rename(found)
        return True

    def write(self, rules: Rules) -> str:  # noqa: ARG002 (as every piece)
        """Returns the expression of the word."""
        return self.written
