"""What a body says that the text must follow: one grammar or one schema, by whatever field it comes."""

from typing import Any, NamedTuple

import msgspec

from weft import InvalidRequest
from weft.fields.shown import shown
from weft.server.request_fields.fields import CompletionFields

__all__ = ["Constraint", "constraint"]

ANY_OBJECT = '{"type":"object"}'
"""What `json_object` asks for where it brings no schema of its own."""


class Constraint(NamedTuple):
    """A grammar in GBNF or the text of a JSON schema, and the field that asked for it; no text is no constraint."""

    grammar: str | None = None
    json_schema: str | None = None
    field: str = "grammar"


def constraint(body: CompletionFields) -> Constraint | None:
    """What the body asks for; None where it says nothing, so that the server's own default holds.

    Raises:
        InvalidRequest: it asks twice, or for a format that there is not.
    """
    asked = []
    if body.grammar:
        asked.append(Constraint(grammar=body.grammar))
    if body.json_schema is not None:
        asked.append(Constraint(json_schema=_text(body.json_schema), field="json_schema"))
    if body.response_format:
        schema = _schema(body.response_format)
        if schema is not None:
            asked.append(Constraint(json_schema=schema, field="response_format"))
    if len(asked) > 1:
        first, second, *_ = asked
        raise InvalidRequest(second.field, f"{second.field} cannot stand beside {first.field}; give one of them")
    return asked[0] if asked else None


def _schema(response_format: dict[str, Any]) -> str | None:
    """The schema of OpenAI's field, or None for free text."""
    match response_format:
        case {"type": None | "text"}:
            return None
        case {"type": "json_object"}:
            schema = response_format.get("schema")
            return ANY_OBJECT if schema is None else _text(schema)
        case {"type": "json_schema", "json_schema": {"schema": schema}} if schema is not None:
            return _text(schema)
        case {"type": "json_schema"}:
            raise InvalidRequest("response_format", "response_format.json_schema.schema must be given")
        case {"type": kind}:
            message = f"response_format.type is {shown(kind)}; it must be 'text', 'json_object' or 'json_schema'"
            raise InvalidRequest("response_format", message)
    raise InvalidRequest("response_format", "response_format has no type; it must be 'text', 'json_object' or 'json_schema'")


def _text(schema: Any) -> str:  # noqa: ANN401 (any JSON)
    return msgspec.json.encode(schema).decode()
