"""Writes GBNF grammars, which constrain a model to the text that a format's grammar parses."""

import re
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Self

import msgspec

from weft._native import schema_grammar
from weft.chat.answer.source import n_partial_mark
from weft.chat.answer.tools import Tool
from weft.errors import InvalidRequestError

_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}

_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|[A-Za-z][A-Za-z0-9-]*|[^"\[A-Za-z]+')

_SHARED = frozenset(("space", "string", "char", "number", "integer", "value", "object", "array", "integral-part", "decimal-part"))
"""Names of rules that are the same for every schema."""


class Rules:
    """Rules of one grammar."""

    def __init__(self, tools: Sequence[Tool], control_tokens: Mapping[str, int], *, is_parallel: bool) -> None:
        """Creates an empty grammar.

        Args:
            tools: The tools that may be called.
            control_tokens: Id of each control token by its spelling. Literals that contain a spelling match the token.
            is_parallel: True if there may be several calls.
        """
        self.tools = tools
        self.tool: Tool | None = None
        """The tool whose call is being written."""
        self.is_parallel = is_parallel
        self._control_tokens = control_tokens
        spellings = sorted(control_tokens, key=len, reverse=True)
        self._spelling = re.compile("|".join(map(re.escape, spellings))) if spellings else None
        self._rules: dict[str, str] = {}
        self._until: dict[str, str] = {}
        """Name of the rule that matches text up to an ending, by the ending."""
        self.named: set[str] = set()
        """Spellings of the control tokens that the grammar contains."""

    def copy(self) -> Self:
        """Returns an independent copy."""
        twin = copy(self)
        twin._rules, twin._until = dict(self._rules), dict(self._until)  # noqa: SLF001 (its own)
        twin.named = set(self.named)
        return twin

    @property
    def current_tool(self) -> Tool:
        """The tool whose call is being written."""
        assert self.tool is not None, "set while a call is written"
        return self.tool

    @property
    def nth_tool(self) -> int:
        """Index of that tool."""
        return self.tools.index(self.current_tool)

    @property
    def n_characters(self) -> int:
        """Size of all rules, in characters."""
        return sum(len(name) + len(body) for name, body in self._rules.items())

    def text(self, root: str) -> str:
        """Returns the grammar with a given root expression."""
        return "\n".join([f"root ::= {root}", *(f"{name} ::= {body}" for name, body in self._rules.items()), ""])

    def literal(self, text: str) -> str:
        """Returns the expression of a literal text."""
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
        """Adds a rule and returns its name, with a suffix if a different rule has the same name."""
        unique, nth = name, 1
        while self._rules.get(unique, body) != body:
            nth += 1
            unique = f"{name}-{nth}"
        self._rules[unique] = body
        return unique

    def until(self, ending: str) -> str:
        """Returns the expression for any text up to and including the first occurrence of `ending`."""
        if self._spelling is not None and self._spelling.search(ending) is not None:
            # Sampled text never contains the token, so the preceding text needs no restriction.
            before = self.add("text", "[^\\x00]*")
            return f"{before} {self.literal(ending)}"
        if (known := self._until.get(ending)) is not None:
            return known
        name = f"until-{len(self._until)}"
        letters = sorted(set(ending))
        others = "".join(map(_in_class, letters))
        for n_found in range(len(ending)):
            found = ending[:n_found]
            alternatives = [f"[^{others}] {name}-0"]
            for letter in letters:
                rest = "" if found + letter == ending else f" {name}-{n_partial_mark(found + letter, ending)}"
                alternatives.append(_quoted(letter) + rest)
            self._rules[f"{name}-{n_found}"] = " | ".join(alternatives)
        self._until[ending] = f"{name}-0"
        return f"{name}-0"

    def schema(self, name: str, schema: Mapping[str, Any], *, is_python: bool = False) -> str:
        """Adds the rule for JSON that fits a schema; if `is_python`, Python's literals are allowed as well.

        Raises:
            InvalidRequestError: The schema is invalid, or no grammar can express it.
        """
        try:
            return self.schema_text(name, msgspec.json.encode(schema).decode(), is_python=is_python)
        except InvalidRequestError as error:
            owner = "" if self.tool is None else f" of the tool {self.tool.name}"
            raise InvalidRequestError("tools", f"the parameters{owner}: {error.message}") from None

    def schema_text(self, name: str, schema: str, *, is_python: bool = False) -> str:
        """Same as `schema`, for a schema given as JSON text.

        Raises:
            InvalidRequestError: The schema is invalid, or no grammar can express it.
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
    """Extends a piece of a rule, a keyword or a quoted text, with Python's spelling."""
    text = re.fullmatch(r'"\\"([^"\'\\]+)\\""', piece)
    other = _PYTHON_WORDS.get(piece) if text is None else f"\"'{text[1]}'\""
    return piece if other is None else f"({piece} | {other})"


def _quoted(text: str) -> str:
    return f'"{"".join(_ESCAPES.get(character, character) for character in text)}"' if text else ""


def _in_class(letter: str) -> str:
    return f"\\{letter}" if letter in "]\\^-[" else _ESCAPES.get(letter, letter) if letter != '"' else letter
