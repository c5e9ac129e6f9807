"""The page of the API at `/docs`, made of the OpenAPI document.

Litestar's own pages load their scripts from other hosts; this one is plain HTML, so that it works on a machine without a network.
"""

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from litestar import MediaType, Request, get

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = ["docs"]


@get("/docs", media_type=MediaType.HTML, include_in_schema=False)
async def docs(request: Request[Any, Any, Any]) -> str:
    """The page."""
    return _template().render(document=request.app.openapi_schema.to_schema(), type_of=type_of)


@cache
def _template() -> "Template":
    from jinja2 import Environment  # noqa: PLC0415 (a server whose page nobody reads needs none)

    text = (files("weft.server") / "docs.html").read_text(encoding="utf-8")
    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)


def type_of(schema: dict[str, Any]) -> str:
    """A schema in a few words: `list of integer`, `string or null`, or the name of an object that is described below."""
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if alternatives := schema.get("oneOf") or schema.get("anyOf"):
        return " or ".join(type_of(alternative) for alternative in alternatives)
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return f"list of {type_of(schema.get('items', {}))}"
    return str(kind)
