"""Arguments as nested elements whose tags are the names of arguments."""

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from weft.chat.answer.arguments import json_of, read_text
from weft.chat.answer.gbnf import Rules
from weft.chat.answer.grammar import MAX_KEY, End, Space, check_schema
from weft.chat.answer.source import Parser, Reading, Source
from weft.chat.answer.tools import Tool, can_be, is_text, words_of

MAX_DEPTH = 32
"""Maximum nesting of elements. Deeper ones are parsed as text."""

ITEM = "item"
"""Tag of the elements of a list."""

Schema = Mapping[str, Any]

_NAME = re.compile(r"[^<>\s/\"][^<>\n]{0,249}")
_ENFORCED = frozenset(("type", "properties", "required", "additionalProperties", "items"))
"""Keywords of a schema of an object or a list that a grammar of elements can enforce."""

_ONE_OF_EACH: tuple[object, ...] = ("", 0, True, None, [], {})
"""A value of each type."""


class ElementArguments(msgspec.Struct, frozen=True):
    """Arguments such as `<city>Rome</city><units><a>1</a></units>`, with a fixed text before each tag, emitted as JSON pieces."""

    before_tag: str

    def read(self, source: Source) -> Reading:
        """Parses the elements, of which there must be at least one."""
        mark = source.mark()
        name = yield from self._opening(source)
        source.backtrack(mark)
        return name is not None and (yield from self._nested(source, source.tool.parameters, 0))

    def _nested(self, source: Source, schema: Schema, depth: int, *, is_list: bool = False) -> Reading:
        """Parses the members of an object, or the elements of a list. False if no closing tag follows: it is incomplete then."""
        source.emit("[" if is_list else "{")
        n_read = 0
        while True:
            mark = source.mark()
            name = yield from self._opening(source)
            if name is None or (is_list and name != ITEM):
                source.backtrack(mark)
                break
            separator, key = ", " if n_read else "", "" if is_list else f"{json.dumps(name, ensure_ascii=False)}: "
            source.emit(separator + key)
            inner = _items(schema) if is_list else _property(schema, name)
            if not (yield from self._value(source, name, inner, depth + 1)):
                return False
            n_read += 1
        if not source.text[source.at :].lstrip().startswith(f"{self.before_tag}</"):
            return False
        source.emit("]" if is_list else "}")
        return True

    def _opening(self, source: Source) -> Parser[str | None]:
        """Parses an opening tag and returns its name, or None if there is no such tag."""
        yield from Space().read(source)
        begin = f"{self.before_tag}<"
        while True:
            ahead = source.text[source.at : source.at + len(begin) + MAX_KEY]
            if not ahead.startswith(begin[: len(ahead)]):
                return None
            end = ahead.find(">", len(begin))
            if end >= 0:
                break
            if source.is_ended or len(ahead) == len(begin) + MAX_KEY:
                return None
            yield
        name = ahead[len(begin) : end]
        if _NAME.fullmatch(name) is None:
            return None
        source.at += end + 1
        return name

    def _value(self, source: Source, name: str, schema: Schema, depth: int) -> Reading:
        """Parses a value and its closing tag."""
        closing = f"{self.before_tag}</{name}>"
        if is_text(schema):
            return (yield from read_text(source, closing))
        # If a schema lists strings among its types, any text is valid.
        is_scalar = depth > MAX_DEPTH or (can_be(schema, "") and _names_types(schema))
        kind = None if is_scalar else (yield from self._kind(source, schema))
        if kind is None:
            return (yield from _scalar(source, closing, schema))
        if not (yield from self._nested(source, schema, depth, is_list=kind == "array")):
            return False
        return (yield from End(closing).read(source)) and not source.is_cut

    def _kind(self, source: Source, schema: Schema) -> Parser[str | None]:
        """Returns the type of a value that consists of elements, `array` or `object`; None for other values."""
        mark = source.mark()
        name = yield from self._opening(source)
        source.backtrack(mark)
        possible = [kind for kind, empty in (("array", []), ("object", {})) if can_be(schema, empty)]
        if name is None:
            # An empty list or object has no text.
            is_only = bool(possible) and not any(can_be(schema, value) for value in _ONE_OF_EACH[:4])
            return possible[0] if is_only else None
        return "array" if name == ITEM and "array" in possible else "object" if "object" in possible else None

    def write(self, rules: Rules) -> str:
        """Returns the required arguments and any of the others, in the order of the schema."""
        tool = rules.current_tool
        check_schema(tool)
        return _Writer(rules, tool, self.before_tag).members(f"elements-{rules.nth_tool}", tool.parameters)


class _Writer(msgspec.Struct):
    rules: Rules
    tool: Tool
    before_tag: str

    def members(self, name: str, schema: Schema) -> str:
        self.tool.check_enforced(schema, _ENFORCED)
        properties, required = schema.get("properties"), schema.get("required") or ()
        if not isinstance(properties, Mapping):
            key = self.rules.add("element-name", "[a-zA-Z0-9_.-]{1,64}")
            start, end = self.rules.literal(f"{self.before_tag}<"), self.rules.until(f"{self.before_tag}</")
            return self.rules.add("free-elements", f'({start} {key} ">" {end} {key} ">")*')
        written = []
        for nth, (key, value) in enumerate(properties.items()):
            if _NAME.fullmatch(key) is None:
                raise self.tool.not_expressible(key)
            element = self._element(f"{name}-{nth}", key, value)
            written.append(element if key in required else f"({element})?")
        return self.rules.add(name, " ".join(written) or '""')

    def _element(self, name: str, tag: str, schema: Any) -> str:  # noqa: ANN401 (any JSON)
        opening = self.rules.literal(f"{self.before_tag}<{tag}>")
        return f"{opening} {self._value(name, schema, f'{self.before_tag}</{tag}>')}"

    def _value(self, name: str, schema: Any, closing: str) -> str:  # noqa: ANN401 (any JSON)
        """Returns the expression of a value and its closing tag."""
        rules = self.rules
        if not isinstance(schema, Mapping):
            return rules.until(closing)
        if is_text(schema) and (words := words_of(schema)) is not None:
            return f"({' | '.join(map(rules.literal, words))}) {rules.literal(closing)}"
        if _names_types(schema) and not (is_text(schema) or can_be(schema, []) or can_be(schema, {})):
            return f"{rules.schema(name, {**schema, **self.tool.definitions})} {rules.literal(closing)}"
        self.tool.check_enforced(schema, _ENFORCED)
        if schema.get("type") == "array":
            item = self._element(f"{name}-item", ITEM, _items(schema))
            return f"({rules.add(f'{name}-items', item)})* {rules.literal(closing)}"
        if schema.get("type") == "object" and isinstance(schema.get("properties"), Mapping):
            return f"{self.members(name, schema)} {rules.literal(closing)}"
        return rules.until(closing)


def _scalar(source: Source, closing: str, schema: Schema) -> Reading:
    """Parses a value and its closing tag, and emits it as a whole."""
    while (end := source.text.find(closing, source.at)) < 0:
        if source.is_ended or source.is_full:
            return False
        yield
    value, source.at = source.text[source.at : end], end + len(closing)
    source.emit(json_of(value, schema))
    return True


def _names_types(schema: Schema) -> bool:
    return not all(can_be(schema, value) for value in _ONE_OF_EACH)


def _property(schema: Schema, name: str) -> Schema:
    properties = schema.get("properties")
    found = properties.get(name) if isinstance(properties, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _items(schema: Schema) -> Schema:
    found = schema.get("items")
    return found if isinstance(found, Mapping) else {}
