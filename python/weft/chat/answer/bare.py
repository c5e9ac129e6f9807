"""Arguments in Gemma's format: an object with unquoted keys, and special quotes around strings."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from weft.chat.answer import values
from weft.chat.answer.gbnf import Rules
from weft.chat.answer.grammar import Space, check_schema
from weft.chat.answer.source import Reading, Source
from weft.chat.answer.tools import SCHEMA_NOTES, Tool, words_of

_ENFORCED: Mapping[str, set[str]] = {
    "string": set(),
    "array": {"items"},
    "object": {"properties", "required", "additionalProperties"},
}
"""Keywords that are enforced for each type. Other types are constrained as JSON."""


class BareArguments(msgspec.Struct, frozen=True):
    """Arguments such as `{city:<|"|>Rome<|"|>,days:3}`, parsed to JSON. `quote` encloses strings."""

    quote: str

    def read(self, source: Source) -> Reading:
        """Parses the object."""
        if not (yield from Space().read(source)) or source.text[source.at : source.at + 1] != "{":
            return False
        return (yield from values.read_bare(source, source.emit, self.quote))

    def write(self, rules: Rules) -> str:
        """Returns the expression of objects that fit the tool's schema, with sorted keys as in Gemma's templates."""
        tool = rules.current_tool
        check_schema(tool)
        return _Writer(rules, tool, self.quote).value(f"arguments-{rules.nth_tool}", tool.parameters)


class _Writer(msgspec.Struct):
    rules: Rules
    tool: Tool
    quote: str
    defined: dict[str, str] = {}
    """Names of the rules of definitions, by reference."""

    def value(self, name: str, schema: Any) -> str:  # noqa: ANN401 (any JSON)
        """Adds the rule of values that fit a schema, and returns its name."""
        rules = self.rules
        if not isinstance(schema, Mapping) or not schema.keys() - SCHEMA_NOTES - {"$defs", "definitions"}:
            return self._anything()
        if isinstance(reference := schema.get("$ref"), str):
            self.tool.check_enforced(schema, {"$ref"})
            return self._referred(reference)
        if (words := words_of(schema)) is not None:
            self.tool.check_enforced(schema, {"const", "enum", "type"})
            return rules.add(name, " | ".join(rules.literal(self._format_value(word)) for word in words))
        for word in ("anyOf", "oneOf"):
            if word in schema:
                self.tool.check_enforced(schema, {word, "type"} if word == "anyOf" else {"type"})
                alternatives = [self.value(f"{name}-{nth}", schema_) for nth, schema_ in enumerate(schema[word])]
                return rules.add(name, " | ".join(alternatives))
        kind = schema.get("type", "object" if "properties" in schema else None)
        if isinstance(kind, list):
            alternatives = [self.value(f"{name}-{one}", {**schema, "type": one}) for one in kind]
            return rules.add(name, " | ".join(alternatives))
        if kind not in ("string", "array", "object", "integer", "number", "boolean", "null"):
            self.tool.check_enforced(schema, set())
            return self._anything()
        if kind in ("integer", "number", "boolean", "null"):
            return rules.schema(name, {key: value for key, value in schema.items() if key not in SCHEMA_NOTES}, is_python=True)
        self.tool.check_enforced(schema, {"type", *_ENFORCED[kind]})
        if kind == "string":
            return self._text()
        if kind == "array":
            item = self.value(f"{name}-item", schema.get("items"))
            return rules.add(name, f'"[" ({item} ("," {item})*)? "]"')
        return self._object(name, schema)

    def _object(self, name: str, schema: Mapping[str, Any]) -> str:
        rules, properties = self.rules, schema.get("properties")
        if not isinstance(properties, Mapping):
            if schema.get("additionalProperties") is False:
                return rules.add(name, '"{}"')
            self.tool.check_enforced(
                schema, {"type"} if schema.get("additionalProperties") is not True else {"type", "additionalProperties"}
            )
            self._anything()
            return "bare-object"
        required = schema.get("required") or ()
        if self.tool.is_strict and (unnamed := set(required) - properties.keys()):
            raise self.tool.not_enforceable(f"required: {min(unnamed)}")
        # Expressions of the rest after a member, and after the opening brace.
        behind = first = '"}"'
        for nth, key in reversed(list(enumerate(sorted(properties)))):
            member = f"{rules.literal(self._key(key) + ':')} {self.value(f'{name}-{nth}', properties[key])}"
            more = rules.add(f"{name}-{nth}-more", behind)
            if key in required:
                first = rules.add(f"{name}-{nth}-first", f"{member} {more}")
                behind = f'"," {member} {more}'
            else:
                first = rules.add(f"{name}-{nth}-first", f"{member} {more} | {first}")
                behind = f'("," {member})? {more}'
        return rules.add(name, f'"{{" {first}')

    def _referred(self, reference: str) -> str:
        """Adds the rule of a definition, which may be recursive, and returns its name."""
        kind, _, key = reference.removeprefix("#/").partition("/")
        defined = self.tool.parameters.get(kind) if kind in ("$defs", "definitions") else None
        if not isinstance(defined, Mapping) or key not in defined:
            if self.tool.is_strict:
                raise self.tool.not_enforceable(f"$ref: {reference}")
            return self._anything()
        if reference not in self.defined:
            name = f"defined-{self.rules.tools.index(self.tool)}-{len(self.defined)}"
            self.defined[reference] = name
            self.rules.add(name, self.value(f"{name}-value", defined[key]))
        return self.defined[reference]

    def _text(self) -> str:
        rules = self.rules
        return rules.add("bare-text", f"{rules.literal(self.quote)} {rules.until(self.quote)}")

    def _anything(self) -> str:
        rules, text = self.rules, self._text()
        word = rules.schema("bare-word", {"type": ["number", "boolean", "null"]}, is_python=True)
        rules.add("bare-member", '[a-zA-Z_] [a-zA-Z0-9_.-]{0,63} ":" bare-value')
        rules.add("bare-object", '"{" (bare-member ("," bare-member)*)? "}"')
        rules.add("bare-list", '"[" (bare-value ("," bare-value)*)? "]"')
        return rules.add("bare-value", f"{text} | {word} | bare-object | bare-list")

    def _key(self, name: str) -> str:
        return name if re.fullmatch(r"[\w.-]+", name) else f"{self.quote}{name}{self.quote}"

    def _format_value(self, value: Any) -> str:  # noqa: ANN401 (any JSON)
        """Formats a value as Gemma's templates do."""
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{self._key(key)}:{self._format_value(value[key])}" for key in sorted(value)) + "}"
        if isinstance(value, Sequence):
            return f"[{','.join(map(self._format_value, value))}]"
        return json.dumps(value)
