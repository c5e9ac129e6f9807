"""JSON schemas in the forms that Python programs have them in."""

from collections.abc import Mapping
from typing import Any

import msgspec

from weft.errors import InvalidRequestError

JsonSchema = str | Mapping[str, Any] | bool | type[Any]
"""JSON text, an object (or True or False, which are valid schemas), or a type to derive a schema from: a struct, a dataclass, a
typed dict, a pydantic model, or a composition of these."""


def schema_text(schema: JsonSchema) -> str:
    """Returns the schema as JSON text.

    Raises:
        InvalidRequestError: The value is not a schema, and no schema can be derived from it.
    """
    if isinstance(schema, str):
        return schema
    try:
        if isinstance(schema, Mapping | bool):
            return msgspec.json.encode(schema).decode()
        made = schema.model_json_schema() if hasattr(schema, "model_json_schema") else msgspec.json.schema(schema)
        return msgspec.json.encode(made).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(
            "json_schema", f"json_schema is not a JSON schema, and none can be derived from it: {error}"
        ) from None
