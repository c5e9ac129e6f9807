"""The tools that an answer may call."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

__all__ = ["SCHEMA_NOTES", "Tool", "ToolUse", "can_be", "has_fixed_properties", "is_text", "takes_any_text"]

SCHEMA_NOTES = frozenset(
    {"title", "description", "$schema", "$id", "$comment", "default", "examples", "deprecated", "readOnly", "writeOnly"}
)
"""Words of a schema that do not restrict a value."""


class Tool(msgspec.Struct, frozen=True):
    """A function that may be called."""

    name: str
    parameters: Mapping[str, Any]
    """The JSON schema of its arguments, which are an object."""
    is_strict: bool = False
    """Whether a schema that cannot be held to in all it says is refused."""

    @property
    def properties(self) -> Mapping[str, Any]:
        """The schema of each argument that has one of its own."""
        given = self.parameters.get("properties")
        return given if isinstance(given, Mapping) else {}

    @property
    def required(self) -> frozenset[str]:
        """Those that must be given."""
        given = self.parameters.get("required")
        return frozenset(name for name in given if isinstance(name, str)) if isinstance(given, list) else frozenset()

    def schema_of(self, name: str) -> dict[str, Any]:
        """The schema of one argument, with the definitions that it may refer to."""
        schema = self.properties.get(name)
        if not isinstance(schema, Mapping):
            return {}
        shared = {key: self.parameters[key] for key in ("$defs", "definitions") if key in self.parameters}
        return {**schema, **shared}


class ToolUse(msgspec.Struct, frozen=True):
    """Which tools an answer may call, and how."""

    tools: tuple[Tool, ...]
    is_required: bool = False
    """Whether it must call one."""
    is_parallel: bool = True
    """Whether it may call several times."""


def has_fixed_properties(tool: Tool) -> bool:
    """Whether its arguments are the properties that its schema names, and nothing else is said of them together."""
    return "properties" in tool.parameters and not _COMBINING & tool.parameters.keys()


_COMBINING = {"anyOf", "oneOf", "allOf", "$ref", "not", "if", "const", "enum", "patternProperties"}


def _kinds(schema: Mapping[str, Any]) -> Iterator[str]:
    """The types that a schema names, those of its values among them."""
    kinds = schema.get("type")
    yield from [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(kind, str)]
    for part in (*_listed(schema, "anyOf"), *_listed(schema, "oneOf")):
        if isinstance(part, Mapping):
            yield from _kinds(part)
    yield from map(_kind, [*_listed(schema, "enum"), *([schema["const"]] if "const" in schema else ())])


def _listed(schema: Mapping[str, Any], word: str) -> Sequence[Any]:
    """What a word of a schema lists; nothing where that is no list, which whoever writes its grammar refuses."""
    listed = schema.get(word)
    return listed if isinstance(listed, list | tuple) else ()


def _kind(value: Any) -> str:  # noqa: ANN401 (any JSON)
    """The type of a value, as schemas call it."""
    return next(kind for kind, types in _TYPES.items() if isinstance(value, types))


# What is true or false is an integer to Python.
_TYPES: dict[str, type | tuple[type, ...]] = {
    "boolean": bool,
    "string": str,
    "integer": int,
    "number": float,
    "array": (list, tuple),
    "object": Mapping,
    "null": object,
}


def is_text(schema: Mapping[str, Any]) -> bool:
    """Whether a value can be nothing but a text. A word that must list something and does not says nothing of it."""
    lists = [word for word in ("anyOf", "oneOf", "enum") if word in schema]
    return set(_kinds(schema)) == {"string"} and all(_listed(schema, word) for word in lists)


def can_be(schema: Mapping[str, Any], value: Any) -> bool:  # noqa: ANN401 (any JSON)
    """Whether a value is of a type that it can have. Where a schema names none, or another schema, any will do."""
    kinds = set(_kinds(schema))
    kind = _kind(value)
    return not kinds or "$ref" in schema or kind in kinds or (kind == "integer" and "number" in kinds)


_NOTES = {"title", "description", "$schema", "$id", "$comment", "default", "examples", "deprecated", "readOnly", "writeOnly"}


def takes_any_text(schema: Mapping[str, Any], *, is_strict: bool) -> bool:
    """Returns whether a value can be any text, whatever else it can be; of a strict tool, whatever that text looks like."""
    said = {key: value for key, value in schema.items() if key not in _NOTES | {"$defs", "definitions"}}
    if not said:
        return True
    if said.keys() == {"anyOf"} and isinstance(said["anyOf"], list):
        parts = [part if isinstance(part, Mapping) else {"const": None} for part in said["anyOf"]]
        are_free = [takes_any_text(part, is_strict=False) for part in parts]
        return any(are_free) and not (is_strict and any(_restricts(part) for part in parts))
    kinds = said.get("type")
    has_text = "string" in (kinds if isinstance(kinds, list) else [kinds])
    return has_text and (_TEXT_WORDS.isdisjoint(said)) and not (is_strict and _restricts(said))


_TEXT_WORDS = {"enum", "const", "pattern", "minLength", "maxLength", "format", "allOf", "anyOf", "oneOf", "not", "$ref", "if"}
"""Words of a schema that may restrict a text."""


def _restricts(schema: Mapping[str, Any]) -> bool:
    """Returns whether a schema says more of a value than its type."""
    return bool(schema.keys() - _NOTES - {"type", "$defs", "definitions"})
