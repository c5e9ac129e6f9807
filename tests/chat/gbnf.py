"""Whether a text is what a grammar in GBNF allows, for grammars without control tokens."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r'\s+|(?P<literal>"(?:[^"\\]|\\.)*")|(?P<letters>\[(?:[^\]\\]|\\.)*\])|(?P<name>[A-Za-z][A-Za-z0-9-]*)'
    r"|\{(?P<least>\d+)(?P<comma>,?)(?P<most>\d*)\}|(?P<sign>[()|*+?])"
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass(eq=False, frozen=True)
class _Repeated:
    ways: "_Ways"
    least: int
    most: int | None


_Symbol = re.Pattern[str] | str | _Repeated
"""A letter of some set, the name of a rule, or a group."""
_Ways = list[list[_Symbol]]


class Grammar:
    """The rules of a grammar."""

    def __init__(self, text: str) -> None:
        lines = (line.split(" ::= ", 1) for line in text.splitlines() if " ::= " in line)
        self._rules = {name: _Reader(body).ways() for name, body in lines}

    def begins(self, text: str) -> bool:
        """Whether some text that it allows begins with this one."""
        return self._read(text) is not None

    def allows(self, text: str) -> bool:
        """Whether it allows this text."""
        stacks = self._read(text)
        return stacks is not None and () in stacks

    def _read(self, text: str) -> set[tuple[_Symbol, ...]] | None:
        stacks = set(self._open(("root",)))
        for letter in text:
            stacks = {
                after
                for first, *rest in filter(None, stacks)
                if isinstance(first, re.Pattern) and first.fullmatch(letter)
                for after in self._open(tuple(rest))
            }
            if not stacks:
                return None
        return stacks

    def _open(self, stack: tuple[_Symbol, ...]) -> Iterator[tuple[_Symbol, ...]]:
        """The stacks with a letter on top, or empty, that a stack may be."""
        seen: set[tuple[int, ...]] = set()
        waiting = [stack]
        while waiting:
            stack = waiting.pop()
            if (key := tuple(map(id, stack))) in seen:
                continue
            seen.add(key)
            if not stack or isinstance(stack[0], re.Pattern):
                yield stack
                continue
            first, rest = stack[0], stack[1:]
            if isinstance(first, str):
                waiting += [(*way, *rest) for way in self._rules[first]]
                continue
            assert isinstance(first, _Repeated)
            if first.least == 0:
                waiting.append(rest)
            if first.most != 0:
                less = self._less(first)
                waiting += [(*way, *([] if less is None else [less]), *rest) for way in first.ways]

    def _less(self, group: _Repeated) -> _Repeated | None:
        """What may follow once a group was there."""
        if group.most is None and group.least == 0:
            return group
        least, most = max(group.least - 1, 0), None if group.most is None else group.most - 1
        if most == 0:
            return None
        known = self.__dict__.setdefault("_known", {})
        return known.setdefault((id(group.ways), least, most), _Repeated(group.ways, least, most))  # type: ignore[no-any-return]


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = [match for match in _TOKEN.finditer(text) if match.group().strip()]
        self._at = 0

    def ways(self) -> _Ways:
        ways: _Ways = [[]]
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            self._at += 1
            if token["literal"]:
                letters = [re.compile(re.escape(letter), re.DOTALL) for letter in _unescaped(token["literal"][1:-1])]
                self._add(ways[-1], list(letters))
            elif token["letters"]:
                self._add(ways[-1], [re.compile(_class(token["letters"]), re.DOTALL)])
            elif token["name"]:
                self._add(ways[-1], [token["name"]])
            elif token["sign"] == "(":
                self._add(ways[-1], [_Repeated(self.ways(), 1, 1)])
            elif token["sign"] == "|":
                ways.append([])
            else:
                assert token["sign"] == ")", token
                return ways
        return ways

    def _add(self, way: list[_Symbol], symbols: list[_Symbol]) -> None:
        if self._at < len(self._tokens):
            token = self._tokens[self._at]
            bounds: tuple[int, int | None] | None = None
            if token["least"]:
                bounds = (
                    int(token["least"]),
                    int(token["most"]) if token["most"] else None if token["comma"] else int(token["least"]),
                )
            elif token["sign"] and token["sign"] in "*+?":
                bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}[token["sign"]]
            if bounds is not None:
                self._at += 1
                symbols = [_Repeated([symbols], *bounds)]
        way += symbols


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text)


def _class(written: str) -> str:
    """A set of letters as Python has it, which warns of brackets in one."""
    return "[" + re.sub(r"(?<!\\)\[", r"\\[", written[1:])
