"""The pieces that the grammars of families are made of: each reads text, and writes the GBNF that holds a model to it.

What a piece writes, it reads. It may read more: what models write in several ways, they are held to in one, unless it is the
beginning of a call, which nothing may hold before it is seen.
"""

import re
from typing import Protocol

import msgspec

from weft.chat.answer import values
from weft.chat.answer.gbnf import Rules
from weft.chat.answer.source import Reading, Source, numbered_id
from weft.chat.answer.tools import Tool

__all__ = [
    "MAX_KEY",
    "Ahead",
    "CallNumber",
    "CallWord",
    "Calls",
    "Either",
    "End",
    "Grammar",
    "OneCall",
    "Optional",
    "Row",
    "Space",
    "Text",
    "TextValue",
    "ToolName",
    "check_schema",
    "nothing",
    "written_tool",
]

MAX_KEY = 256
"""Characters of an argument's name."""


def nothing() -> Reading:
    """Reads nothing, which is always there."""
    yield from ()
    return True


class Grammar(Protocol):
    """A piece of a grammar."""

    def read(self, source: Source) -> Reading:
        """Reads what it describes; where that is not there, the source may be anywhere behind where it was."""

    def write(self, rules: Rules) -> str:
        """What it describes, in GBNF; empty where that is nothing."""


class Text:
    """A text that stands as it is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def read(self, source: Source) -> Reading:
        """Reads it."""
        while True:
            there = source.text[source.at : source.at + len(self.text)]
            if there == self.text:
                source.at += len(there)
                return True
            if source.is_ended or not self.text.startswith(there):
                return False
            yield

    def write(self, rules: Rules) -> str:
        """As it is."""
        return rules.literal(self.text)


class End:
    """What closes something. Where it is missing nothing is lost, and where all text ends within it, it is there."""

    def __init__(self, text: str, *, may_lack: bool = False) -> None:
        """Describes the mark; `may_lack` lets a grammar omit it, as some models do."""
        self._text = text
        self._may_lack = may_lack

    def read(self, source: Source) -> Reading:
        """Reads it, and the space before it, or nothing."""
        closing = self._text.lstrip()
        start = at = source.at
        while True:
            at = _past_space(source.text, at)
            there = source.text[at : at + len(closing)]
            if there == closing:
                source.at = at + len(closing)
                return True
            if not closing.startswith(there):
                source.at = start
                return True
            if source.is_ended:
                source.at, source.is_cut = len(source.text), True
                return True
            yield

    def write(self, rules: Rules) -> str:
        """Writes the text, whose line breaks may be missing."""
        written = rules.loosely(self._text)
        return f"({written})?" if self._may_lack else written


def _past_space(text: str, start: int) -> int:
    """Returns the position of the first character that is no space."""
    while start < len(text) and text[start].isspace():
        start += 1
    return start


class Ahead:
    """What must follow, behind any space, or all text ends before it or within it. It is not read."""

    def __init__(self, text: str) -> None:
        self._text = text.lstrip()

    def read(self, source: Source) -> Reading:
        """Reads nothing."""
        at = source.at
        while True:
            at = _past_space(source.text, at)
            there = source.text[at : at + len(self._text)]
            if there == self._text:
                return True
            if source.is_ended or not self._text.startswith(there):
                return source.is_ended and self._text.startswith(there)
            yield

    def write(self, rules: Rules) -> str:  # noqa: ARG002 (as every piece)
        """Nothing: what follows writes it."""
        return ""


class Space:
    """Any space, also none. A grammar allows `written` or less of it, or, where that is None, some space of any kind."""

    def __init__(self, written: str | None = "") -> None:
        self._written = written

    def read(self, source: Source) -> Reading:
        """Reads all there is."""
        while True:
            while source.at < len(source.text) and source.text[source.at] in " \t\r\n":
                source.at += 1
            if source.at < len(source.text) or source.is_ended:
                return True
            yield

    def write(self, rules: Rules) -> str:
        """Writes optional space."""
        if self._written is None:
            return rules.add("blank", "[ \\t\\n]{0,16}")
        return " ".join(f"{rules.literal(character)}?" for character in self._written)


class Row:
    """One piece after the other; texts may stand for [`Text`]."""

    def __init__(self, *pieces: "Grammar | str") -> None:
        self._pieces = [Text(piece) if isinstance(piece, str) else piece for piece in pieces]

    def read(self, source: Source) -> Reading:
        """Reads all of them."""
        for piece in self._pieces:
            if not (yield from piece.read(source)):
                return False
        return True

    def write(self, rules: Rules) -> str:
        """All of them."""
        return " ".join(filter(None, (piece.write(rules) for piece in self._pieces)))


class Either:
    """The first of several that is there. What is written is one of the first `n_written`."""

    def __init__(self, *ways: Grammar, n_written: int = 1) -> None:
        self._ways = ways
        self._n_written = n_written

    def read(self, source: Source) -> Reading:
        """Reads one; what was settled of it is not tried otherwise."""
        mark = source.mark()
        for way in self._ways:
            if (yield from way.read(source)):
                return True
            if not source.back(mark):
                return False
        return False

    def write(self, rules: Rules) -> str:
        """Those that may be written."""
        written = [way.write(rules) for way in self._ways[: self._n_written]]
        return written[0] if len(written) == 1 else f"({' | '.join(written)})"


class Optional:
    """What may be there. It is not asked for, unless a model may write it."""

    def __init__(self, piece: Grammar, *, is_written: bool = False) -> None:
        self._piece = piece
        self._is_written = is_written

    def read(self, source: Source) -> Reading:
        """Reads it, or nothing."""
        mark = source.mark()
        return (yield from self._piece.read(source)) or source.back(mark)

    def write(self, rules: Rules) -> str:
        """It or nothing, or nothing."""
        return f"({self._piece.write(rules)})?" if self._is_written else ""


class OneCall:
    """One call: what it is made of, for any of the tools."""

    def __init__(self, piece: Grammar) -> None:
        self._piece = piece

    def read(self, source: Source) -> Reading:
        """Reads it; then it cannot be taken back."""
        if not (yield from self._piece.read(source)):
            return False
        source.settle()
        if not source.is_cut:
            source.n_whole = source.n_calls
        return True

    def write(self, rules: Rules) -> str:
        """One way for each tool."""
        names = []
        for nth, tool in enumerate(rules.tools):
            rules.tool = tool
            names.append(rules.add(f"call-{nth}", self._piece.write(rules)))
        rules.tool = None
        return names[0] if len(names) == 1 else f"({' | '.join(names)})"


class Calls:
    """One call or several, where there may be several, with something between them."""

    def __init__(self, call: Grammar, between: Grammar) -> None:
        self._call = call
        self._between = between

    def read(self, source: Source) -> Reading:
        """Reads as many as there are."""
        if not (yield from self._call.read(source)):
            return False
        while source.is_parallel:
            mark = source.mark()
            if not ((yield from self._between.read(source)) and (yield from self._call.read(source))):
                return source.back(mark)
        return True

    def write(self, rules: Rules) -> str:
        """One, or as many as there may be."""
        call = self._call.write(rules)
        return f"{call} ({self._between.write(rules)} {call})*" if rules.is_parallel else call


class ToolName:
    """The name of a tool that may be called, which begins a call."""

    def read(self, source: Source) -> Reading:
        """Reads the longest."""
        while True:
            found, waits = _longest(source)
            if not waits:
                break
            yield
        if found is None:
            return False
        source.at += len(found.name)
        source.tool = found
        source.begin(found.name)
        return True

    def write(self, rules: Rules) -> str:
        """The one that is being written of."""
        return rules.literal(written_tool(rules).name)


def _longest(source: Source) -> tuple[Tool | None, bool]:
    """The tool with the longest name that is there, and whether more text could make it another."""
    for tool in source.tools:
        there = source.text[source.at : source.at + len(tool.name)]
        if there == tool.name:
            return tool, False
        if tool.name.startswith(there) and not source.is_ended:
            return None, True
    return None, False


def written_tool(rules: Rules) -> Tool:
    """The tool whose call is being written."""
    assert rules.tool is not None, "a name or arguments stand in a call"
    return rules.tool


def check_schema(tool: Tool) -> None:
    """Checks the schema of a tool's arguments as a whole, where a grammar is written of parts of it.

    Raises:
        InvalidRequest: it is not a JSON schema.
    """
    rules = Rules((tool,), {}, is_parallel=False)
    rules.tool = tool
    rules.schema("whole", tool.parameters)


class CallWord:
    """An id of letters and digits that a model gives a call."""

    def read(self, source: Source) -> Reading:
        """Reads it."""
        start = source.at
        while True:
            while source.at < len(source.text) and source.text[source.at].isalnum():
                source.at += 1
            if source.at < len(source.text) or source.is_ended or source.at - start > MAX_KEY:
                break
            yield
        source.rename(source.text[start : source.at])
        return start < source.at <= start + MAX_KEY

    def write(self, rules: Rules) -> str:  # noqa: ARG002 (as every piece)
        """Any in Mistral's way."""
        return "[a-zA-Z0-9]{9}"


class CallNumber:
    """The number of a call in the chat, of which its id is made, as the model counts them."""

    def read(self, source: Source) -> Reading:
        """Reads its digits."""
        start = source.at
        while True:
            while source.at < len(source.text) and source.text[source.at] in "0123456789":
                source.at += 1
            if source.at < len(source.text) or source.is_ended:
                break
            yield
        number = source.text[start : source.at]
        if not number or len(number) > MAX_KEY:
            return False
        # Some models count from 0 in each answer.
        if int(number) >= source.n_earlier + source.n_calls - 1:
            source.rename(numbered_id(source.tool.name, int(number)))
        return True

    def write(self, rules: Rules) -> str:  # noqa: ARG002 (as every piece)
        """Any number."""
        return "[0-9]{1,4}"


_WORD = re.compile("[A-Za-z0-9_.:-]{0,64}")


class TextValue:
    """A word in quotes that is no part of the call but, where it looks like one, its id."""

    def __init__(self, written: str, pattern: str | None = None) -> None:
        self._written = written
        self._pattern = pattern

    def read(self, source: Source) -> Reading:
        """Reads it."""
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
        """Any that looks like one."""
        return self._written
