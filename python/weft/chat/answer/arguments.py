"""Grammars of a call's arguments in the formats of models. Each parses to one JSON object, in pieces as the text arrives."""

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from weft.chat.answer import values
from weft.chat.answer.gbnf import Rules
from weft.chat.answer.grammar import MAX_KEY, Either, End, Grammar, Lookahead, Optional, Seq, Space, Text, check_schema
from weft.chat.answer.source import Parser, Reading, Source, n_partial_mark, read_word
from weft.chat.answer.tools import SCHEMA_NOTES, Tool, can_be, has_fixed_properties, is_text, takes_any_text, words_of


class Arguments(msgspec.Struct, frozen=True):
    """Arguments as one JSON object. If they precede the tool's name (`is_buffered`), they are kept until it is known."""

    is_buffered: bool = False

    def read(self, source: Source) -> Reading:
        """Parses the object."""
        if not (yield from Space().read(source)) or source.text[source.at : source.at + 1] != "{":
            return False
        buffer: list[str] = []
        is_read = yield from values.read_json(source, buffer.append if self.is_buffered else source.emit)
        if is_read and self.is_buffered:
            source.buffered_arguments = "".join(buffer)
        return is_read

    def write(self, rules: Rules) -> str:
        """Returns the expression of objects that fit the tool's schema."""
        return rules.schema(f"arguments-{rules.nth_tool}", rules.current_tool.parameters)


class BufferedArguments:
    """Emits arguments that preceded the name of the tool, or an empty object."""

    def read(self, source: Source) -> Reading:
        """Emits the arguments without reading text."""
        source.add_arguments(source.buffered_arguments or "{}")
        source.buffered_arguments = ""
        yield from ()
        return True

    def write(self, rules: Rules) -> str:  # noqa: ARG002 (as every piece)
        """Returns an empty expression."""
        return ""


def with_closing_mark(arguments: Grammar, closing: str) -> Grammar:
    """Returns arguments followed by the mark that closes the call, which is required if the call has no arguments."""
    none = Seq(BufferedArguments(), Lookahead(closing))
    return Seq(Either(arguments, none), End(closing))


class Parameters(msgspec.Struct, frozen=True):
    """Arguments as a list of elements with a name and a value. Strings are written as plain text, other values as JSON.

    For example, `<parameter=city>` … `</parameter>`: the name is between `opening` and a middle text, the value before `closing`.
    Line breaks around names and values may be missing.

    Attributes:
        opening: Text before a name.
        middle: Text between a name and its value. `{type}` is the JSON type of a value other than a string.
        closing: Text after a value.
        padding: Text at both ends of a value that does not belong to it, and may be missing.
        between: Text after an element.
        text_middle: Text between a name and a string value; None is `middle`.
        is_python: True if templates write values other than strings as Python literals.
        quotes: Marks that may enclose a string, such as CDATA's. GBNF never writes them.
    """

    opening: str
    middle: str
    closing: str
    padding: str = ""
    between: str = "\n"
    text_middle: str | None = None
    is_python: bool = False
    quotes: tuple[str, str] | None = None

    @property
    def _middles(self) -> tuple[str, str]:
        """The text between a name and its value, and the one before a string."""
        return self.middle, self.text_middle or self.middle

    def read(self, source: Source) -> Reading:
        """Parses the elements, of which there must be at least one."""
        n_read = 0
        while True:
            mark = source.mark()
            yield from Space().read(source)
            if not (yield from Text(self.opening).read(source)):
                source.backtrack(mark)
                break
            key = yield from self._key(source)
            if key is None:
                source.backtrack(mark)
                break
            name, middle = key
            source.emit(f"{'{' if n_read == 0 else ', '}{json.dumps(name, ensure_ascii=False)}: ")
            if not (yield from self._value(source, name, middle)):
                return False
            # Some models write the closing text twice.
            yield from Optional(Seq(Space(), self.closing)).read(source)
            n_read += 1
        rest = source.text[source.at :].lstrip()
        if source.is_truncated and (rest.startswith(self.opening) or self.opening.startswith(rest)):
            # The truncated text may have contained another argument.
            return False
        source.add_arguments("}" if n_read else "")
        return n_read > 0

    def _key(self, source: Source) -> Parser[tuple[str, str] | None]:
        """Parses the name of an argument and the middle text after it. Returns None if they do not match."""
        while True:
            ahead = source.text[source.at : source.at + MAX_KEY]
            found = [(match, middle) for middle in self._middles if (match := _middle_pattern(middle).search(ahead))]
            if found:
                match, middle = min(found, key=lambda each: each[0].start())
                name = ahead[: match.start()]
                if not name or "\n" in name or "<" in name:
                    return None
                source.at += match.end()
                return name.strip(), middle
            if source.is_ended or len(ahead) == MAX_KEY or "\n\n" in ahead:
                return None
            yield

    def _value(self, source: Source, name: str, middle: str) -> Reading:
        if self.quotes is not None:
            opening, closing = self.quotes
            mark = source.mark()
            if (yield from Text(opening).read(source)):
                return (yield from read_text(source, closing + self.padding + self.closing))
            source.backtrack(mark)
        schema = source.tool.schema_of(name)
        if middle == self._middles[1] and (middle != self.middle or is_text(schema)):
            return (yield from read_text(source, self.closing, self.padding))
        if self.padding:
            yield from Optional(Text(self.padding)).read(source)
        start = source.at
        end = yield from self._end_of_json(source, start)
        if end < 0 and source.is_truncated:
            self._emit_truncated(source, schema)
            return False
        is_whole = end >= 0
        value = source.text[start : end if is_whole else None]
        source.at = end + len(self.closing) if is_whole else len(source.text)
        source.emit(json_of(value.removesuffix(self.padding) if is_whole else value, schema))
        return is_whole

    def _emit_truncated(self, source: Source, schema: Mapping[str, Any]) -> None:
        """Parses a truncated value that may be JSON, and emits the part that is a prefix of valid JSON."""
        value = source.text[source.at :]
        value = value[: len(value) - n_partial_mark(value, self.padding + self.closing, self.closing)]
        is_text = can_be(schema, "") and value.lstrip()[:1] not in ("{", "[", '"')
        source.at = len(source.text)
        source.emit(f'"{values.escaped(value)}' if is_text and value else values.beginning_of_json(value))

    def _end_of_json(self, source: Source, start: int) -> Parser[int]:
        """Returns the end of a value that may be JSON: the first closing mark outside of strings, else the first one, else -1."""
        search_from, counted, is_open, first = start, start, False, -1
        while True:
            while (end := source.text.find(self.closing, search_from)) >= 0:
                is_open ^= sum(match.group() == '"' for match in _QUOTES.finditer(source.text, counted, end)) % 2 == 1
                search_from, counted = end + 1, end
                if not is_open or source.text[start:end].lstrip()[:1] not in ("{", "[", '"'):
                    return end
                first = end if first < 0 else first
            if source.is_ended or source.is_full:
                return first
            search_from = max(search_from, len(source.text) - len(self.closing) + 1)
            yield

    def write(self, rules: Rules) -> str:
        """Returns all required arguments and any of the others, in any order if that takes few rules.

        Raises:
            InvalidRequestError: The format cannot express an argument, or cannot enforce the schema of a strict tool.
        """
        tool = rules.current_tool
        between = rules.loosely(self.between)
        _check_strict(tool)
        if not has_fixed_properties(tool):
            key = rules.add("key", "[a-zA-Z0-9_.-]{1,64}")
            element = f"{rules.literal(self.opening)} {key} {self._after(rules, None)} {between}"
            return f"({element})*"
        elements = {}
        for position, name in enumerate(tool.properties):
            if re.fullmatch(r"[^\n<>\"]{1,250}", name) is None or name != name.strip():
                raise tool.not_expressible(name)
            element = f"{rules.literal(self.opening + name)} {self._after(rules, name)} {between}"
            elements[name] = rules.add(f"element-{rules.nth_tool}-{position}", element)
        required = tuple(name for name in elements if name in tool.required)
        if len(elements) <= MAX_ANY_ORDER:
            return _in_any_order(rules, elements, once=tuple(elements))
        if len(required) <= MAX_ANY_ORDER and not tool.is_strict:
            return _in_any_order(rules, elements, once=required)
        return " ".join(element if name in tool.required else f"({element})?" for name, element in elements.items())

    def _after(self, rules: Rules, name: str | None) -> str:
        """Returns the expression of the text after the name of an argument, or of any argument if `name` is None."""
        tool = rules.current_tool
        schema = {} if name is None else tool.schema_of(name)
        middle, text_middle = (_middle_rule(rules, middle + self.padding) for middle in self._middles)
        closing = rules.loosely(self.padding + self.closing)
        if name is None or is_text(schema):
            if (words := words_of(schema)) is not None:
                if any(self.closing in word for word in words):
                    raise tool.not_expressible(name or "")
                return f"{text_middle} ({' | '.join(map(rules.literal, words))}) {closing}"
            tool.check_enforced(schema, {"type"})
            any_middle = text_middle if name is not None or middle == text_middle else f"({text_middle} | {middle})"
            return f"{any_middle} {rules.until(self.closing)}"
        # Checks the schema even if the value turns out to be any text.
        nth = f"{rules.nth_tool}-{list(tool.properties).index(name)}"
        # A string could contain the quotes of a Python literal.
        is_python = self.is_python and not can_be(schema, "")
        value = f"{middle} {rules.schema(f'argument-{nth}', schema, is_python=is_python)} {closing}"
        if not takes_any_text(schema, is_strict=tool.is_strict):
            return value
        # Templates write strings without quotes, even if other types are allowed.
        text = f"{text_middle} {rules.until(self.closing)}"
        return text if middle == text_middle else f"({text} | {value})"


MAX_ANY_ORDER = 5
"""Maximum number of arguments in any order: a grammar has a rule for each subset of the remaining arguments."""


def _in_any_order(rules: Rules, elements: Mapping[str, str], once: tuple[str, ...]) -> str:
    """Returns elements in any order. Elements in `once` occur at most once, other elements any number of times.

    Models do not follow the order of the schema. A fixed order would exclude the arguments that a model has skipped.
    """
    tool = rules.current_tool

    def add(left: tuple[str, ...]) -> str:
        name = f"elements-{rules.nth_tool}-{sum(1 << once.index(each) for each in left)}"
        alternatives = [f"{elements[each]} {add(tuple(other for other in left if other != each))}" for each in left]
        alternatives += [f"{element} {name}" for each, element in elements.items() if each not in once]
        return rules.add(name, " | ".join([*alternatives, *(() if tool.required & set(left) else ('""',))]))

    return add(once)


@cache
def _middle_pattern(middle: str) -> re.Pattern[str]:
    pattern = r"\s*".join(map(re.escape, middle.split("\n")))
    return re.compile(pattern.replace(re.escape(_TYPE), '(?!string")[a-z]+'))


def _middle_rule(rules: Rules, middle: str) -> str:
    before, _, behind = middle.partition(_TYPE)
    types = [_TYPES] if _TYPE in middle else []
    return " ".join(filter(None, [rules.loosely(before), *types, rules.loosely(behind)]))


_TYPE, _TYPES = "{type}", '("number" | "boolean" | "object" | "array" | "null")'
"""Placeholder in a middle text, and GBNF of the types."""


def read_text(source: Source, closing: str, padding: str = "") -> Reading:
    """Parses a text and its closing mark, and emits it in pieces as a JSON string. Padding at both ends is dropped."""
    source.add_arguments('"')
    if padding:
        yield from Optional(Text(padding)).read(source)
    while (end := source.text.find(closing, source.at)) < 0:
        # If the text is incomplete but not truncated, the beginning of a closing mark belongs to it.
        is_final = source.is_ended and not source.is_truncated
        n_kept = 0 if is_final else n_partial_mark(source.text, padding + closing, closing)
        stop = max(source.at, len(source.text) - n_kept)
        text, source.at = source.text[source.at : stop], len(source.text) if source.is_ended else stop
        if text or source.is_ended:
            source.emit(values.escaped(text))
        if source.is_ended:
            return False
        yield
    text, source.at = source.text[source.at : end], end + len(closing)
    source.emit(f'{values.escaped(text.removesuffix(padding))}"')
    return True


def _check_strict(tool: Tool) -> None:
    """Rejects keywords in the schema of a strict tool that relate several arguments, because each is written separately.

    Raises:
        InvalidRequestError: The schema is invalid, or restricts more than the names and the presence of arguments.
    """
    if not tool.is_strict:
        return
    check_schema(tool)
    tool.check_enforced(tool.parameters, {"type", "properties", "required", "additionalProperties"})
    if not has_fixed_properties(tool) and (given := tool.parameters.keys() - SCHEMA_NOTES - {"type"}):
        raise tool.not_enforceable(min(given))
    if unnamed := tool.required - tool.properties.keys():
        raise tool.not_enforceable(f"required: {min(unnamed)}")
    if any(not isinstance(schema, Mapping) and schema is not True for schema in tool.properties.values()):
        raise tool.not_enforceable("false")
    if (reference := next(filter(None, map(_reference, tool.properties.values())), None)) is not None:
        raise tool.not_enforceable(f"$ref: {reference}")


def _reference(schema: Any) -> str | None:  # noqa: ANN401 (any JSON)
    """Returns the first `$ref` that does not refer to a definition, or None."""
    if isinstance(schema, Mapping):
        target = schema.get("$ref")
        if isinstance(target, str) and not target.startswith(("#/$defs/", "#/definitions/")):
            return target
    parts = schema.values() if isinstance(schema, Mapping) else schema if isinstance(schema, list) else ()
    return next(filter(None, map(_reference, parts)), None)


_QUOTES = re.compile(r'\\.|"', re.DOTALL)
"""Matches quotes of JSON strings, and escapes, which may contain quotes."""


_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


# Numbers may exceed the range of a float; they are returned as written.
_DECODER = msgspec.json.Decoder(float_hook=lambda _: 0.5)


def json_of(written: str, schema: Mapping[str, Any]) -> str:
    """Converts a value to JSON: unchanged if it is JSON of an allowed type, else as a string if that is allowed."""
    value = _PYTHON_WORDS.get(written.strip(), written.strip())
    try:
        found = _DECODER.decode(value)
    except (msgspec.DecodeError, RecursionError):
        made = None if can_be(schema, "") else values.python_as_json(value)
        return json.dumps(written, ensure_ascii=False) if made is None else made
    if can_be(schema, "") and not can_be(schema, found):
        return json.dumps(written, ensure_ascii=False)
    return value


class Keywords:
    """Arguments as Python keyword arguments, `name=value` separated by commas, which become a JSON object."""

    def read(self, source: Source) -> Reading:
        """Parses the arguments, of which there must be at least one."""
        n_read = 0
        while True:
            yield from Space().read(source)
            if n_read and not (yield from self._comma(source)):
                break
            name = yield from self._name(source)
            if name is None:
                break
            source.emit(f"{'{' if n_read == 0 else ', '}{json.dumps(name)}: ")
            yield from Space().read(source)
            if not (yield from values.read_python(source, source.emit)):
                return False
            n_read += 1
        if source.is_truncated and ")" not in source.text[source.at :]:
            # The truncated text may have contained another argument.
            return False
        source.add_arguments("}" if n_read else "")
        return n_read > 0

    def _comma(self, source: Source) -> Reading:
        mark = source.mark()
        return (yield from Seq(",", Space()).read(source)) or (source.backtrack(mark) and False)

    def _name(self, source: Source) -> Parser[str | None]:
        mark = source.mark()
        name = yield from read_word(source, _KEYWORD, MAX_KEY)
        if name and (yield from Seq(Space(), "=").read(source)):
            return name
        source.backtrack(mark)
        return None

    def write(self, rules: Rules) -> str:
        """Returns all required arguments, then any of the others, in the order of the schema.

        Raises:
            InvalidRequestError: The format cannot express an argument, or cannot enforce the schema of a strict tool.
        """
        tool = rules.current_tool
        _check_strict(tool)
        if not has_fixed_properties(tool):
            free = rules.schema("anything", {}, is_python=True)
            keyword = rules.add("keyword", f'[a-zA-Z_] [a-zA-Z0-9_]{{0,63}} "=" {free}')
            return f'({keyword} (", " {keyword})*)?'
        words = {}
        for position, name in enumerate(tool.properties):
            if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name) is None:
                raise tool.not_expressible(name)
            value = rules.schema(f"value-{rules.nth_tool}-{position}", tool.schema_of(name), is_python=True)
            words[name] = rules.add(f"keyword-{rules.nth_tool}-{position}", f"{rules.literal(name + '=')} {value}")
        required = [word for name, word in words.items() if name in tool.required]
        others = [word for name, word in words.items() if name not in tool.required]
        if required:
            return " ".join([' ", " '.join(required), *(f'(", " {word})?' for word in others)])
        # The first argument is not preceded by a comma.
        alternatives = [" ".join([word, *(f'(", " {other})?' for other in others[nth + 1 :])]) for nth, word in enumerate(others)]
        return f"({' | '.join(alternatives)})?" if alternatives else ""


_KEYWORD = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_.-]*)?")
