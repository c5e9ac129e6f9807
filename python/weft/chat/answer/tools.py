"""The tools that an answer may call."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

__all__ = ["Tool", "ToolUse", "can_be_text", "has_fixed_properties", "is_text"]


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
    kinds = schema.get("type")
    yield from [kinds] if isinstance(kinds, str) else [kind for kind in kinds or () if isinstance(kind, str)]
    for word in ("anyOf", "oneOf"):
        for part in schema.get(word) or ():
            if isinstance(part, Mapping):
                yield from _kinds(part)
    values = [*(schema.get("enum") or ()), *([schema["const"]] if "const" in schema else ())]
    yield from {"string" if isinstance(value, str) else "other" for value in values}


def is_text(schema: Mapping[str, Any]) -> bool:
    """Whether a value can be nothing but a text."""
    kinds = set(_kinds(schema))
    return kinds == {"string"}


def can_be_text(schema: Mapping[str, Any]) -> bool:
    """Whether it can be one."""
    kinds = set(_kinds(schema))
    return not kinds or "string" in kinds or "$ref" in schema
