"""A JSON schema, in any of the ways that a Python user has one."""

from collections.abc import Mapping
from typing import Any

import msgspec

from weft.errors import InvalidRequest

__all__ = ["JsonSchema", "schema_text"]

JsonSchema = str | Mapping[str, Any] | bool | type[Any]
"""JSON text, an object (or True and False, which are schemas too), or a type whose values are to be written: a struct, a
dataclass, a typed dict, a model of pydantic's, or what these are made of."""


def schema_text(schema: JsonSchema) -> str:
    """The schema as JSON text.

    Raises:
        InvalidRequest: It is no schema, and no type that one can be made of.
    """
    if isinstance(schema, str):
        return schema
    try:
        if isinstance(schema, Mapping | bool):
            return msgspec.json.encode(schema).decode()
        made = schema.model_json_schema() if hasattr(schema, "model_json_schema") else msgspec.json.schema(schema)
        return msgspec.json.encode(made).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest("json_schema", f"json_schema is no JSON schema, and none can be made of it: {error}") from None
