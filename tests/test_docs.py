"""The pages of fields and of features are complete, and those that name tests name existing ones."""

import ast
import re
import runpy
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from tests.server.serving import serving
from weft.chat.conversation import ChatMessage
from weft.cli.arguments import ARGS, CACHE_LIST, DEVICES, RESPELLED
from weft.cli.flags_without_setting import ACCEPTED, Meaning
from weft.cli.spellings import all_spellings
from weft.server.anthropic.schemas import Block, CreateMessage, MessageParam, ToolParam
from weft.server.cache_api.schemas import PinBody
from weft.server.compat.stream import StreamBody
from weft.server.llamacpp.schemas import (
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    InfillBody,
    LoraScale,
    RerankBody,
    SlotActionBody,
    StreamsLookup,
    TokenizeBody,
)
from weft.server.ollama.schemas import ChatBody, EmbedBody, EmbeddingsBody, GenerateBody, GivenMessage, Options
from weft.server.openai.schemas import CreateChatCompletion, CreateCompletion, CreateEmbedding
from weft.server.request_fields.unsupported import unsupported_fields
from weft.server.requests_api.schemas import ForkBody
from weft.server.responses.schemas import CompactBody, ConversationBody, CountBody, CreateResponse
from weft.server.score_api.schemas import ScoreBody

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "reference" / "request-fields.md").read_text(encoding="utf-8")
"""The users' page of request fields."""

FIELD_TESTS = (TESTS / "fields.md").read_text(encoding="utf-8")
"""The tests of each field."""


@pytest.mark.parametrize(
    "body",
    [
        CompletionBody,
        InfillBody,
        CreateCompletion,
        CreateChatCompletion,
        ChatMessage,
        TokenizeBody,
        DetokenizeBody,
        SlotActionBody,
        StreamBody,
        ScoreBody,
        EmbeddingBody,
        RerankBody,
        CreateEmbedding,
        CreateMessage,
        MessageParam,
        Block,
        ToolParam,
        GenerateBody,
        ChatBody,
        GivenMessage,
        Options,
        EmbedBody,
        EmbeddingsBody,
        CreateResponse,
        CountBody,
        CompactBody,
        ConversationBody,
        StreamsLookup,
        ForkBody,
        PinBody,
        LoraScale,
    ],
    ids=lambda body: body.__name__,
)
def test_every_field_has_its_line_and_its_test(body: type[msgspec.Struct]) -> None:
    names = [field.encode_name for field in msgspec.structs.fields(body)]
    assert [name for name in names if f"`{name}`" not in PAGE] == []
    assert [name for name in names if f"`{name}`" not in FIELD_TESTS] == []


SCRIPT = runpy.run_path(str(TESTS.parent / "scripts" / "field_table.py"))


@pytest.mark.parametrize("path", SCRIPT["PAGES"], ids=lambda path: path.stem)
def test_generated_parts_are_those_of_the_code(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "\n?\n" not in text
    assert "| ? |" not in text
    assert SCRIPT["page"](text) == text, "run scripts/field_table.py"


def test_every_row_has_a_type_a_range_a_default_and_an_effect() -> None:
    tables = re.findall(r"^\| field \| type \| range \| default \| effect \|\n\|[- |]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    rows = [row for table in tables for row in table.splitlines()]
    assert len(rows) > 200
    assert [row for row in rows if not all(cell.strip() for cell in row.strip("|").split(" | ")) or row.count(" | ") != 4] == []


def test_the_users_page_names_no_test() -> None:
    assert "test_" not in PAGE


def test_every_test_of_a_field_is_there() -> None:
    named = re.findall(r"`((?:server|engine)/test_\w+)(?:::(test_\w+))?`", FIELD_TESTS)
    rows = re.findall(r"^\| .* \|$", FIELD_TESTS, re.MULTILINE)
    assert [row for row in rows if "/test_" not in row and row not in ("| field | tests |", "| --- | --- |")] == []
    assert len(named) > 200
    for file, test in named:
        source = (TESTS / f"{file}.py").read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {test}\(", source, re.MULTILINE) or not test, f"{file}::{test}"


GUIDES = TESTS.parent / "docs" / "guides"


def rows_of(page: str, *titles: str) -> list[list[str]]:
    """The rows of all tables of a guide with these titles."""
    text = (GUIDES / page).read_text(encoding="utf-8")
    head = re.escape(f"| {' | '.join(titles)} |")
    tables = re.findall(rf"^{head}\n\|[- |]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert tables, titles
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for table in tables for row in table.splitlines()]


def spelt(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_flag_without_a_setting_is_in_the_guide_from_llama_server() -> None:
    text = (GUIDES / "from-llama-server.md").read_text(encoding="utf-8")
    assert [name for flag in ACCEPTED for name in flag.names if f"`{name}`" not in text] == []


def test_every_field_that_ollamas_clients_may_not_use_is_in_the_guide_from_ollama() -> None:
    text = (GUIDES / "from-ollama.md").read_text(encoding="utf-8")
    names = [name for body in (ChatBody, GenerateBody, Options) for _, name, _ in unsupported_fields(body)]
    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.parametrize(
    ("page", "titles"),
    [
        ("from-vllm.md", ("vLLM", "Weft")),
        ("from-ollama.md", ("Ollama", "Weft")),
        ("from-ollama.md", ("instruction", "Weft")),
    ],
    ids=str,
)
def test_the_flags_that_guides_recommend_are_flags(page: str, titles: tuple[str, ...]) -> None:
    flags = [
        word for row in rows_of(page, *titles) for code in spelt(row[1]) for word in code.split() if re.match("--?[a-zA-Z]", word)
    ]
    known = {*all_spellings(), *ARGS, *CACHE_LIST, "--url", "--system"}
    assert flags
    assert [flag for flag in flags if flag not in known] == []


def test_fields_of_vllm_map_to_fields_that_are_there() -> None:
    bodies = (CreateCompletion, CreateChatCompletion)
    here = {field.encode_name for body in bodies for field in msgspec.structs.fields(body)}
    refused = set.intersection(*({name for _, name, _ in unsupported_fields(body)} for body in bodies))
    for theirs, ours, _ in rows_of("from-vllm.md", "vLLM", "Weft", "note"):
        names = set(spelt(theirs))
        assert names
        if ours != "same":
            # As the page warns, these are ignored.
            assert names & here == set()
        if ours != "ignored":
            found = names if ours == "same" else set(spelt(ours))
            assert found
            assert found <= here - refused


async def test_routes_that_guides_name_are_there_and_others_are_not() -> None:
    async with serving() as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
        page = await client.get("/")
    assert page.status_code == 200
    for routes, _ in rows_of("from-ollama.md", "route", "Weft"):
        for method, path in (route.split(" ") for route in spelt(routes)):
            assert path == "/" or method.lower() in paths[path], path
    for routes, ours in rows_of("from-vllm.md", "vLLM", "Weft"):
        for path in spelt(routes):
            if path.startswith("/"):
                assert (path in paths or path == "/metrics") == (not ours.startswith("none")), path


FEATURES = (TESTS.parent / "tests" / "features.md").read_text(encoding="utf-8")

DOCUMENTS = {"parallel server", "batching server", "llama.cpp server 2024", "stream server"}
TODAY = "llama-server today"
"""What came since has no document of those."""
OWN = "Weft"
"""What none of them has."""

KINDS = {"flags", "routes", "fields", "else"}
SINCE = sorted(KINDS - {"else"})


class Feature(NamedTuple):
    """A row of the page of features."""

    feature: str
    document: str
    here: str
    test: str

    @property
    def documents(self) -> set[str]:
        return DOCUMENTS if self.document == "all" else set(self.document.split(", "))

    @property
    def flags(self) -> list[str]:
        return re.findall(r"`(--?[a-zA-Z][\w.-]*)", self.feature)


def features() -> Iterator[Feature]:
    for table in re.findall(r"^\| feature \| document \| in Weft \| test \|\n\|[- |]+\|\n((?:\|.*\n)+)", FEATURES, re.MULTILINE):
        for row in table.splitlines():
            yield Feature(*(cell.strip() for cell in row.removeprefix("|").removesuffix("|").split(" | ")))


ROWS = list(features())


class Named(NamedTuple):
    """Something that a document names."""

    document: str
    kind: str
    name: str


def named() -> Iterator[Named]:
    for line in (TESTS / "document_features.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            told, names = line.split(": ", 1)
            document, kind = told.split(", ")
            yield from (Named(document, kind, name) for name in names.split(", "))


def words_of(cell: str) -> set[str]:
    """The words of what is spelt in a cell."""
    return {word for spelt in re.findall(r"`([^`]+)`", cell) for word in re.findall(r"[\w:]+", spelt)}


@pytest.mark.parametrize(("document", "kind"), [*product(sorted(DOCUMENTS), sorted(KINDS)), *product([TODAY], SINCE)])
def test_all_that_a_document_names_stands_in_a_row_of_it(document: str, kind: str) -> None:
    names = [name for of, what, name in named() if (of, what) == (document, kind)]
    assert names
    rows = [row for row in ROWS if document in row.documents]
    there = {
        "flags": {flag for row in rows for flag in row.flags},
        "routes": {spelt for row in rows for spelt in re.findall(r"`([^`]+)`", row.feature)},
        "fields": {word for row in rows for word in words_of(row.feature) | words_of(row.here)},
    }
    if kind == "else":
        assert [name for name in names if name not in FEATURES] == []
    else:
        assert [name for name in names if name not in there[kind]] == []


def test_every_document_and_kind_of_the_list_is_known() -> None:
    there = {(document, kind) for document, kind, _ in named()}
    assert there == {*product(DOCUMENTS, KINDS), *product([TODAY], SINCE)}


@cache
def functions_of(file: str) -> set[str]:
    """The functions of a file of tests."""
    tree = ast.parse((TESTS.parent / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_table_of_features_is_read() -> None:
    assert len(ROWS) == len(re.findall(r"^\| .*`tests/", FEATURES, re.MULTILINE))
    assert len(ROWS) > 100
    assert {document for row in ROWS for document in row.documents} == DOCUMENTS | {TODAY, OWN}


@pytest.mark.parametrize("row", [pytest.param(row, id=f"{row.feature} ({row.document})") for row in ROWS])
def test_every_feature_has_a_test_that_is_there(row: Feature) -> None:
    named = [test.split("::") for test in re.findall(r"`([^`]+)`", row.test)]
    assert named, "it has no test"
    assert [f"{file}::{test}" for file, test in named if test not in functions_of(file)] == []
    assert all(test.startswith("test_") for _, test in named)


@pytest.mark.parametrize("row", [pytest.param(row, id=f"{row.feature} ({row.document})") for row in ROWS if row.flags])
def test_every_flag_of_a_feature_is_known_to_the_command_line(row: Feature) -> None:
    spellings = all_spellings()
    respelled = RESPELLED["stream"] if row.documents == {"stream server"} else {}
    for flag in row.flags:
        spelling = respelled.get(flag, flag).replace("_", "-")
        assert spelling in spellings or spelling in (*ARGS, *CACHE_LIST, *DEVICES), flag
        accepted = spellings[spelling].accepted if spelling in spellings else None
        is_refused = accepted is not None and accepted.meaning is Meaning.MISSING
        assert is_refused == row.here.startswith("refused: "), f"{flag}: {row.here}"
