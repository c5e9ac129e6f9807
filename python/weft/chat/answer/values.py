"""Incremental parsers of values, which are JSON or Python's literals, that convert them to JSON without loss."""

import json
import re
from collections.abc import Callable

from weft.chat.answer.source import Reading, Source, complete_source, n_ahead, n_partial_mark, read_word

MAX_DEPTH = 64
"""Maximum nesting of lists and objects."""

MAX_SCALAR = 512
"""Maximum characters of a number or a keyword."""

Emit = Callable[[str], None]
"""Receives the next piece of the JSON."""

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_SCALAR = re.compile(r"[-+.0-9A-Za-z_]*")
_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN = {'"': re.compile(r'[^"\\\x00-\x1f]+'), "'": re.compile(r"[^\"'\\\x00-\x1f]+")}
_HEX = re.compile(r"[0-9a-fA-F]{4}")

_WORDS = {"true": "true", "false": "false", "null": "null"}
_PYTHON_WORDS = _WORDS | {"True": "true", "False": "false", "None": "null"}

_BARE_KEY = re.compile(r"[^\s:,<>\"'{}\[\]]*")
MAX_BARE_KEY = 256

_CLOSING = {"{": "}", "[": "]", "(": ")"}


def escaped(text: str) -> str:
    """Returns a text with the escapes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def read_json(source: Source, emit: Emit) -> Reading:
    """Parses a JSON value, and emits it unchanged.

    Control characters in strings, which are invalid in JSON, are emitted as escapes, and a backslash that begins no valid escape
    is doubled.
    """
    return _Value(source, emit, is_python=False).read()


def read_python(source: Source, emit: Emit) -> Reading:
    """Parses a Python literal or a JSON value, and emits it as JSON."""
    return _Value(source, emit, is_python=True).read()


def read_bare(source: Source, emit: Emit, quote: str) -> Reading:
    """Parses a value in Gemma's format, with unquoted keys, or a JSON value, and emits it as JSON.

    `quote` encloses texts, which contain no escapes.
    """
    return _BareValue(source, emit, quote).read()


def python_as_json(text: str) -> str | None:
    """Converts a Python literal to JSON. Returns None if the text is no literal."""
    made: list[str] = []
    source = complete_source(text)
    is_read = _finish(_Value(source, made.append, is_python=True).read())
    return "".join(made) if is_read and not text[source.at :].strip() else None


def beginning_of_json(text: str) -> str:
    """Returns the longest beginning of a text that is a prefix of valid JSON, converted to JSON."""
    made: list[str] = []
    _finish(_Value(complete_source(text, is_truncated=True), made.append, is_python=True).read())
    return "".join(made)


def _finish(reading: Reading) -> bool:
    """Runs a parser on a complete text."""
    try:
        next(reading)
    except StopIteration as end:
        return bool(end.value)
    raise AssertionError("a parser of a complete text never waits for more")


class _Value:
    colon = ":"

    def __init__(self, source: Source, emit: Emit, *, is_python: bool) -> None:
        self._source = source
        self._emit = emit
        self._is_python = is_python
        self._words = _PYTHON_WORDS if is_python else _WORDS
        self._quotes = "\"'" if is_python else '"'
        self._made: list[str] = []
        """Pieces of the value that are not emitted yet."""

    def _flush(self) -> None:
        if self._made:
            made, self._made = "".join(self._made), []
            self._emit(made)

    def read(self) -> Reading:
        reading = self._value()
        while True:
            try:
                next(reading)
            except StopIteration as end:
                self._flush()
                return bool(end.value)
            self._flush()
            yield

    def _value(self, depth: int = 0) -> Reading:
        """Parses a value, `depth` lists and objects deep, and the space before it."""
        yield from self._skip()
        character = self._ahead()
        if character in ("[", "{") or (character == "(" and self._is_python):
            return depth < MAX_DEPTH and (yield from self._items(character, depth + 1))
        if character and character in self._quotes:
            return (yield from self._string(character))
        return bool(character) and (yield from self._scalar())

    def _items(self, opening: str, depth: int) -> Reading:
        """Parses a list or an object."""
        self._take("{" if opening == "{" else "[")
        separator, may_end = "", True
        while True:
            yield from self._skip(is_emitted=not separator)
            character = self._ahead()
            if character == _CLOSING[opening] and may_end:
                self._take("}" if opening == "{" else "]")
                return True
            if not character:
                return False
            self._made.append(separator)
            if opening == "{" and not (yield from self._key(character)):
                return False
            if opening == "{":
                yield from self._skip()
                if self._ahead() != ":":
                    return False
                self._take(self.colon)
            if not (yield from self._value(depth)):
                return False
            yield from self._skip()
            separator, may_end = "", True
            if self._ahead() == "," and self._is_python:
                # Python allows a trailing comma, JSON does not.
                self._source.at += 1
                separator = ", "
            elif self._ahead() == ",":
                self._take(",")
                may_end = False
            elif self._ahead() != _CLOSING[opening]:
                return False

    def _ahead(self) -> str:
        """Returns the next character; empty at the end."""
        return self._source.text[self._source.at : self._source.at + 1]

    def _key(self, character: str) -> Reading:
        """Parses the key of an object that begins with a given character."""
        return (character in self._quotes) and (yield from self._string(character))

    def _take(self, made: str) -> None:
        self._source.at += 1
        self._made.append(made)

    def _skip(self, *, is_emitted: bool = True) -> Reading:
        """Parses the space between tokens."""
        source = self._source
        while True:
            match = _SPACE.match(source.text, source.at)
            assert match is not None
            if is_emitted:
                self._made.append(match.group())
            source.at = match.end()
            if source.at < len(source.text) or source.is_ended:
                return True
            yield

    def _scalar(self) -> Reading:
        word = yield from read_word(self._source, _SCALAR, MAX_SCALAR)
        made = self._words.get(word) or (word if _NUMBER.fullmatch(word) else None)
        if made is None:
            # After a commit, text that was not parsed becomes content.
            self._source.at -= len(word)
            return False
        self._made.append(made)
        return True

    def _string(self, quote: str) -> Reading:
        source, plain = self._source, _PLAIN[quote]
        self._take('"')
        while True:
            if source.at >= len(source.text):
                if source.is_ended:
                    return False
                yield
                continue
            if (match := plain.match(source.text, source.at)) is not None:
                self._made.append(match.group())
                source.at = match.end()
                continue
            character = source.text[source.at]
            if character == quote:
                self._take('"')
                return True
            if character == "\\":
                if not (yield from self._escape()):
                    return False
            else:
                self._take(escaped(character))

    def _escape(self) -> Reading:
        source = self._source
        while len(source.text) - source.at < (length := self._escape_length()) and not source.is_ended:
            yield
        if source.is_truncated and len(source.text) - source.at < length:
            return False
        # At the end of the input, an incomplete escape is a plain backslash.
        written = source.text[source.at : source.at + length]
        kind = written[1:2]
        if (kind and kind in '"\\/bfnrt') or (kind == "u" and _HEX.fullmatch(written, 2)):
            made = written
        elif self._is_python and kind == "x" and _HEX.fullmatch(f"00{written[2:]}"):
            made = f"\\u00{written[2:]}"
        elif self._is_python and kind == "'":
            made = "'"
        else:
            # The backslash begins no valid escape, so it is literal.
            made, written = "\\\\", "\\"
        source.at += len(written)
        self._made.append(made)
        return True

    def _escape_length(self) -> int:
        source = self._source
        kind = source.text[source.at + 1 : source.at + 2]
        return {"u": 6, "x": 4 if self._is_python else 2}.get(kind, 2)


class _BareValue(_Value):
    colon = ": "

    def __init__(self, source: Source, emit: Emit, quote: str) -> None:
        super().__init__(source, emit, is_python=True)
        self._quote = quote
        self._quotes = f'{quote[0]}"'

    def _skip(self, *, is_emitted: bool = True) -> Reading:  # noqa: ARG002 (no space is emitted)
        return super()._skip(is_emitted=False)

    def _key(self, character: str) -> Reading:
        if character in self._quotes:
            return (yield from self._string(character))
        key = yield from read_word(self._source, _BARE_KEY, MAX_BARE_KEY)
        if not key or (self._source.is_truncated and self._source.at == len(self._source.text)):
            self._source.at -= len(key)
            return False
        self._made.append(json.dumps(key, ensure_ascii=False))
        return True

    def _string(self, quote: str) -> Reading:
        if quote == '"':
            return (yield from super()._string(quote))
        source, mark = self._source, self._quote
        if (yield from n_ahead(source, mark)) < len(mark):
            return False
        source.at += len(mark)
        self._made.append('"')
        while True:
            end = source.text.find(mark, source.at)
            is_final = source.is_ended and not source.is_truncated
            n_kept = 0 if is_final else n_partial_mark(source.text[source.at :][-len(mark) :], mark)
            stop = end if end >= 0 else len(source.text) - n_kept
            self._made.append(escaped(source.text[source.at : stop]))
            source.at = stop
            if end >= 0:
                source.at += len(mark)
                self._made.append('"')
                return True
            if source.is_ended:
                return False
            yield
