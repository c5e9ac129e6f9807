"""The pages of the HTTP API are generated from the code and the recorded answers, and a server still answers in these shapes."""

import asyncio
import contextlib
import io
import json
import re
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts import api_pages
from scripts.api_pages import Answer, Example, answer_of, curl, examples, filled, prepared, python, recorded, shape_of

HEAD = "\nstatus %{http_code} %{content_type}"
"""Output of curl after the body."""


@pytest.fixture(scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, str]]:
    """Addresses of the servers that the examples need."""
    async with api_pages.servers(tmp_path_factory.mktemp("api")) as urls:
        yield urls


def test_the_pages_are_current() -> None:
    for path, text in api_pages.pages().items():
        assert path.read_text(encoding="utf-8") == text, "python -m scripts.api_pages"


def test_each_operation_is_on_one_page() -> None:
    written = list(api_pages.texts()["operations"])
    keys = [operation.keys for operation in api_pages.operations()]
    assert [names for names in keys if len(set(names) & set(written)) != 1] == []
    assert sorted(name for name in written if not any(name in names for names in keys)) == []
    assert len(keys) > 60


def test_each_example_has_an_answer_of_success_but_where_models_would_change() -> None:
    assert list(recorded()) == [example.name for example in examples()]
    refused = [name for name, answer in recorded().items() if answer.status >= 300]
    assert refused == ["POST /api/pull", "DELETE /api/delete"]


def test_no_parameter_is_described_that_an_operation_does_not_have() -> None:
    for operation in api_pages.operations():
        [key] = set(operation.keys) & set(api_pages.texts()["operations"])
        written = api_pages.texts()["operations"][key]
        parameters = {parameter["name"] for parameter in operation.spec.get("parameters", [])}
        assert set(written.get("parameters", {})) <= parameters, key


def test_pages_and_the_openapi_document_describe_fields_by_the_same_words() -> None:
    described = 0
    for operation in api_pages.operations():
        [key] = set(operation.keys) & set(api_pages.texts()["operations"])
        page = (api_pages.PAGES / f"{operation.page}.md").read_text(encoding="utf-8")
        for name, text in api_pages.described(operation, api_pages.texts()["operations"][key].get("show", [])).items():
            words = re.sub(r"(?<![`\w])-(?=\d)", "−", text.meaning[1:])
            assert re.search(rf"^\| `{name}` \| .*{re.escape(words)}[. ]", page, re.MULTILINE), (key, name)
            described += 1
    assert described > 150


def test_every_described_field_is_one_of_a_body() -> None:
    described = tomllib.loads((api_pages.ROOT / "python/weft/server/field_texts.toml").read_text(encoding="utf-8"))
    schemas = api_pages.document()["components"]["schemas"]
    common = described.pop("common")
    assert [
        f"{body}.{name}" for body, texts in described.items() for name in texts if name not in schemas[body]["properties"]
    ] == []
    assert common.keys() - {name for schema in schemas.values() for name in schema.get("properties", {})} == set()


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
async def test_a_server_answers_the_command_in_the_recorded_shape(example: Example, servers: dict[str, str]) -> None:
    url = servers[example.server]
    async with prepared(example, url) as values:
        command = curl(example, values, url).replace("curl ", f"curl -s -m 60 -w '{HEAD}' ", 1)
        shell = await asyncio.create_subprocess_exec("bash", "-c", command, stdout=asyncio.subprocess.PIPE)
        output, _ = await shell.communicate()
    text, _, head = output.decode().rpartition("\nstatus ")
    status, _, content_type = head.partition(" ")
    assert shape_of(answer_of(int(status), content_type, text, values)) == shape_of(recorded()[example.name])


def close_client(client: Any) -> None:  # noqa: ANN401 (of three packages)
    """Closes the connections of an official client, which a program of its own leaves to its end."""
    # Ollama's client closes by its connection only.
    closable = getattr(client, "_client", None) if type(client).__module__.startswith("ollama") else client
    if closable is not None:
        closable.close()


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
async def test_the_program_runs(example: Example, servers: dict[str, str]) -> None:
    url = servers[example.server]
    printed = io.StringIO()
    async with prepared(example, url) as values:
        program = compile(python(example, values, url), example.name, "exec")
        names: dict[str, object] = {"__name__": "__main__"}
        with contextlib.redirect_stdout(printed):
            exec(program, names)
        close_client(names.get("client"))
    assert printed.getvalue().strip()
    assert printed.getvalue().startswith("{'error'") == (recorded()[example.name].status >= 400)


@pytest.mark.parametrize("example", [one for one in examples() if one.body], ids=lambda example: example.name)
def test_both_forms_of_an_example_send_its_body(example: Example) -> None:
    sent: list[object] = []

    def take(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(200, json={})

    answer = recorded()[example.name]
    if not example.python:
        with httpx.Client(transport=httpx.MockTransport(take)) as client:
            exec(python(example, answer.values).replace("import httpx\n", ""), {"httpx": client})
        assert sent == [json.loads(filled(example.body, answer.values))]
    assert filled(example.body, answer.values) in curl(example, answer.values)


def test_shapes_differ_by_keys_types_and_status() -> None:
    def of(body: object, status: int = 200) -> object:
        return shape_of(Answer(status, "application/json", body, {}))

    assert of({"a": [1, 2.5], "b": None}) == of({"b": None, "a": [3]})
    assert len({json.dumps(of(body)) for body in ({"a": 1}, {"a": "1"}, {"b": 1}, {"a": None}, [{"a": 1}])}) == 5
    assert of({}) != of({}, 400)


def test_no_page_names_a_folder_of_this_machine() -> None:
    for path in (api_pages.RECORDED, *api_pages.pages()):
        text = path.read_text(encoding="utf-8")
        assert str(Path(api_pages.ROOT)) not in text
        assert "/tmp/" not in text
