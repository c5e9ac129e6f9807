"""Tools that an answer may call, and properties of their schemas."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import msgspec

from weft.errors import InvalidRequestError
from weft.fields.excerpt import excerpt

SCHEMA_NOTES = frozenset(
    {"title", "description", "$schema", "$id", "$comment", "default", "examples", "deprecated", "readOnly", "writeOnly"}
)
"""Keywords of a schema that do not restrict a value."""

_DEFINITIONS = frozenset(("$defs", "definitions"))


class Tool(msgspec.Struct, frozen=True):
    """Function that a model may call."""

    name: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments, an object."""
    is_strict: bool = False
    """True to reject a schema that cannot be enforced completely."""

    @property
    def properties(self) -> Mapping[str, Any]:
        """Schemas of the arguments, by name."""
        given = self.parameters.get("properties")
        return given if isinstance(given, Mapping) else {}

    @property
    def required(self) -> frozenset[str]:
        """Names of the required arguments."""
        given = self.parameters.get("required")
        return frozenset(name for name in given if isinstance(name, str)) if isinstance(given, list) else frozenset()

    @property
    def definitions(self) -> dict[str, Any]:
        """The part of the schema that other parts may refer to."""
        return {key: self.parameters[key] for key in _DEFINITIONS if key in self.parameters}

    def schema_of(self, name: str) -> dict[str, Any]:
        """Returns the schema of an argument, with the definitions that it may refer to."""
        schema = self.properties.get(name)
        if not isinstance(schema, Mapping):
            return {}
        return {**schema, **self.definitions}

    def check_enforced(self, schema: Mapping[str, Any], enforced: AbstractSet[str]) -> None:
        """Rejects keywords of a strict tool's schema that are not among those that the format's grammar enforces.

        Raises:
            InvalidRequestError: The schema has such a keyword.
        """
        if self.is_strict and (unenforced := schema.keys() - SCHEMA_NOTES - _DEFINITIONS - enforced):
            raise self.not_enforceable(min(unenforced))

    def not_enforceable(self, what: str) -> InvalidRequestError:
        """Returns the error for a part of a strict tool's schema that the format's grammar cannot enforce."""
        why = f"but the format of this model's calls cannot enforce {excerpt(what)} of its schema"
        return InvalidRequestError("tools", f"the tool {self.name} is strict, {why}")

    def not_expressible(self, argument: str) -> InvalidRequestError:
        """Returns the error for an argument that the format cannot express."""
        why = f"has an argument {excerpt(argument)}, which the format of this model's calls cannot express"
        return InvalidRequestError("tools", f"the tool {self.name} {why}")


class ToolUse(msgspec.Struct, frozen=True):
    """Tools that an answer may call, and how."""

    tools: tuple[Tool, ...]
    is_required: bool = False
    """True if the answer must contain a call."""
    is_parallel: bool = True
    """True if the answer may contain several calls."""


NO_TOOLS = ToolUse(())


def words_of(schema: Mapping[str, Any]) -> Sequence[Any] | None:
    """Returns the only values that a schema allows; None if it does not list them."""
    return [schema["const"]] if "const" in schema else schema.get("enum")


def has_fixed_properties(tool: Tool) -> bool:
    """Returns True if the arguments are exactly the properties of the schema, and no other keyword relates them."""
    return "properties" in tool.parameters and not _COMBINING & tool.parameters.keys()


_COMBINING = {"anyOf", "oneOf", "allOf", "$ref", "not", "if", "const", "enum", "patternProperties"}


def _kinds(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yields the types that a schema allows explicitly, including the types of its constants."""
    kinds = schema.get("type")
    yield from [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(kind, str)]
    for part in (*_listed(schema, "anyOf"), *_listed(schema, "oneOf")):
        if isinstance(part, Mapping):
            yield from _kinds(part)
    yield from map(_kind, [*_listed(schema, "enum"), *([schema["const"]] if "const" in schema else ())])


def _listed(schema: Mapping[str, Any], word: str) -> Sequence[Any]:
    """Returns the list of a keyword; empty if it is no list, which the writer of the grammar rejects."""
    listed = schema.get(word)
    return listed if isinstance(listed, list | tuple) else ()


def _kind(value: Any) -> str:  # noqa: ANN401 (any JSON)
    """Returns the JSON schema type of a value."""
    return next(kind for kind, types in _TYPES.items() if isinstance(value, types))


# Booleans come first because they are integers in Python.
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
    """Returns True if a value must be a string. Keywords that should be lists and are not are ignored."""
    lists = [word for word in ("anyOf", "oneOf", "enum") if word in schema]
    return set(_kinds(schema)) == {"string"} and all(_listed(schema, word) for word in lists)


def can_be(schema: Mapping[str, Any], value: Any) -> bool:  # noqa: ANN401 (any JSON)
    """Returns True if a schema allows the type of a value, or restricts no type."""
    kinds = set(_kinds(schema))
    kind = _kind(value)
    return not kinds or "$ref" in schema or kind in kinds or (kind == "integer" and "number" in kinds)


def takes_any_text(schema: Mapping[str, Any], *, is_strict: bool) -> bool:
    """Returns True if a value can be any string, among other types. For a strict tool, no other keyword may restrict strings."""
    restrictions = {key: value for key, value in schema.items() if key not in SCHEMA_NOTES | _DEFINITIONS}
    if not restrictions:
        return True
    if restrictions.keys() == {"anyOf"} and isinstance(restrictions["anyOf"], list):
        parts = [part if isinstance(part, Mapping) else {"const": None} for part in restrictions["anyOf"]]
        are_free = [takes_any_text(part, is_strict=False) for part in parts]
        return any(are_free) and not (is_strict and any(_restricts(part) for part in parts))
    kinds = restrictions.get("type")
    has_text = "string" in (kinds if isinstance(kinds, list) else [kinds])
    return has_text and (_STRING_KEYWORDS.isdisjoint(restrictions)) and not (is_strict and _restricts(restrictions))


_STRING_KEYWORDS = {
    "enum",
    "const",
    "pattern",
    "minLength",
    "maxLength",
    "format",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "$ref",
    "if",
}
"""Keywords of a schema that may restrict a string."""


def _restricts(schema: Mapping[str, Any]) -> bool:
    """Returns True if a schema restricts more than the type of a value."""
    return bool(schema.keys() - SCHEMA_NOTES - _DEFINITIONS - {"type"})
