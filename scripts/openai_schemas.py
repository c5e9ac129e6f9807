#!/usr/bin/env python
"""Takes from OpenAI's document of its API what tests hold answers to, without words: tests/server/openai_schemas.json.

    python scripts/openai_schemas.py DIRECTORY

The directory is a clone of https://github.com/openai/openai-openapi, of which the newest commit is taken.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOURCE = "https://github.com/openai/openai-openapi"

FILE = Path(__file__).parent.parent / "tests" / "server" / "openai_schemas.json"

ROUTES = (
    "post /chat/completions",
    "post /completions",
    "post /embeddings",
    "get /models",
    "get /models/{model}",
    "post /responses",
    "get /responses/{response_id}",
    "post /responses/{response_id}/cancel",
    "get /responses/{response_id}/input_items",
    "post /responses/input_tokens",
    "post /responses/compact",
    "post /conversations",
    "get /conversations/{conversation_id}",
    "post /conversations/{conversation_id}",
    "delete /conversations/{conversation_id}",
    "get /conversations/{conversation_id}/items",
    "post /conversations/{conversation_id}/items",
    "get /conversations/{conversation_id}/items/{item_id}",
    "delete /conversations/{conversation_id}/items/{item_id}",
)
"""Those that Weft has."""

FORMS = {"application/json": "whole", "text/event-stream": "stream"}

ERROR = "ErrorResponse"

WORDS = frozenset({"title", "description", "example", "examples", "default", "deprecated", "discriminator", "externalDocs"})
"""Keywords that ask for nothing."""

Json = Any


def taken(document: Json) -> tuple[dict[str, str], dict[str, Json]]:
    """By route and form the schemas of answers, by their names, and those with all that they name."""
    answers = {"error": ERROR}
    for route in ROUTES:
        method, path = route.split(" ")
        for kind, told in document["paths"][path][method]["responses"]["200"]["content"].items():
            answers[f"{route} {FORMS[kind]}"] = told["schema"]["$ref"].rpartition("/")[2]
    all_schemas = document["components"]["schemas"]
    schemas: dict[str, Json] = {}
    names = list(answers.values())
    while names:
        name = names.pop()
        if name not in schemas:
            schemas[name] = _bare(all_schemas[name])
            names += _named(schemas[name])
    return answers, dict(sorted(schemas.items()))


def _bare(schema: Json) -> Json:
    """The same schema without words."""
    if isinstance(schema, list):
        return [_bare(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if name not in WORDS and not name.startswith("x-")}
    # OpenAPI's way of before 3.1, which the document still has in places, and JSON Schema has not.
    may_be_null = kept.pop("nullable", False)
    bare = {name: _under(name, value) for name, value in kept.items()}
    return {"anyOf": [bare, {"type": "null"}]} if may_be_null else bare


def _under(name: str, value: Json) -> Json:
    """What stands under a keyword."""
    if name == "properties":
        return {each: _bare(one) for each, one in value.items()}
    return value if name in ("enum", "const", "required") else _bare(value)


def _named(schema: Json) -> Iterator[str]:
    match schema:
        case {"$ref": str(reference)}:
            yield reference.rpartition("/")[2]
        case dict():
            for one in schema.values():
                yield from _named(one)
        case list():
            for one in schema:
                yield from _named(one)


def written(about: dict[str, Json], answers: dict[str, str], schemas: dict[str, Json]) -> str:
    """The text of the file: a schema in a line."""
    lines = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in about.items()]
    told = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in answers.items()]
    lines.append('"answers": {\n' + ",\n".join(told) + "\n}")
    told = [f"  {json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}" for name, value in schemas.items()]
    lines.append('"components": {"schemas": {\n' + ",\n".join(told) + "\n}}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(directory: str) -> None:
    """Writes the file anew."""

    def git(*command: str) -> str:
        return subprocess.run(["git", "-C", directory, *command], check=True, capture_output=True, text=True).stdout

    about = {"source": SOURCE, "commit": git("rev-parse", "HEAD").strip(), "licence": git("show", "HEAD:LICENSE").strip()}
    FILE.write_text(written(about, *taken(json.loads(git("show", "HEAD:openapi.json")))), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
