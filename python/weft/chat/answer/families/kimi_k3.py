"""Kimi K3: sections, calls and arguments between opening and closing marks."""

import re

from weft.chat.answer.arguments import KeyReading, Parameters, with_closing_mark
from weft.chat.answer.family import Family, ReasoningMarks
from weft.chat.answer.gbnf import Rules
from weft.chat.answer.grammar import MAX_KEY, Calls, End, OneCall, Optional, Seq, Space, Text, ToolName, current_tool
from weft.chat.answer.source import Reading, Source
from weft.chat.answer.tools import is_text

__all__ = ["KIMI_K3"]

_SEP = "<|sep|>"
_NUMBER = re.compile(r' index="[0-9]{1,4}"|')
_KEY = re.compile(r'(.+)" type="([a-z]+)"')


def _opened(tag: str) -> str:
    return f"<|open|>{tag}{_SEP}"


def _closed(tag: str) -> str:
    return f"<|close|>{tag}{_SEP}"


class _CallIndex:
    """Index of a call in the answer, from 1."""

    def read(self, source: Source) -> Reading:
        """Parses the optional index and the end of the mark."""
        while (end := source.text.find(_SEP, source.at)) < 0:
            if source.is_ended or len(source.text) - source.at > MAX_KEY:
                return False
            yield
        is_index = _NUMBER.fullmatch(source.text, source.at, end) is not None
        source.at = end + len(_SEP)
        return is_index

    def write(self, rules: Rules) -> str:
        """Returns the expression of the index."""
        before, behind = rules.literal(' index="'), rules.literal(f'"{_SEP}')
        return f"{before} [1-9] [0-9]? {behind}"


class _TypedParameters(Parameters):
    """Elements that contain the type of their value after their name."""

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
        if name is not None and is_text(current_tool(rules).schema_of(name)):
            types = '"string"'
        before, behind = rules.literal('" type="'), rules.literal('"')
        return f"{before} ({types}) {behind} {super()._after(rules, name)}"


KIMI_K3 = Family(
    name="Kimi K3",
    is_of=lambda template: all(mark in template for mark in ("<|open|>", "<|close|>", "<|end_of_msg|>")),
    calls=Seq(
        # If the prompt has opened the response.
        Optional(Text(_closed("response")), is_written=True),
        _opened("tools"),
        Space(),
        Calls(
            OneCall(
                Seq(
                    '<|open|>call tool="',
                    ToolName(),
                    '"',
                    _CallIndex(),
                    with_closing_mark(
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
    ends_reasoning=(_opened("response"), _opened("tools")),
    between="",
    fillers=(_opened("response"), _closed("response"), _closed("message"), "<|end_of_msg|>"),
    lead=_opened("response") + _closed("response"),
    content_start=_opened("response"),
    content_end=_closed("response") + _closed("message"),
    reasoning_marks=ReasoningMarks(_opened("think"), _closed("think")),
)
