"""The output constraint of a request: one grammar or one JSON schema, from any of several fields."""

from typing import Any, NamedTuple

import msgspec

from weft import InvalidRequestError
from weft.fields.excerpt import excerpt
from weft.server.request_fields.fields import CompletionFields

ANY_OBJECT = '{"type":"object"}'
"""Schema of `json_object` without its own schema."""


class Constraint(NamedTuple):
    """A GBNF grammar or the text of a JSON schema, with the field that set it. Without either, the output is unconstrained."""

    grammar: str | None = None
    json_schema: str | None = None
    field: str = "grammar"


def constraint(body: CompletionFields) -> Constraint | None:
    """Returns the constraint of a body, or None to use the server's default.

    Raises:
        InvalidRequestError: There are several constraints, or the format is unknown.
    """
    parsed = []
    if body.grammar:
        parsed.append(Constraint(grammar=body.grammar))
    if body.json_schema is not None:
        parsed.append(Constraint(json_schema=_text(body.json_schema), field="json_schema"))
    if body.response_format:
        schema = _schema(body.response_format)
        if schema is not None:
            parsed.append(Constraint(json_schema=schema, field="response_format"))
    if len(parsed) > 1:
        first, second, *_ = parsed
        raise InvalidRequestError(second.field, f"{second.field} cannot be combined with {first.field}; give one of them")
    return parsed[0] if parsed else None


def _schema(response_format: dict[str, Any]) -> str | None:
    """Returns the schema of OpenAI's `response_format`, or None for free text."""
    match response_format:
        case {"type": None | "text"}:
            return None
        case {"type": "json_object"}:
            schema = response_format.get("schema")
            return ANY_OBJECT if schema is None else _text(schema)
        case {"type": "json_schema", "json_schema": {"schema": schema}} if schema is not None:
            return _text(schema)
        case {"type": "json_schema"}:
            raise InvalidRequestError("response_format", "response_format.json_schema.schema must be given")
        case {"type": kind}:
            message = f"response_format.type is {excerpt(kind)}; it must be 'text', 'json_object' or 'json_schema'"
            raise InvalidRequestError("response_format", message)
    raise InvalidRequestError("response_format", "response_format has no type; it must be 'text', 'json_object' or 'json_schema'")


def _text(schema: Any) -> str:  # noqa: ANN401 (any JSON)
    return msgspec.json.encode(schema).decode()
