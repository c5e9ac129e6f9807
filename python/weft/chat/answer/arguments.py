"""The arguments of a call, in the ways that models write them: each becomes one object of JSON, told as it comes."""

import json
import re
from collections.abc import Generator, Mapping
from typing import Any

import msgspec

from weft.chat.answer import values
from weft.chat.answer.begun import n_begun
from weft.chat.answer.gbnf import Rules
from weft.chat.answer.grammar import (
    MAX_KEY,
    Ahead,
    Either,
    End,
    Grammar,
    Optional,
    Row,
    Space,
    Text,
    check_schema,
    nothing,
    written_tool,
)
from weft.chat.answer.source import Reading, Source
from weft.chat.answer.tools import SCHEMA_NOTES, Tool, can_be, has_fixed_properties, is_text, takes_any_text
from weft.errors import InvalidRequest
from weft.fields.shown import shown

__all__ = ["Arguments", "HeldArguments", "Keywords", "Parameters", "closed", "json_of"]

KeyReading = Generator[None, None, tuple[str, str] | None]
NameReading = Generator[None, None, str | None]
PlaceReading = Generator[None, None, int]


class Arguments:
    """The arguments as one object of JSON, told as they come. Where the tool is not known yet they are told once it is."""

    def __init__(self, *, is_held: bool = False) -> None:
        self._is_held = is_held

    def read(self, source: Source) -> Reading:
        """Reads the object."""
        if not (yield from Space().read(source)) or source.text[source.at : source.at + 1] != "{":
            return False
        held: list[str] = []

        def told(text: str) -> None:
            if self._is_held:
                held.append(text)
            else:
                source.argue(text)
                source.settle()

        if not (yield from values.read_json(source, told)):
            return False
        if self._is_held:
            source.held_arguments = "".join(held)
        return True

    def write(self, rules: Rules) -> str:
        """What fits the tool's schema."""
        tool = written_tool(rules)
        return rules.schema(f"arguments-{rules.tools.index(tool)}", tool.parameters)


class HeldArguments:
    """Where arguments that came before the name of the tool are told."""

    def read(self, source: Source) -> Reading:
        """Tells them, or none."""
        source.argue(source.held_arguments or "{}")
        source.held_arguments = ""
        return (yield from nothing())

    def write(self, rules: Rules) -> str:  # noqa: ARG002 (as every piece)
        """Nothing: it is no text."""
        return ""


def _may_begin(text: str, mark: str) -> bool:
    """Returns whether a text begins a mark, or with it."""
    return mark.startswith(text) or text.startswith(mark)


def closed(arguments: Grammar, closing: str) -> Grammar:
    """Arguments that are no object of JSON, and what closes the call, which must be there where there are none."""
    none = Row(HeldArguments(), Ahead(closing))
    return Row(Either(arguments, none), End(closing))


class Parameters:
    """One argument or several as a list of elements, each a name and a value: texts as they are, everything else as JSON.

    `<parameter=city>` … `</parameter>`: the name stands between `opening` and one of `middles`, the value ends with `closing`.
    """

    def __init__(
        self,
        opening: str,
        middle: str,
        closing: str,
        *,
        padding: str = "",
        between: str = "\n",
        text_middle: str | None = None,
        is_python: bool = False,
    ) -> None:
        """Describes the elements. Line breaks in what surrounds names and values may be missing.

        Args:
            opening: What stands before a name.
            middle: What stands between a name and its value.
            closing: What stands behind a value.
            padding: Stands at both ends of a value, and is no part of it; a value may lack it.
            between: What stands behind an element.
            text_middle: What stands between a name and a value that is a text, where that is not `middle`.
            is_python: Whether a template writes values that are no texts as Python's literals.
        """
        self._opening = opening
        self._middles = (middle, text_middle or middle)
        self._middle_patterns = {middle: re.compile(r"\s*".join(map(re.escape, middle.split("\n")))) for middle in self._middles}
        self._closing = closing
        self._padding = padding
        self._between = between
        self._is_python = is_python

    def read(self, source: Source) -> Reading:
        """Reads the elements, as long as there are some."""
        n_read = 0
        while True:
            mark = source.mark()
            yield from Space().read(source)
            if not (yield from Text(self._opening).read(source)):
                source.back(mark)
                break
            key = yield from self._key(source)
            if key is None:
                source.back(mark)
                break
            name, middle = key
            source.argue(f"{'{' if n_read == 0 else ', '}{json.dumps(name, ensure_ascii=False)}: ")
            source.settle()
            if not (yield from self._value(source, name, middle)):
                return False
            # Some models close twice.
            yield from Optional(Row(Space(), self._closing)).read(source)
            n_read += 1
        if source.is_truncated and _may_begin(source.text[source.at :].lstrip(), self._opening):
            # Another argument may have followed.
            return False
        source.argue("}" if n_read else "")
        return n_read > 0

    def _key(self, source: Source) -> KeyReading:
        """The name of an argument, and which of the middles stands behind it; None where there is none."""
        while True:
            ahead = source.text[source.at : source.at + MAX_KEY]
            found = [(match, middle) for middle, pattern in self._middle_patterns.items() if (match := pattern.search(ahead))]
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
        schema = source.tool.schema_of(name)
        given_as_text = self._middles[0] != self._middles[1] and middle == self._middles[1]
        given_as_json = self._middles[0] != self._middles[1] and middle == self._middles[0]
        if given_as_text or (is_text(schema) and not given_as_json):
            return (yield from self._text(source))
        if self._padding:
            yield from Optional(Text(self._padding)).read(source)
        start = source.at
        end = yield from self._end_of_json(source, start)
        if end < 0 and source.is_truncated:
            self._tell_truncated(source, schema)
            return False
        is_whole = end >= 0
        value = source.text[start : end if is_whole else None]
        source.at = end + len(self._closing) if is_whole else len(source.text)
        source.argue(json_of(value.removesuffix(self._padding) if is_whole and self._padding else value, schema))
        source.settle()
        return is_whole

    def _tell_truncated(self, source: Source, schema: Mapping[str, Any]) -> None:
        """Reads the beginning of a value that may be JSON, and reports as much of it as is the beginning of some JSON."""
        value = source.text[source.at :]
        value = value[: len(value) - n_begun(value, self._padding + self._closing, self._closing)]
        is_text = can_be(schema, "") and value.lstrip()[:1] not in ("{", "[", '"')
        source.argue(f'"{values.escaped(value)}' if is_text and value else values.beginning_of_json(value))
        source.at = len(source.text)
        source.settle()

    def _end_of_json(self, source: Source, start: int) -> PlaceReading:
        """Where a value ends that may be JSON: not within a text of it, unless no other end comes. Below 0 it has none."""
        looked, counted, is_open, first = start, start, False, -1
        while True:
            while (end := source.text.find(self._closing, looked)) >= 0:
                is_open ^= sum(match.group() == '"' for match in _QUOTES.finditer(source.text, counted, end)) % 2 == 1
                looked, counted = end + 1, end
                if not is_open or source.text[start:end].lstrip()[:1] not in ("{", "[", '"'):
                    return end
                first = end if first < 0 else first
            if source.is_ended or source.is_full:
                return first
            looked = max(looked, len(source.text) - len(self._closing) + 1)
            yield

    def _text(self, source: Source) -> Reading:
        def told(text: str) -> None:
            source.argue(values.escaped(text))
            source.settle()

        source.argue('"')
        is_whole = yield from self._until(source, told)
        if is_whole:
            source.argue('"')
            source.settle()
        return is_whole

    def _until(self, source: Source, told: values.Told) -> Reading:
        """Reads a text and what closes it; tells the text as it comes."""
        padding, closing = self._padding, self._closing
        if padding:
            yield from Optional(Text(padding)).read(source)
        while True:
            end = source.text.find(closing, source.at)
            if end >= 0:
                value = source.text[source.at : end]
                source.at = end + len(closing)
                told(value.removesuffix(padding) if padding else value)
                return True
            n_kept = n_begun(source.text, padding + closing, closing)
            if source.is_ended:
                # A text without an end may end within what would close it, but for one that was cut off there.
                stop = max(source.at, len(source.text) - (n_kept if source.is_truncated else 0))
                value, source.at = source.text[source.at : stop], len(source.text)
                told(value)
                return False
            stop = max(source.at, len(source.text) - n_kept)
            value, source.at = source.text[source.at : stop], stop
            if value:
                told(value)
            yield

    def write(self, rules: Rules) -> str:
        """Writes every required argument, and any of the others, in any order where that takes few rules."""
        tool = written_tool(rules)
        between = rules.loosely(self._between)
        _check_strict(tool)
        if not has_fixed_properties(tool):
            key = rules.add("key", "[a-zA-Z0-9_.-]{1,64}")
            element = f"{rules.literal(self._opening)} {key} {self._after(rules, None)} {between}"
            return f"({element})*"
        elements = {}
        for position, name in enumerate(tool.properties):
            if re.fullmatch(r"[^\n<>\"]{1,250}", name) is None or name != name.strip():
                raise _unwritten(tool, name)
            element = f"{rules.literal(self._opening + name)} {self._after(rules, name)} {between}"
            elements[name] = rules.add(f"element-{rules.tools.index(tool)}-{position}", element)
        required = tuple(name for name in elements if name in tool.required)
        if len(elements) <= MAX_ANY_ORDER:
            return _in_any_order(rules, elements, once=tuple(elements))
        if len(required) <= MAX_ANY_ORDER and not tool.is_strict:
            return _in_any_order(rules, elements, once=required)
        return " ".join(element if name in tool.required else f"({element})?" for name, element in elements.items())

    def _after(self, rules: Rules, name: str | None) -> str:
        """What follows the name of an argument."""
        tool = written_tool(rules)
        schema = {} if name is None else tool.schema_of(name)
        middle, text_middle = (rules.loosely(middle + self._padding) for middle in self._middles)
        closing = rules.loosely(self._padding + self._closing)
        if name is None or is_text(schema):
            if (words := [schema["const"]] if "const" in schema else schema.get("enum")) is not None:
                if any(self._closing in word for word in words):
                    raise _unwritten(tool, name or "")
                told = " | ".join(rules.literal(word) for word in words)
                return f"{text_middle} ({told}) {closing}"
            if tool.is_strict and (unheld := schema.keys() - SCHEMA_NOTES - {"type", "$defs", "definitions"}):
                raise _unheld(tool, min(unheld))
            return f"{text_middle} {rules.until(self._closing)}"
        # It must be a schema in any case.
        nth = f"{rules.tools.index(tool)}-{list(tool.properties).index(name)}"
        # A text in Python's quotes could be a text that has them.
        is_python = self._is_python and not can_be(schema, "")
        value = f"{middle} {rules.schema(f'argument-{nth}', schema, is_python=is_python)} {closing}"
        if not takes_any_text(schema, is_strict=tool.is_strict):
            return value
        # Templates write a text without quotes, whatever else the value may be.
        text = f"{text_middle} {rules.until(self._closing)}"
        return text if middle == text_middle else f"({text} | {value})"


MAX_ANY_ORDER = 5
"""Arguments whose order is free, at most: a grammar has a rule for each set of those that are still to come."""


def _in_any_order(rules: Rules, elements: Mapping[str, str], once: tuple[str, ...]) -> str:
    """Writes elements in any order: those of `once` at most once, the others as often as a model likes.

    Models do not keep to the order of the schema, and one that had to would lose what it has passed over.
    """
    tool = written_tool(rules)
    nth = rules.tools.index(tool)

    def add(left: tuple[str, ...]) -> str:
        name = f"elements-{nth}-{sum(1 << once.index(each) for each in left)}"
        ways = [f"{elements[each]} {add(tuple(other for other in left if other != each))}" for each in left]
        ways += [f"{element} {name}" for each, element in elements.items() if each not in once]
        return rules.add(name, " | ".join([*ways, *(() if tool.required & set(left) else ('""',))]))

    return add(once)


_HELD = SCHEMA_NOTES | {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
"""Words that say something of arguments that are written one by one, and are held to."""


def _check_strict(tool: Tool) -> None:
    """Refuses what a strict tool's schema says of all arguments together, where each is written by itself.

    Raises:
        InvalidRequest: it says more than what they are called and which must be there, or is none.
    """
    if not tool.is_strict:
        return
    check_schema(tool)
    given = tool.parameters
    if unheld := given.keys() - _HELD:
        raise _unheld(tool, min(unheld))
    if not has_fixed_properties(tool) and given.keys() - SCHEMA_NOTES - {"type"}:
        raise _unheld(tool, min(given.keys() - SCHEMA_NOTES - {"type"}))
    if unnamed := tool.required - tool.properties.keys():
        raise _unheld(tool, f"required: {min(unnamed)}")
    if any(not isinstance(schema, Mapping) and schema is not True for schema in tool.properties.values()):
        raise _unheld(tool, "false")
    if (elsewhere := next(filter(None, map(_reference, tool.properties.values())), None)) is not None:
        raise _unheld(tool, f"$ref: {elsewhere}")


def _reference(schema: Any) -> str | None:  # noqa: ANN401 (any JSON)
    """A reference to something that an argument's own schema does not have."""
    if isinstance(schema, Mapping):
        there = schema.get("$ref")
        if isinstance(there, str) and not there.startswith(("#/$defs/", "#/definitions/")):
            return there
    parts = schema.values() if isinstance(schema, Mapping) else schema if isinstance(schema, list) else ()
    return next(filter(None, map(_reference, parts)), None)


def _unheld(tool: Tool, what: str) -> InvalidRequest:
    message = (
        f"the tool {tool.name} is strict, and the format of this model's calls cannot be held to {shown(what)} of its schema"
    )
    return InvalidRequest("tools", message)


def _unwritten(tool: Tool, name: str) -> InvalidRequest:
    message = f"the tool {tool.name} has an argument {shown(name)}, which the format of this model's calls has no way to name"
    return InvalidRequest("tools", message)


_QUOTES = re.compile(r'\\.|"', re.DOTALL)
"""What begins or ends a text in JSON, and what only looks like it."""


_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


# A number may be larger than any that Python counts with, and is told as it is written.
_DECODER = msgspec.json.Decoder(float_hook=lambda _: 0.5)


def json_of(written: str, schema: Mapping[str, Any]) -> str:
    """A value as JSON: as it is written where that is JSON of a type that it can have, else as a text if it can be one."""
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
    """One argument or several as Python's keywords, `name=value` with commas between them, which become an object of JSON."""

    def read(self, source: Source) -> Reading:
        """Reads them, as long as there are some."""
        n_read = 0
        while True:
            yield from Space().read(source)
            if n_read and not (yield from self._comma(source)):
                break
            name = yield from self._name(source)
            if name is None:
                break
            source.argue(f"{'{' if n_read == 0 else ', '}{json.dumps(name)}: ")
            source.settle()

            def told(text: str) -> None:
                source.argue(text)
                source.settle()

            yield from Space().read(source)
            if not (yield from values.read_python(source, told)):
                return False
            n_read += 1
        if source.is_truncated and ")" not in source.text[source.at :]:
            # Another argument may have followed.
            return False
        source.argue("}" if n_read else "")
        return n_read > 0

    def _comma(self, source: Source) -> Reading:
        mark = source.mark()
        return (yield from Row(",", Space()).read(source)) or (source.back(mark) and False)

    def _name(self, source: Source) -> NameReading:
        mark = source.mark()
        while True:
            match = _KEYWORD.match(source.text, source.at)
            if match is not None and match.end() < len(source.text):
                name = match.group(1)
                source.at = match.end()
                if name and source.text[source.at] == "=":
                    source.at += 1
                    return name
                source.back(mark)
                return None
            if match is None or source.is_ended or match.end() - match.start() > MAX_KEY:
                source.back(mark)
                return None
            yield

    def write(self, rules: Rules) -> str:
        """Every required argument, then those of the others that are wanted, in the order of the schema."""
        tool = written_tool(rules)
        _check_strict(tool)
        if not has_fixed_properties(tool):
            free = rules.schema("anything", {}, is_python=True)
            keyword = rules.add("keyword", f'[a-zA-Z_] [a-zA-Z0-9_]{{0,63}} "=" {free}')
            return f'({keyword} (", " {keyword})*)?'
        nth = rules.tools.index(tool)
        words = {}
        for position, name in enumerate(tool.properties):
            if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name) is None:
                raise _unwritten(tool, name)
            value = rules.schema(f"value-{nth}-{position}", tool.schema_of(name), is_python=True)
            words[name] = rules.add(f"keyword-{nth}-{position}", f"{rules.literal(name + '=')} {value}")
        required = [word for name, word in words.items() if name in tool.required]
        others = [word for name, word in words.items() if name not in tool.required]
        if required:
            return " ".join([' ", " '.join(required), *(f'(", " {word})?' for word in others)])
        # Whichever comes first has no comma before it.
        ways = [" ".join([word, *(f'(", " {other})?' for other in others[nth + 1 :])]) for nth, word in enumerate(others)]
        return f"({' | '.join(ways)})?" if ways else ""


_KEYWORD = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)?\s*")
