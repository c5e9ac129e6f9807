"""Headers of gpt-oss's messages: every message has a channel, and a call is a message to a tool."""

import re

from weft.chat.answer.arguments import Arguments
from weft.chat.answer.gbnf import Rules
from weft.chat.answer.grammar import Either, End, Grammar, OneCall, Optional, Seq, Space, Text, ToolName
from weft.chat.answer.source import Parser, Reading, Source

MAX_HEADER = 512
"""Maximum characters of a message's header."""

_MESSAGE, _CHANNEL_MARK = "<|message|>", "<|channel|>"
_BODY_END = re.compile(r"<\|(?:end|call|return|start)\|>")
_CONSTRAINT = r"\s*(?:<\|constrain\|>)?[A-Za-z0-9_.-]{0,64}"
_HEADER = re.compile(
    rf"(?:<\|start\|>assistant)?\s?(?:to=(?P<role>[^\s<]{{1,128}}))?<\|channel\|>(?P<channel>analysis|commentary|final)?"
    rf"(?:\s?to=(?P<to>[^\s<]{{1,128}}))?{_CONSTRAINT}"
)


class _Constraint:
    """Optional type of a message's content. GBNF allows JSON."""

    def read(self, source: Source) -> Reading:
        """Parses up to the mark that begins the content."""
        end = yield from _find(source, _MESSAGE, source.at)
        if end < 0 or re.fullmatch(_CONSTRAINT, source.text[source.at : end]) is None:
            return False
        source.at = end
        return True

    def write(self, rules: Rules) -> str:
        """Returns the optional type JSON, with an optional mark."""
        return f'(" "? ({rules.literal("<|constrain|>")})? "json")?'


class Header:
    """Header of a message that is not a call. A recipient other than the user becomes content, or the message is dropped.

    If tools are offered, the name of an unknown recipient and its message become content. Otherwise a message to another
    recipient, such as a built-in tool, is dropped.
    """

    def read(self, source: Source) -> Reading:
        """Parses a header, including the mark that begins the content, or up to the next header."""
        channel = yield from _find(source, _CHANNEL_MARK, source.at)
        end = -1 if channel < 0 else (yield from _find(source, (_MESSAGE, _CHANNEL_MARK), channel + 1))
        match = None if end < 0 else _HEADER.fullmatch(source.text, source.at, end)
        if match is None:
            return False
        if source.text.startswith(_CHANNEL_MARK, end):
            source.at = end
            return True
        recipient = match["to"] or match["role"]
        if recipient is None and match["channel"] == "analysis":
            # Reasoning is parsed by `ChatReader`.
            return False
        source.at = end + len(_MESSAGE)
        if recipient is None:
            return True
        if not source.tools:
            return (yield from _skip_body(source))
        source.text = f"{recipient} {source.text[source.at :]}"
        source.at, source.has_unparsed_call = 0, True
        return True

    def write(self, rules: Rules) -> str:  # noqa: ARG002 (as every piece)
        """Returns an empty expression: GBNF only describes calls."""
        return ""


def _find(source: Source, marks: str | tuple[str, ...], start: int) -> Parser[int]:
    """Returns the position of the first mark within a header, or -1."""
    candidates = (marks,) if isinstance(marks, str) else marks
    begin = source.at
    while True:
        found = [at for mark in candidates if (at := source.text.find(mark, start, begin + MAX_HEADER)) >= 0]
        if found or source.is_ended or len(source.text) - begin >= MAX_HEADER:
            return min(found, default=-1)
        yield


def _skip_body(source: Source) -> Reading:
    """Discards the content of a message."""
    while (match := _BODY_END.search(source.text, source.at)) is None and not source.is_ended:
        source.at = max(source.at, len(source.text) - len(_MESSAGE))
        source.commit()
        yield
    source.at = len(source.text) if match is None else match.start()
    source.commit()
    return True


_CHANNEL = Either(Text("commentary"), Text("analysis"), n_written=2)


def _call(*header: Grammar | str) -> Grammar:
    return OneCall(Seq(*header, _Constraint(), _MESSAGE, Arguments(), Optional(End("<|call|>"), is_written=True)))


CALLS = Either(
    _call("<|channel|>", _CHANNEL, " to=functions.", ToolName()),
    _call(
        Optional(Text("<|start|>assistant"), is_written=True), Space(" "), "to=functions.", ToolName(), "<|channel|>", _CHANNEL
    ),
    n_written=2,
)
"""Grammar of a call: the recipient follows the channel, or precedes it."""
