"""Kimi K3: sections of a message, calls, and arguments, each between marks that open and close it."""

import re

from weft.chat.answer.arguments import KeyReading, Parameters, closed
from weft.chat.answer.family import Family, ThoughtMarks
from weft.chat.answer.gbnf import Rules
from weft.chat.answer.grammar import Calls, End, OneCall, Optional, Row, Space, Text, ToolName, written_tool
from weft.chat.answer.source import Reading, Source
from weft.chat.answer.tools import is_text

__all__ = ["KIMI_K3"]

MAX_ATTRIBUTES = 128
"""Most characters of a call's attributes behind the name of its tool."""

_SEP = "<|sep|>"
_KEY = re.compile(r'(.+)" type="([a-z]+)"')


def _opened(tag: str) -> str:
    return f"<|open|>{tag}{_SEP}"


def _closed(tag: str) -> str:
    return f"<|close|>{tag}{_SEP}"


class _Attributes:
    """The number of a call, and whatever else stands behind the name of its tool."""

    def read(self, source: Source) -> Reading:
        """Reads up to the end of the mark."""
        while (end := source.text.find(_SEP, source.at)) < 0:
            if source.is_ended or len(source.text) - source.at > MAX_ATTRIBUTES:
                return False
            yield
        source.at = end + len(_SEP)
        return True

    def write(self, rules: Rules) -> str:
        """Writes the number."""
        before, behind = rules.literal(' index="'), rules.literal(f'"{_SEP}')
        return f"{before} [1-9] [0-9]? {behind}"


class _TypedParameters(Parameters):
    """Elements that have the type of their value beside their name."""

    def _key(self, source: Source) -> KeyReading:
        found = yield from super()._key(source)
        match = None if found is None else _KEY.fullmatch(found[0])
        return None if match is None else (match[1], match[2])

    def _value(self, source: Source, name: str, middle: str) -> Reading:
        if middle == "string":
            return (yield from self._text(source))
        return (yield from super()._value(source, name, ""))

    def _after(self, rules: Rules, name: str | None) -> str:
        types = '"number" | "boolean" | "object" | "array" | "null" | "string"'
        if name is not None and is_text(written_tool(rules).schema_of(name)):
            types = '"string"'
        before, behind = rules.literal('" type="'), rules.literal('"')
        return f"{before} ({types}) {behind} {super()._after(rules, name)}"


KIMI_K3 = Family(
    name="Kimi K3",
    is_of=lambda template: all(mark in template for mark in ("<|open|>", "<|close|>", "<|end_of_msg|>")),
    calls=Row(
        # Where the prompt has opened the response.
        Optional(Text(_closed("response")), is_written=True),
        _opened("tools"),
        Space(),
        Calls(
            OneCall(
                Row(
                    '<|open|>call tool="',
                    ToolName(),
                    '"',
                    _Attributes(),
                    closed(
                        _TypedParameters('<|open|>argument key="', _SEP, _closed("argument"), between=""),
                        _closed("call"),
                    ),
                )
            ),
            Space(),
        ),
        End(_closed("tools")),
        Optional(Text(_closed("message")), is_written=True),
    ),
    triggers=(_opened("tools"),),
    between="",
    fillers=(_opened("response"), _closed("response"), _closed("message"), "<|end_of_msg|>"),
    lead=_opened("response") + _closed("response"),
    before=_opened("response"),
    behind=_closed("response") + _closed("message"),
    thought=ThoughtMarks(_opened("think"), _closed("think")),
)
