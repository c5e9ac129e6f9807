"""Prevents text of messages from being tokenized as control tokens.

The spelling of a control token in a message is plain text: a client must not be able to begin a turn of the system by writing
its marker. But a template combines messages with its own control tokens into one text. Therefore, before rendering, the first
character of each such spelling in a message is replaced with a private-use character that occurs neither in the messages nor in
the template; so is a character at the end of a text that could become a spelling together with the text after it. Lengths do
not change, so templates may slice and strip messages. In the rendered text, these characters mark the segments that must not be
parsed for control tokens.

Images and audio are represented by such characters too, so text cannot insert them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from weft.chat.template_terms import Message, TemplateError

_NOTHING = r"(?!)"
"""A regular expression that never matches."""

_PRIVATE_USE = range(0xF0000, 0xFFFFE)

_FIELDS = frozenset(
    (
        *("role", "content", "type", "text", "reasoning_content", "thinking", "name", "tool_call_id", "id"),
        *("tool_calls", "tool_responses", "function", "arguments"),
    )
)
"""Keys that templates read. Other keys, such as names of a tool's arguments, are text of the client."""

_PRIVATE_USE_CHARACTER = re.compile("[\U000f0000-\U000ffffd]")


class TextSegment(NamedTuple):
    """Text segment of a prompt."""

    text: str
    is_parsed: bool
    """True if spellings of control tokens become those tokens."""


class MediaPlaceholder(NamedTuple):
    """Position of an image or audio in a prompt."""

    number: int
    """Index among the media of the chat, from 0."""
    text: str = "<__media__>"
    """Representation in a prompt that is returned as text."""
    is_parsed: bool = False
    """Always False: a placeholder contains no control tokens."""


Segment = TextSegment | MediaPlaceholder
"""Segment of a prompt."""


class ControlTokenSpellings:
    """Finds spellings of a vocabulary's control tokens."""

    def __init__(self, spellings: Iterable[str]) -> None:
        self._words = {spelling for spelling in spellings if spelling}
        # Only a few characters begin a spelling, and searching for them is fast. Spellings may overlap.
        firsts = sorted({word[0] for word in self._words})
        self._first = re.compile("|".join(map(re.escape, firsts)) or _NOTHING)
        self._prefixes = {word[:length] for word in self._words for length in range(1, len(word))}
        self.n_longest = max(map(len, self._words), default=0)
        """Length of the longest spelling, in characters."""

    def starts(self, text: str) -> list[int]:
        """Returns the positions where spellings begin, including ones that only continue in the text after this one."""
        firsts = (match.start() for match in self._first.finditer(text))
        whole = {start for start in firsts if self.longest_at(text, start) is not None}
        tail = range(max(len(text) - self.n_longest + 1, 0), len(text))
        return sorted(whole.union(start for start in tail if text[start:] in self._prefixes))

    def longest_at(self, text: str, start: int) -> str | None:
        """Returns the longest spelling at a position of a text, or None."""
        longest = None
        for end in range(start + 1, start + self.n_longest + 1):
            if (part := text[start:end]) in self._words:
                longest = part
            if part not in self._prefixes:
                break
        return longest


class ControlTokenEscaper:
    """Escapes the messages of one chat, and finds the escaped text in the rendered prompt."""

    def __init__(
        self, messages: Sequence[Message], spellings: ControlTokenSpellings, template: str, marks: Sequence[str] = ()
    ) -> None:
        """Escapes messages for a template, in which `marks` are the placeholders of images and audio.

        Raises:
            TemplateError: The messages and the template use all private-use characters.
        """
        self._spellings = spellings
        self._media = {mark: MediaPlaceholder(number) for number, mark in enumerate(marks)}
        texts = [text for message in messages for text in _texts(message)]
        starts_of = [spellings.starts(text) for text in texts]
        characters = {text[start] for text, starts in zip(texts, starts_of, strict=True) for start in starts}
        free = placeholder_characters(len(characters), template, *texts)
        replacements = dict(zip(sorted(characters), free, strict=True))
        self._originals = {replacement: character for character, replacement in replacements.items()}
        self._unescaping = {ord(replacement): character for replacement, character in self._originals.items()}
        self.messages = list(messages)
        """The escaped messages."""
        if replacements:
            escaped = (_replace_at(text, starts, replacements) for text, starts in zip(texts, starts_of, strict=True))
            self.messages = [_with_texts(message, escaped) for message in messages]

    def unescape(self, text: str) -> str:
        """Returns a rendered text with the original characters."""
        return text.translate(self._unescaping)

    def segments(self, text: str) -> Iterator[Segment]:
        """Yields the segments of a rendered text with the original characters, and the placeholders of media."""
        return (segment for segment in self._segments(text) if segment.text)

    def _segments(self, text: str) -> Iterator[Segment]:
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
            original = self.unescape(text[match.start() : match.start() + self._spellings.n_longest])
            # If the template changed the characters that follow, escaping the first one is enough.
            spelling = self._spellings.longest_at(original, 0) or original[0]
            yield TextSegment(text[end : match.start()], is_parsed=True)
            yield TextSegment(spelling, is_parsed=False)
            end = match.start() + len(spelling)
        yield TextSegment(text[end:], is_parsed=True)


def placeholder_characters(n: int, *texts: str) -> list[str]:
    """Returns `n` private-use characters that are in none of the texts.

    Raises:
        TemplateError: The texts use too many private-use characters.
    """
    if not n:
        return []
    used = {character for text in texts for character in _PRIVATE_USE_CHARACTER.findall(text)}
    free = list(islice((chr(code) for code in _PRIVATE_USE if chr(code) not in used), n))
    if len(free) < n:
        raise TemplateError("the messages contain every private-use character; remove some of them")
    return free


def _replace_at(text: str, starts: Sequence[int], replacements: Mapping[str, str]) -> str:
    characters = list(text)
    for start in starts:
        characters[start] = replacements[text[start]]
    return "".join(characters)


def _is_compared(name: str, value: object) -> bool:
    """Returns True if a value is a word that templates compare but do not render. Words spell no control token."""
    return name in ("role", "type") and isinstance(value, str) and re.fullmatch(r"[\w-]*", value) is not None


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401 (any JSON)
    """Yields every text in a value that a template may render, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in _FIELDS:
                yield name
            if not _is_compared(name, item):
                yield from _texts(item)


def _with_texts(value: Any, texts: Iterator[str]) -> Any:  # noqa: ANN401 (any JSON)
    """Returns the value with other texts, which are in the order of [`_texts`]."""
    if isinstance(value, str):
        return next(texts)
    if isinstance(value, list):
        return [_with_texts(item, texts) for item in value]
    if isinstance(value, dict):
        result = {}
        for name, item in value.items():
            shown = name if name in _FIELDS else next(texts)
            result[shown] = item if _is_compared(name, item) else _with_texts(item, texts)
        return result
    return value
