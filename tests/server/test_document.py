"""The OpenAPI document is one."""

import jsonschema_rs
from schemathesis.specs.openapi.definitions import OPENAPI_31

from tests.server.serving import serving


async def test_the_document_is_what_openapi_says_a_document_is() -> None:
    async with serving() as client:
        document = (await client.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    flaws = jsonschema_rs.validator_for(OPENAPI_31).iter_errors(document)
    assert [(list(flaw.instance_path), flaw.message) for flaw in flaws] == []
    # A reference that leads nowhere is no flaw to a schema.
    assert _lost(document, document) == []
    operations = [operation for path in document["paths"].values() for operation in path.values() if isinstance(operation, dict)]
    names = [operation["operationId"] for operation in operations if "operationId" in operation]
    assert len(names) == len(set(names)) > 20


async def test_the_document_tells_the_words_that_a_field_takes() -> None:
    async with serving() as client:
        document = (await client.get("/openapi.json")).json()
    told = document["components"]["schemas"]["CreateEmbedding"]["properties"]["encoding_format"]
    assert told["enum"] == ["float", "base64", None]


async def test_the_document_has_the_paths_of_a_route_beside_each_other() -> None:
    async with serving() as client:
        document = (await client.get("/openapi.json")).json()
    assert list(document["paths"])[:5] == ["/completion", "/completions", "/infill", "/tokenize", "/detokenize"]


def _lost(node: object, document: dict[str, object]) -> list[str]:
    """References that lead nowhere."""
    if isinstance(node, list):
        return [lost for each in node for lost in _lost(each, document)]
    if not isinstance(node, dict):
        return []
    lost = [name for each in node.values() for name in _lost(each, document)]
    if isinstance(reference := node.get("$ref"), str):
        place: object = document
        for name in reference.removeprefix("#/").split("/"):
            place = place.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) else None
        lost += [reference] if place is None else []
    return lost
