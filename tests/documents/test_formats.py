"""Files that documents are imported from and exported to."""

import json
import random
from typing import Any

import msgspec
import pytest

from weft.documents.formats import ParsedFile, SavedDocument, SavedNode, export, parse
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
    assert parse("json", export("json", DOCUMENT)).document == DOCUMENT


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        pytest.param([{"id": 1, "parent": 2, "text": ""}], "node 1 does not follow its parent", id="no parent"),
        pytest.param([{"id": 1, "text": ""}, {"id": 1, "text": ""}], "its id occurs twice", id="twice"),
        pytest.param([{"id": 1, "text": "a", "spans": [[2, 3, None, []]]}], "do not fit its text", id="too long"),
        pytest.param([{"id": 1, "text": "a", "spans": [[-1, 3, None, []]]}], "do not fit its text", id="negative"),
        pytest.param([{"id": 1}], "is not a document of Weft: .*`text`", id="no text"),
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
    assert parse("text", "\ufeffOnce 🦊".encode()).document.nodes == [SavedNode(id=1, text="Once 🦊")]
    with pytest.raises(InvalidRequestError, match="is not UTF-8"):
        parse("text", b"\xff\xfe")


def test_markdown_has_the_title_and_chapters() -> None:
    made = export("markdown", DOCUMENT, 3).decode()
    assert made == "# The fox\n\nThere was a fox.\n\n## Night\n\n It slept."
    read = parse("markdown", made.encode()).document
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
            read = parse(name, bytes(data)).document  # type: ignore[arg-type]
        except InvalidRequestError:
            continue
        assert isinstance(read, SavedDocument)


@pytest.mark.parametrize("span", [[1, 2**31, None, []], [1, -1, None, []], [1, 7, 0.0, [[2**60, 0.0, "YQ=="]]]], ids=str)
def test_tokens_that_no_model_has_are_refused(span: list[object]) -> None:
    nodes = [{"id": 1, "text": "a", "spans": [span]}]
    with pytest.raises(InvalidRequestError):
        parse("json", msgspec.json.encode({"format": "weft document", "version": 1, "nodes": nodes}))


LOOM = {
    "root": {
        "id": "r",
        "text": "",
        "mutable": False,
        "children": [
            {
                "id": "a",
                "text": "There was a fox.",
                "parent_id": "r",
                "chapter_id": "c",
                "tags": ["bookmark", "own"],
                "generation": {"id": "g", "index": 2},
                "children": [
                    {"id": "b", "text": " It ran.", "parent_id": "a", "open": 1, "children": []},
                    {"id": "d", "text": " It slept 🦊.", "parent_id": "a", "tags": [], "children": []},
                ],
            }
        ],
    },
    "chapters": {"c": {"id": "c", "root_id": "a", "title": "Night"}},
    "preferences": {"reverse": False},
}
"""A tree with the fields of real ones."""


def test_a_tree_of_a_loom_returns_unchanged() -> None:
    read = parse("loom", json.dumps(LOOM).encode()).document
    assert [(node.parent, node.text, node.label, node.is_bookmarked) for node in read.nodes] == [
        (None, "", "", False),
        (1, "There was a fox.", "Night", True),
        (2, " It ran.", "", False),
        (2, " It slept 🦊.", "", False),
    ]
    assert json.loads(export("loom", read)) == LOOM
    assert json.loads(export("loom", parse("json", export("json", read)).document)) == LOOM


def test_bookmarks_of_a_loom_follow_the_document() -> None:
    read = parse("loom", json.dumps(LOOM).encode()).document
    read.nodes[1].is_bookmarked, read.nodes[2].is_bookmarked = False, True
    root = json.loads(export("loom", read))["root"]
    assert root["children"][0]["tags"] == ["own"]
    assert root["children"][0]["children"][0]["tags"] == ["bookmark"]


def test_every_document_is_a_tree_of_a_loom() -> None:
    root = json.loads(export("loom", SavedDocument(nodes=[SavedNode(id=1, text="a"), SavedNode(id=2, text="b")])))["root"]
    assert [child["text"] for child in root["children"]] == ["a", "b"]
    assert json.loads(export("loom", SavedDocument()))["root"]["children"] == []
    n = 5_000
    deep = SavedDocument(nodes=[SavedNode(id=nth, parent=nth - 1 or None, text="x") for nth in range(1, n + 1)])
    assert export("loom", deep).count(b"]}") == n
    with pytest.raises(InvalidRequestError, match="not a tree of loom"):
        parse("loom", export("loom", deep))


SESSION: dict[str, Any] = {
    "name": "The fox",
    "prompt": [
        {"type": "user", "content": "There was"},
        {"content": " a", "prob": 0.5, "completion_probabilities": [{"content": " a", "probs": []}]},
        {"content": " fox", "prob": 0.25},
        {"type": "user", "content": "."},
    ],
    "memoryTokens": {"contextOrder": "{memText}{prompt}", "prefix": "[", "text": "A fox is red.", "suffix": "]"},
    "authorNoteTokens": {"text": "short", "prefix": "", "suffix": ""},
    "authorNoteDepth": 2,
    "worldInfo": {"mikuPediaVersion": 1, "entries": [{"displayName": "fox", "text": "red", "keys": ["fox", ""], "search": ""}]},
    "temperature": 0.7,
}


def test_a_session_of_mikupad_returns_unchanged() -> None:
    # Every value is a JSON text.
    data = json.dumps({name: json.dumps(value) for name, value in SESSION.items()}).encode()
    read = parse("mikupad", data).document
    assert [node.text for node in read.nodes] == ["There was", " a fox", "."]
    assert read.settings["memory"] == "A fox is red."
    assert read.settings["author_note"] == {"text": "short", "depth": 2, "unit": "lines"}
    assert [(entry["name"], entry["keys"]) for entry in read.settings["lore"]] == [("fox", ["fox"])]
    written = json.loads(export("mikupad", read))
    assert {name: json.loads(value) for name, value in written.items()} == SESSION
    read.nodes[2].text = "!"
    changed = json.loads(json.loads(export("mikupad", read))["prompt"])
    assert changed == [{"type": "user", "content": "There was a fox!"}]


def test_a_lore_book_of_sillytavern_becomes_lore() -> None:
    entry = {"uid": 0, "key": ["fox", "/wol(f|ves)/i"], "keysecondary": [], "comment": "Fox", "content": "A fox is red."}
    book = {"entries": {"0": entry | {"constant": False, "disable": True, "order": 50, "depth": 2, "position": 0}}}
    read = parse("sillytavern", json.dumps(book).encode()).document
    assert read.settings["lore"] == [
        {
            "name": "Fox",
            "keys": ["fox", "/wol(f|ves)/i"],
            "secondary_keys": [],
            "text": "A fox is red.",
            "is_constant": False,
            "is_enabled": False,
            "order": 50,
            "depth": 2,
        }
    ]


def session(**changes: Any) -> bytes:  # noqa: ANN401 (values of a session)
    return json.dumps({name: json.dumps(value) for name, value in (SESSION | changes).items()}).encode()


@pytest.mark.parametrize(("depth", "expected"), [(0, 0), (7, 7), ("5", 5), ("", 3), (None, 3)], ids=repr)
def test_depths_of_mikupad_are_lines(depth: object, expected: int) -> None:
    note = parse("mikupad", session(authorNoteDepth=depth)).document.settings["author_note"]
    assert (note["depth"], note["unit"]) == (expected, "lines")


def test_keys_of_mikupad_are_regular_expressions_and_parts_of_words() -> None:
    entries = [{"displayName": "a", "text": "b", "keys": ["fox", "wol(f|ves)", "/x/"], "search": 512}]
    read = parse("mikupad", session(worldInfo={"entries": entries}))
    [entry] = read.document.settings["lore"]
    assert (entry["keys"], entry["is_partial"]) == (["fox", "/wol(f|ves)/i", "//x//i"], True)
    assert read.notes == [
        "1 lore entry has a search range, which does not apply; all keys are searched in `scan_depth` characters."
    ]
    assert parse("mikupad", session()).notes == []


def sillytavern(*entries: dict[str, Any], **book: Any) -> ParsedFile:  # noqa: ANN401 (values of a book)
    return parse("sillytavern", json.dumps({"entries": list(entries), **book}).encode())


def test_depths_of_sillytavern_are_messages_which_the_notes_state() -> None:
    read = sillytavern({"position": 4, "depth": 2}, {"position": 4}, {"position": 0, "depth": 9}, {"position": 2})
    lore = read.document.settings["lore"]
    assert [(entry["depth"], entry.get("unit")) for entry in lore] == [(2, "lines"), (4, "lines"), (9, None), (4, None)]
    assert read.notes == [
        "2 lore entries have a depth in messages, of which a text has none; the number was kept, in lines.",
        "1 lore entry has a position around an author's note or example messages; they follow the memory instead.",
        "The text of a lore entry does not activate other entries.",
    ]


@pytest.mark.parametrize(
    ("entry", "note"),
    [
        ({"excludeRecursion": True}, "1 lore entry has rules for recursion, which do not apply."),
        ({"delayUntilRecursion": 2}, "1 lore entry has rules for recursion, which do not apply."),
        ({"extensions": {"prevent_recursion": True}}, "1 lore entry has rules for recursion, which do not apply."),
        ({"probability": 50}, "1 lore entry has a probability below 100 %, which does not apply."),
        (
            {"keysecondary": ["a"], "selectiveLogic": 3},
            "1 lore entry has secondary keys with another rule than that one of them must match, which does not apply.",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_rules_of_sillytavern_that_do_not_apply_are_in_the_notes(entry: dict[str, Any], note: str) -> None:
    assert note in sillytavern({"key": ["fox"]}, entry).notes
    assert note not in sillytavern({"key": ["fox"]}).notes


def test_a_book_that_requests_recursion_is_told_that_it_does_not_apply() -> None:
    expected = "The text of a lore entry does not activate other entries, although the book requests it."
    assert sillytavern({"keys": ["fox"]}, recursive_scanning=True).notes == [expected]
    assert sillytavern(recursive_scanning=True).notes == []


def test_the_book_of_a_character_of_sillytavern_is_read_too() -> None:
    extensions = {"position": 4, "depth": 1, "case_sensitive": True, "match_whole_words": False}
    entry = {"keys": ["fox"], "secondary_keys": ["red"], "selective": False, "position": "after_char", "extensions": extensions}
    [read] = sillytavern(entry).document.settings["lore"]
    assert (read["depth"], read["unit"], read["is_case_sensitive"], read["is_partial"]) == (1, "lines", True, True)
    assert (read["keys"], read["secondary_keys"]) == (["fox"], [])


@pytest.mark.parametrize(
    ("more", "depth", "note"),
    [
        ({}, (3, "lines"), "The file has no depth of the author's note; 3 lines were assumed."),
        (
            {"anotestr": "480"},
            (120, "tokens"),
            "The author's note has a depth of 480 characters; 120 tokens were assumed, as in KoboldAI Lite.",
        ),
        (
            {"anotestr": 0},
            (0, "tokens"),
            "The author's note has a depth of 0 characters; 0 tokens were assumed, as in KoboldAI Lite.",
        ),
    ],
    ids=["KoboldAI", "Lite", "immediate"],
)
def test_the_depth_of_a_note_of_koboldai_is_assumed(more: dict[str, Any], depth: tuple[int, str], note: str) -> None:
    read = parse("koboldai", json.dumps({"prompt": "a", "authorsnote": "n", **more}).encode())
    assert read.document.settings["author_note"] == {"text": "n", "depth": depth[0], "unit": depth[1]}
    assert read.notes == [note]
    assert parse("koboldai", json.dumps({"prompt": "a", **more}).encode()).notes == []


def test_rules_of_koboldai_lite_that_do_not_apply_are_in_the_notes() -> None:
    info = [{"key": "a", "keyanti": "b", "widisabled": True}, {"key": "a", "probability": "50"}, {"key": "a", "probability": 100}]
    read = parse("koboldai", json.dumps(info).encode())
    assert [entry["is_enabled"] for entry in read.document.settings["lore"]] == [False, True, True]
    assert read.notes == [
        "1 lore entry has keys that prevent it, which do not apply.",
        "1 lore entry has a probability below 100 %, which does not apply.",
    ]


@pytest.mark.parametrize(
    "actions",
    [[" It ran.", " It slept."], {"0": {"Selected Text": " It ran."}, "1": {"Selected Text": " It slept.", "Options": []}}],
    ids=["list", "object"],
)
def test_a_story_of_koboldai_is_imported_with_its_lore(actions: object) -> None:
    info = [{"key": "fox, vixen", "keysecondary": "x", "content": "red", "comment": "", "selective": False, "constant": True}]
    story = {"prompt": "There was a fox.", "memory": "m", "authorsnote": "n", "actions": actions, "worldinfo": info}
    read = parse("koboldai", json.dumps(story).encode()).document
    assert export("text", read).decode() == "There was a fox. It ran. It slept."
    assert (read.settings["memory"], read.settings["author_note"]["text"]) == ("m", "n")
    [lore] = read.settings["lore"]
    assert (lore["keys"], lore["secondary_keys"], lore["is_constant"]) == (["fox", "vixen"], [], True)
    assert parse("koboldai", json.dumps(info).encode()).document.settings["lore"] == [lore]


FOREIGN = {"loom": LOOM, "mikupad": {name: json.dumps(value) for name, value in SESSION.items()}, "koboldai": {"prompt": "a"}}
FOREIGN["sillytavern"] = {"entries": [{"keys": ["a"], "content": "b"}]}


@pytest.mark.parametrize("name", FOREIGN)
def test_no_foreign_file_breaks_a_parser(name: str) -> None:
    source = random.Random(name)
    values: list[object] = [None, 1, "x", [], {}, [1], {"a": 1}, True]

    def changed(value: object) -> object:
        if source.random() < 0.1:
            return source.choice(values)
        if isinstance(value, dict):
            return {key: changed(each) for key, each in value.items() if source.random() > 0.05}
        return [changed(each) for each in value] if isinstance(value, list) else value

    for _ in range(300):
        try:
            read = parse(name, json.dumps(changed(FOREIGN[name])).encode()).document  # type: ignore[arg-type]
        except InvalidRequestError:
            continue
        for kind in ("json", "loom", "mikupad", "markdown"):
            export(kind, read)
