"""Files that documents are imported from and exported to."""

import random

import msgspec
import pytest

from weft.documents.formats import SavedDocument, SavedNode, export, parse
from weft.documents.records import Alternative, Span
from weft.errors import InvalidRequestError

DOCUMENT = SavedDocument(
    title="The fox",
    folder="stories",
    settings={"memory": "A fox is red."},
    nodes=[
        SavedNode(id=1, text="There was a fox."),
        SavedNode(
            id=4,
            parent=1,
            text=" It ran. 🦊",
            spans=[Span(3, 7, -0.5, (Alternative(7, -0.5, b" It"), Alternative(8, -1.5, b"\xf0\x9f"))), Span(5), Span(0, 2)],
            model="model",
            digest="digest",
            parameters={"n_predict": 8},
            finish_reason="length",
            is_bookmarked=True,
        ),
        SavedNode(id=3, parent=1, text=" It slept.", label="Night", note="shorter", is_trashed=True),
        SavedNode(id=9, parent=4, text=" Then", is_interrupted=True),
    ],
)


def test_json_has_everything() -> None:
    assert parse("json", export("json", DOCUMENT)) == DOCUMENT


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        pytest.param([{"id": 1, "parent": 2, "text": ""}], "node 1 does not follow its parent", id="no parent"),
        pytest.param([{"id": 1, "text": ""}, {"id": 1, "text": ""}], "its id occurs twice", id="twice"),
        pytest.param([{"id": 1, "text": "a", "spans": [[2, 3, None, []]]}], "do not fit its text", id="too long"),
        pytest.param([{"id": 1, "text": "a", "spans": [[-1, 3, None, []]]}], "do not fit its text", id="negative"),
        pytest.param([{"id": 1}], "is no document of Weft: .*`text`", id="no text"),
    ],
)
def test_json_that_is_no_tree_is_refused(nodes: list[object], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        parse("json", msgspec.json.encode({"format": "weft document", "version": 1, "nodes": nodes}))


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"format": "weft document", "version": 2}'])
def test_other_files_are_no_json_documents(data: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        parse("json", data if data != b"{}" else b'{"format": "weft tree"}')


def test_text_is_the_path_to_a_node() -> None:
    assert export("text", DOCUMENT, 3).decode() == "There was a fox. It slept."
    assert export("text", DOCUMENT).decode() == "There was a fox. It ran. 🦊 Then"
    with pytest.raises(InvalidRequestError, match="the document has no node 7"):
        export("text", DOCUMENT, 7)


def test_text_is_imported_as_one_node() -> None:
    assert parse("text", "\ufeffOnce 🦊".encode()).nodes == [SavedNode(id=1, text="Once 🦊")]
    with pytest.raises(InvalidRequestError, match="is not UTF-8"):
        parse("text", b"\xff\xfe")


def test_markdown_has_the_title_and_chapters() -> None:
    made = export("markdown", DOCUMENT, 3).decode()
    assert made == "# The fox\n\nThere was a fox.\n\n## Night\n\n It slept."
    read = parse("markdown", made.encode())
    assert read.title == "The fox"
    assert [(node.label, node.text.strip()) for node in read.nodes] == [("", "There was a fox."), ("Night", "It slept.")]


@pytest.mark.parametrize("name", ["json", "markdown", "text"])
def test_no_file_breaks_a_parser(name: str) -> None:
    source = random.Random(name)
    whole = export(name, DOCUMENT)  # type: ignore[arg-type]
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(source.randrange(1, 6)):
            at = source.randrange(len(data))
            data[at : at + source.randrange(3)] = source.randbytes(source.randrange(3))
        try:
            read = parse(name, bytes(data))  # type: ignore[arg-type]
        except InvalidRequestError:
            continue
        assert isinstance(read, SavedDocument)


@pytest.mark.parametrize("span", [[1, 2**31, None, []], [1, -1, None, []], [1, 7, 0.0, [[2**60, 0.0, "YQ=="]]]], ids=str)
def test_tokens_that_no_model_has_are_refused(span: list[object]) -> None:
    nodes = [{"id": 1, "text": "a", "spans": [span]}]
    with pytest.raises(InvalidRequestError):
        parse("json", msgspec.json.encode({"format": "weft document", "version": 1, "nodes": nodes}))
