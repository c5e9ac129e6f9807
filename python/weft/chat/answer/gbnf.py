"""Writes grammars in GBNF, which hold a model to what a family's grammar reads."""

import re
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Self

import msgspec

from weft._native import schema_grammar
from weft.chat.answer.tools import Tool
from weft.errors import InvalidRequest

__all__ = ["Rules"]

_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}

_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|[A-Za-z][A-Za-z0-9-]*|[^"\[A-Za-z]+')

_SHARED = frozenset(("space", "string", "char", "number", "integer", "value", "object", "array", "integral-part", "decimal-part"))
"""Rules that are written the same way for every schema, and no other by these names."""


class Rules:
    """The rules of one grammar, as they are written."""

    def __init__(self, tools: Sequence[Tool], control_tokens: Mapping[str, int], *, is_parallel: bool) -> None:
        """No rule is there yet.

        Args:
            tools: Those that may be called.
            control_tokens: The id of each control token by its spelling: text that spells one is that token.
            is_parallel: Whether there may be several calls.
        """
        self.tools = tools
        self.tool: Tool | None = None
        """The one that is being written of."""
        self.is_parallel = is_parallel
        self._control_tokens = control_tokens
        spellings = sorted(control_tokens, key=len, reverse=True)
        self._spelling = re.compile("|".join(map(re.escape, spellings))) if spellings else None
        self._rules: dict[str, str] = {}
        self._until: dict[str, str] = {}
        """What reads up to an ending."""
        self.named: set[str] = set()
        """Control tokens that are written."""

    def copy(self) -> Self:
        """The same rules, to which others are added apart."""
        twin = copy(self)
        twin._rules, twin._until = dict(self._rules), dict(self._until)  # noqa: SLF001 (its own)
        twin.named = set(self.named)
        return twin

    @property
    def n_characters(self) -> int:
        """Of all the rules."""
        return sum(len(name) + len(body) for name, body in self._rules.items())

    def text(self, root: str) -> str:
        """The whole grammar, which begins with this."""
        return "\n".join([f"root ::= {root}", *(f"{name} ::= {body}" for name, body in self._rules.items()), ""])

    def literal(self, text: str) -> str:
        """A text that stands as it is."""
        if self._spelling is None:
            return _quoted(text)
        written, end = [], 0
        for match in self._spelling.finditer(text):
            written += [_quoted(text[end : match.start()]), f"<[{self._control_tokens[match.group()]}]>"]
            self.named.add(match.group())
            end = match.end()
        return " ".join(filter(None, [*written, _quoted(text[end:])]))

    def loosely(self, text: str) -> str:
        """Returns the same as `literal`, but each line break of the text may be missing: models write calls both ways."""
        pieces = re.findall(r"\n|[^\n]+", text)
        return " ".join(f"{self.literal(piece)}?" if piece == "\n" else self.literal(piece) for piece in pieces)

    def add(self, name: str, body: str) -> str:
        """A rule; its name, which is another one where that is taken for another rule."""
        unique, nth = name, 1
        while self._rules.get(unique, body) != body:
            nth += 1
            unique = f"{name}-{nth}"
        self._rules[unique] = body
        return unique

    def until(self, ending: str) -> str:
        """Any text up to the first place where it has this one, and that."""
        if self._spelling is not None and self._spelling.search(ending) is not None:
            # No text that is drawn has the token: what comes before it needs no look at how it is spelt.
            before = self.add("text", "[^\\x00]*")
            return f"{before} {self.literal(ending)}"
        if (known := self._until.get(ending)) is not None:
            return known
        name = f"until-{len(self._until)}"
        letters = sorted(set(ending))
        others = "".join(map(_in_class, letters))
        for n_found in range(len(ending)):
            found = ending[:n_found]
            ways = [f"[^{others}] {name}-0"]
            for letter in letters:
                n_next = _n_begun(found + letter, ending)
                ways.append(_quoted(letter) if n_next == len(ending) else f"{_quoted(letter)} {name}-{n_next}")
            self._rules[f"{name}-{n_found}"] = " | ".join(ways)
        self._until[ending] = f"{name}-0"
        return f"{name}-0"

    def schema(self, name: str, schema: Mapping[str, Any], *, is_python: bool = False) -> str:
        """Adds the rule of the JSON that fits a schema, or of that and of Python's literals.

        Raises:
            InvalidRequest: it is no schema, or one that no grammar can express.
        """
        try:
            return self.schema_text(name, msgspec.json.encode(schema).decode(), is_python=is_python)
        except InvalidRequest as error:
            owner = "" if self.tool is None else f" of the tool {self.tool.name}"
            raise InvalidRequest("tools", f"the parameters{owner}: {error.message}") from None

    def schema_text(self, name: str, schema: str, *, is_python: bool = False) -> str:
        """The same of a schema that is given as text.

        Raises:
            InvalidRequest: it is none.
        """
        written = schema_grammar(schema)
        rules = dict(line.split(" ::= ", 1) for line in written.splitlines() if " ::= " in line)
        shared = "python-" if is_python else ""
        names = {rule: f"{shared}{rule}" if rule in _SHARED else f"{name}-{rule}" for rule in rules}
        for rule, body in rules.items():
            pieces = (names.get(piece) or (_as_python(piece) if is_python else piece) for piece in _PIECE.findall(body))
            self._rules[names[rule]] = "".join(pieces)
        if is_python and "string" in rules:
            self._rules[names["string"]] += f""" | "'" {self.add("python-letter", _PYTHON_LETTER)}* "'\""""
        return names["root"]


_PYTHON_LETTER = r"""[^'\\\x00] | "\\" ['"\\bfnrt]"""

_PYTHON_WORDS = {'"true"': '"True"', '"false"': '"False"', '"null"': '"None"'}


def _as_python(piece: str) -> str:
    """Lets a piece of a rule, a word or a text in quotes, be spelled as in Python, too."""
    text = re.fullmatch(r'"\\"([^"\'\\]+)\\""', piece)
    other = _PYTHON_WORDS.get(piece) if text is None else f"\"'{text[1]}'\""
    return piece if other is None else f"({piece} | {other})"


def _quoted(text: str) -> str:
    return f'"{"".join(_ESCAPES.get(character, character) for character in text)}"' if text else ""


def _in_class(letter: str) -> str:
    return f"\\{letter}" if letter in "]\\^-[" else _ESCAPES.get(letter, letter) if letter != '"' else letter


def _n_begun(text: str, ending: str) -> int:
    """How many characters of `ending` a text ends with."""
    return next(n for n in range(len(ending), -1, -1) if text.endswith(ending[:n]))
