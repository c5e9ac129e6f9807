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
from weft.chat.answer.source import Reading, Source, read_word
from weft.chat.answer.tools import Tool

MAX_KEY = 256
"""Maximum characters of an argument's name."""


def nothing() -> Reading:
    """Parser that always succeeds without reading text."""
    yield from ()
    return True


class Grammar(Protocol):
    """Part of a grammar."""

    def read(self, source: Source) -> Reading:
        """Parses the part. If it does not match, the position of the source is undefined, but not before its start."""

    def write(self, rules: Rules) -> str:
        """Returns the GBNF expression of the part, which may be empty."""


class Text:
    """Literal text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def read(self, source: Source) -> Reading:
        """Parses the text."""
        while True:
            ahead = source.text[source.at : source.at + len(self.text)]
            if ahead == self.text:
                source.at += len(ahead)
                return True
            if source.is_ended or not self.text.startswith(ahead):
                return False
            yield

    def write(self, rules: Rules) -> str:
        """Returns the literal."""
        return rules.literal(self.text)


class End:
    """Closing mark. It may be missing. If the text ends within it, it is treated as complete."""

    def __init__(self, text: str, *, is_optional: bool = False) -> None:
        """Describes the mark. If `is_optional`, the GBNF also allows it to be missing, for models that omit it."""
        self._text = text
        self._is_optional = is_optional

    def read(self, source: Source) -> Reading:
        """Parses optional space and the mark, or nothing."""
        closing = self._text.lstrip()
        start = at = source.at
        while True:
            at = _past_space(source.text, at)
            ahead = source.text[at : at + len(closing)]
            if ahead == closing:
                source.at = at + len(closing)
                return True
            if not closing.startswith(ahead):
                source.at = start
                return True
            if source.is_ended:
                source.at, source.is_cut = len(source.text), True
                return True
            yield

    def write(self, rules: Rules) -> str:
        """Returns the text, with optional line breaks."""
        written = rules.loosely(self._text)
        return f"({written})?" if self._is_optional else written


def _past_space(text: str, start: int) -> int:
    """Returns the position of the first character that is not whitespace."""
    while start < len(text) and text[start].isspace():
        start += 1
    return start


class Lookahead:
    """Requires a text after optional space, or the end of the input before or within it. Nothing is consumed."""

    def __init__(self, text: str) -> None:
        self._text = text.lstrip()

    def read(self, source: Source) -> Reading:
        """Checks the text without consuming it."""
        at = source.at
        while True:
            at = _past_space(source.text, at)
            ahead = source.text[at : at + len(self._text)]
            if ahead == self._text:
                return True
            if source.is_ended or not self._text.startswith(ahead):
                return source.is_ended and self._text.startswith(ahead)
            yield

    def write(self, rules: Rules) -> str:  # noqa: ARG002 (as every piece)
        """Returns an empty expression: the next part writes the text."""
        return ""


class Space:
    """Optional whitespace. In GBNF, each character of `written` is optional; None allows up to 16 characters of any kind."""

    def __init__(self, written: str | None = "") -> None:
        self._written = written

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
        if self._written is None:
            return rules.add("blank", "[ \\t\\n]{0,16}")
        return " ".join(f"{rules.literal(character)}?" for character in self._written)


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


class Optional:
    """Optional part. GBNF omits it unless `is_written`."""

    def __init__(self, piece: Grammar, *, is_written: bool = False) -> None:
        self._piece = piece
        self._is_written = is_written

    def read(self, source: Source) -> Reading:
        """Parses the part, or nothing."""
        mark = source.mark()
        return (yield from self._piece.read(source)) or source.backtrack(mark)

    def write(self, rules: Rules) -> str:
        """Returns the optional part, or an empty expression."""
        return f"({self._piece.write(rules)})?" if self._is_written else ""


class OneCall:
    """A call of any of the tools."""

    def __init__(self, piece: Grammar) -> None:
        self._piece = piece

    def read(self, source: Source) -> Reading:
        """Parses the call and commits it."""
        if not (yield from self._piece.read(source)):
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
            names.append(rules.add(f"call-{nth}", self._piece.write(rules)))
        rules.tool = None
        return names[0] if len(names) == 1 else f"({' | '.join(names)})"


class Calls:
    """One call, or several with separators if parallel calls are allowed."""

    def __init__(self, call: Grammar, between: Grammar) -> None:
        self._call = call
        self._between = between

    def read(self, source: Source) -> Reading:
        """Parses as many calls as there are."""
        if not (yield from self._call.read(source)):
            return False
        while source.is_parallel:
            mark = source.mark()
            if not ((yield from self._between.read(source)) and (yield from self._call.read(source))):
                return source.backtrack(mark)
        return True

    def write(self, rules: Rules) -> str:
        """Returns one call, or a repetition."""
        call = self._call.write(rules)
        return f"{call} ({self._between.write(rules)} {call})*" if rules.is_parallel else call


class ToolName:
    """Name of a tool, which begins a call unless the format repeats it later (`begins_call` is False)."""

    def __init__(self, *, begins_call: bool = True) -> None:
        self._begins_call = begins_call

    def read(self, source: Source) -> Reading:
        """Parses the longest name that matches."""
        while True:
            found, needs_more = _longest(source)
            if not needs_more:
                break
            yield
        if found is None:
            return False
        source.at += len(found.name)
        if self._begins_call:
            source.begin(found)
        return True

    def write(self, rules: Rules) -> str:
        """Returns the name of the tool that is being written."""
        return rules.literal(current_tool(rules).name)


def _longest(source: Source) -> tuple[Tool | None, bool]:
    """Returns the tool with the longest name that matches, and whether more text is needed to decide."""
    for tool in source.tools:
        ahead = source.text[source.at : source.at + len(tool.name)]
        if ahead == tool.name:
            return tool, False
        if tool.name.startswith(ahead) and not source.is_ended:
            return None, True
    return None, False


def current_tool(rules: Rules) -> Tool:
    """Returns the tool whose call is being written."""
    assert rules.tool is not None, "a name or arguments stand in a call"
    return rules.tool


def check_schema(tool: Tool) -> None:
    """Checks the whole schema of a tool's arguments, for grammars that are written from parts of it.

    Raises:
        InvalidRequestError: The schema is not a valid JSON schema.
    """
    rules = Rules((tool,), {}, is_parallel=False)
    rules.tool = tool
    rules.schema("whole", tool.parameters)


class Word:
    """Word within a call, such as an id or a number."""

    def __init__(self, characters: str, written: str, use: Callable[[Source, str], object] | None = None) -> None:
        """Describes the word.

        Args:
            characters: Regular expression of one of its characters.
            written: GBNF of the words that a model may write.
            use: Receives the word that was parsed; None ignores it.
        """
        self._pattern = re.compile(f"(?:{characters})*")
        self._written = written
        self._use = use

    def read(self, source: Source) -> Reading:
        """Parses the word, which must not be empty."""
        word = yield from read_word(source, self._pattern, MAX_KEY)
        if not word:
            return False
        if self._use is not None:
            self._use(source, word)
        return True

    def write(self, rules: Rules) -> str:  # noqa: ARG002 (as every piece)
        """Returns the expression of the words that may be written."""
        return self._written


_WORD = re.compile("[A-Za-z0-9_.:-]{0,64}")


class TextValue:
    """Quoted word that is not part of the call. If it matches `pattern`, it is the id of the call."""

    def __init__(self, written: str, pattern: str | None = None) -> None:
        self._written = written
        self._pattern = pattern

    def read(self, source: Source) -> Reading:
        """Parses the word."""
        made: list[str] = []
        if not (yield from values.read_json(source, made.append)):
            return False
        text = "".join(made).strip()
        if not text.startswith('"') or _WORD.fullmatch(found := msgspec.json.decode(text)) is None:
            return False
        if self._pattern is not None and re.fullmatch(self._pattern, found):
            source.rename(found)
        return True

    def write(self, rules: Rules) -> str:  # noqa: ARG002 (as every piece)
        """Returns the expression of the word."""
        return self._written
