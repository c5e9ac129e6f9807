"""Keeps what is said in a chat from being read as control tokens.

The spelling of a control token in a message is just text: nobody speaks as the system by typing how its turn begins. But a
template mixes what is said with its own control tokens, and hands out one text. So, before it is rendered, each character of a
message with which such a spelling begins is exchanged for another, of the planes for private use, which neither the messages nor
the template hold. So is one at the end that the next text could make a spelling of. Lengths stay what they are, so that templates
may cut and strip as they like. In the rendered text those characters say which segments are not to be parsed.

Pictures and sounds are such characters too: what spells one in a message is just text.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from weft.chat.template_terms import Message, TemplateError

__all__ = ["ControlTokenEscaper", "ControlTokenSpellings", "MediaPlaceholder", "TextSegment", "media_marks"]

_NOTHING = r"(?!)"
"""A regular expression that fits nowhere."""

_PRIVATE_USE = range(0xF0000, 0xFFFFE)

_FIELDS = frozenset(
    (
        *("role", "content", "type", "text", "reasoning_content", "thinking", "name", "tool_call_id", "id"),
        *("tool_calls", "tool_responses", "function", "arguments"),
    )
)
"""Names that templates look up. Others are part of what is said: those of a tool's arguments."""

_STAND_IN = re.compile("[\U000f0000-\U000ffffd]")


class TextSegment(NamedTuple):
    """A part of a prompt."""

    text: str
    is_parsed: bool
    """Whether the spelling of a control token in it is that token."""


class MediaPlaceholder(NamedTuple):
    """Where a picture or a sound stands in a prompt."""

    number: int
    """Which one of the chat."""

    @property
    def text(self) -> str:
        """What stands for it where the prompt is told as a text."""
        return "<__media__>"

    @property
    def is_parsed(self) -> bool:
        """It holds no control token."""
        return False


class ControlTokenSpellings:
    """How the control tokens of a vocabulary are spelt."""

    def __init__(self, spellings: Iterable[str]) -> None:
        words = sorted({spelling for spelling in spellings if spelling})
        self._spelling = re.compile(_trie(words) or _NOTHING)
        # Few characters begin a spelling, and are found fast; one spelling may begin within another.
        firsts = sorted({word[0] for word in words})
        self._first = re.compile("|".join(map(re.escape, firsts)) or _NOTHING)
        self._beginnings = {word[:length] for word in words for length in range(1, len(word))}
        self.n_longest = max(map(len, words), default=0)
        """Characters of the longest one."""

    def starts(self, text: str) -> list[int]:
        """Where spellings begin in a text, also those that end in what may follow it."""
        firsts = (match.start() for match in self._first.finditer(text))
        whole = {start for start in firsts if self._spelling.match(text, start)}
        tail = range(max(len(text) - self.n_longest + 1, 0), len(text))
        return sorted(whole.union(start for start in tail if text[start:] in self._beginnings))

    def longest_at_start(self, text: str) -> str | None:
        """The longest spelling that a text begins with."""
        match = self._spelling.match(text)
        return match and match.group()


def _trie(words: Iterable[str]) -> str:
    """A regular expression for the longest of some words, which looks at each character once however many words there are."""
    root: dict[str, Any] = {}
    for word in words:
        node = root
        for character in word:
            node = node.setdefault(character, {})
        # Marks the end of a word.
        node[""] = {}
    return _alternatives(root)


def _alternatives(node: dict[str, Any]) -> str:
    # A chain without branches is written in a row: vocabularies have spellings of a hundred characters.
    text = ""
    while len(node) == 1 and "" not in node:
        [(character, node)] = node.items()
        text += re.escape(character)
    branches = [re.escape(character) + _alternatives(child) for character, child in node.items() if character]
    if not branches:
        return text
    return f"{text}(?:{'|'.join(branches)}){'?' if '' in node else ''}"


class ControlTokenEscaper:
    """Escapes the messages of one chat, and finds the escaped text in the rendered prompt."""

    def __init__(
        self, messages: Sequence[Message], spellings: ControlTokenSpellings, template: str, marks: Sequence[str] = ()
    ) -> None:
        """Disguises messages for a template, in which `marks` stand for pictures and sounds.

        Raises:
            TemplateError: the messages leave no character for it.
        """
        self._spellings = spellings
        self._media = {mark: MediaPlaceholder(number) for number, mark in enumerate(marks)}
        said = [text for message in messages for text in _said(message)]
        begun = [spellings.starts(text) for text in said]
        characters = {text[start] for text, starts in zip(said, begun, strict=True) for start in starts}
        stand_ins = _choose(characters, [template, *said])
        self._originals = {stand_in: character for character, stand_in in stand_ins.items()}
        self._undoing = {ord(stand_in): character for stand_in, character in self._originals.items()}
        self.messages = list(messages)
        """The messages, escaped."""
        if stand_ins:
            told = (_exchanged(text, starts, stand_ins) for text, starts in zip(said, begun, strict=True))
            self.messages = [_retold(message, told) for message in messages]

    def undo(self, text: str) -> str:
        """A rendered text as it would be without the escaper."""
        return text.translate(self._undoing)

    def segments(self, text: str) -> Iterator[TextSegment | MediaPlaceholder]:
        """A rendered text without the escaping, what of it is to be parsed, and where the pictures and sounds are."""
        return (segment for segment in self._segments(text) if segment.text)

    def _segments(self, text: str) -> Iterator[TextSegment | MediaPlaceholder]:
        if not self._originals and not self._media:
            yield TextSegment(text, is_parsed=True)
            return
        end = 0
        for match in re.finditer(f"[{''.join((*self._originals, *self._media))}]", text):
            if match.start() < end:
                continue
            if (place := self._media.get(match.group())) is not None:
                yield TextSegment(text[end : match.start()], is_parsed=True)
                yield place
                end = match.end()
                continue
            told = self.undo(text[match.start() : match.start() + self._spellings.n_longest])
            # A template may have changed the rest: then the first character alone keeps it from being a spelling.
            spelling = self._spellings.longest_at_start(told) or told[0]
            yield TextSegment(text[end : match.start()], is_parsed=True)
            yield TextSegment(spelling, is_parsed=False)
            end = match.start() + len(spelling)
        yield TextSegment(text[end:], is_parsed=True)


def media_marks(n: int, text: str) -> list[str]:
    """Characters that stand for `n` pictures and sounds: none that a text holds.

    Raises:
        TemplateError: the text holds too many of those there are for this.
    """
    used = set(_STAND_IN.findall(text)) if n else set()
    marks = list(islice((chr(code) for code in _PRIVATE_USE if chr(code) not in used), n))
    if len(marks) < n:
        raise TemplateError("the messages hold every character of a plane for private use; leave some for us")
    return marks


def _choose(characters: set[str], texts: Sequence[str]) -> dict[str, str]:
    """A stand-in for each of some characters, which is in none of the texts.

    Raises:
        TemplateError: the texts hold every character there is for this.
    """
    used = {character for text in texts for character in _STAND_IN.findall(text)} if characters else set()
    free = (chr(code) for code in _PRIVATE_USE if chr(code) not in used)
    chosen = dict(zip(sorted(characters), free, strict=False))
    if len(chosen) < len(characters):
        raise TemplateError("the messages hold every character of a plane for private use; leave one for us")
    return chosen


def _exchanged(text: str, starts: Sequence[int], stand_ins: Mapping[str, str]) -> str:
    characters = list(text)
    for start in starts:
        characters[start] = stand_ins[text[start]]
    return "".join(characters)


def _is_compared(name: str, value: object) -> bool:
    """Whether a value is a word that templates compare and do not quote. Words spell no control token."""
    return name in ("role", "type") and isinstance(value, str) and re.fullmatch(r"[\w-]*", value) is not None


def _said(value: Any) -> Iterator[str]:  # noqa: ANN401 (any JSON)
    """Every text in a value that may be quoted, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _said(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in _FIELDS:
                yield name
            if not _is_compared(name, item):
                yield from _said(item)


def _retold(value: Any, told: Iterator[str]) -> Any:  # noqa: ANN401 (any JSON)
    """The same value with other texts, in the order of [`_said`]."""
    if isinstance(value, str):
        return next(told)
    if isinstance(value, list):
        return [_retold(item, told) for item in value]
    if isinstance(value, dict):
        retold = {}
        for name, item in value.items():
            shown = name if name in _FIELDS else next(told)
            retold[shown] = item if _is_compared(name, item) else _retold(item, told)
        return retold
    return value
