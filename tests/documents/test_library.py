"""Documents in Python: the file, its owners, search, and trees."""

import contextlib
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import weft
import weft.documents
from weft.documents import branches
from weft.documents.database import VERSION, Database
from weft.documents.formats import SavedDocument, SavedNode
from weft.documents.records import DocumentKey


async def test_the_file_is_created_with_the_first_document_for_its_user_only(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "documents.sqlite"
    async with weft.documents.open(path) as documents:
        assert await documents.list() == []
        assert await documents.search("fox") == []
        with pytest.raises(weft.DocumentNotFoundError):
            await documents.nodes("1")
        assert not path.exists()
        await documents.create("The fox", folder="stories")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) & 0o077 == 0
        [document] = await documents.list()
        assert (document.title, document.folder) == ("The fox", "stories")
    assert {stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()} == {0o600}


async def test_each_key_has_its_own_documents(tmp_path: Path) -> None:
    path = tmp_path / "documents.sqlite"
    async with weft.documents.open(path, api_key="mine") as mine, weft.documents.open(path) as keyless:
        document = await mine.create()
        assert [each.id for each in await mine.list()] == [document.id]
        assert await keyless.list() == []
        with pytest.raises(weft.DocumentNotFoundError):
            await keyless.delete(document.id)
    assert b"mine" not in path.read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"no database, but longer than the head of one" * 4, "file is not a database", id="other file"),
        pytest.param(None, "the file has version 99; this version of Weft reads 2", id="newer"),
    ],
)
async def test_other_files_are_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "documents.sqlite"
    if content is not None:
        path.write_bytes(content)
    else:
        async with weft.documents.open(path) as documents:
            await documents.create()
            await documents.run(lambda database: database.connection.execute("PRAGMA user_version = 99"))
    documents = weft.documents.open(path)
    with pytest.raises(weft.DocumentFileError, match=message):
        await documents.list()
    await documents.close()


VERSION_1 = """
CREATE TABLE secret (value BLOB NOT NULL);
CREATE TABLE documents (
    key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, title TEXT NOT NULL, folder TEXT NOT NULL,
    settings TEXT NOT NULL, version INTEGER NOT NULL, next_node INTEGER NOT NULL, n_nodes INTEGER NOT NULL,
    n_bytes INTEGER NOT NULL, is_trashed INTEGER NOT NULL, created_ms INTEGER NOT NULL, changed_ms INTEGER NOT NULL
);
CREATE INDEX documents_of_owner ON documents (owner, n_bytes);
CREATE TABLE nodes (
    key INTEGER PRIMARY KEY, document INTEGER NOT NULL, id INTEGER NOT NULL, parent INTEGER, position REAL NOT NULL,
    version INTEGER NOT NULL, state TEXT NOT NULL, text TEXT NOT NULL, spans BLOB NOT NULL, model TEXT, digest TEXT,
    parameters TEXT, finish_reason TEXT, error TEXT, label TEXT NOT NULL, note TEXT NOT NULL, is_bookmarked INTEGER NOT NULL,
    is_trashed INTEGER NOT NULL, created_ms INTEGER NOT NULL, changed_ms INTEGER NOT NULL, n_bytes INTEGER NOT NULL,
    UNIQUE (document, id)
);
CREATE INDEX nodes_of_parent ON nodes (document, parent, position, id);
CREATE INDEX unfinished_nodes ON nodes (document, id) WHERE state = 'running';
CREATE TABLE growth (key INTEGER PRIMARY KEY, node INTEGER NOT NULL, text TEXT NOT NULL, spans BLOB NOT NULL);
CREATE INDEX growth_of_node ON growth (node, key);
INSERT INTO secret VALUES (x'00');
INSERT INTO documents VALUES (1, 'fox', '', 'The fox', '', '{}', 1, 2, 1, 300, 0, 0, 0);
INSERT INTO nodes VALUES
    (1, 1, 1, NULL, 0.0, 1, 'done', 'Once.', x'', NULL, NULL, NULL, NULL, NULL, 'Chapter', '', 1, 0, 0, 0, 300);
PRAGMA user_version = 1;
"""
"""A file of the first version, with a document and a node."""


async def test_a_file_of_an_earlier_version_is_changed_to_this_one(tmp_path: Path) -> None:
    path = tmp_path / "documents.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(VERSION_1)
    async with weft.documents.open(path) as documents:
        [document] = await documents.list()
        await documents.add_node(document.id, 1, " Twice.")
        first, second = await documents.nodes(document.id)
        assert (first.text, first.label, first.is_bookmarked, first.n_computed) == ("Once.", "Chapter", True, None)
        assert (second.text, second.parent) == (" Twice.", 1)
        [(version,)] = await documents.run(lambda database: database.connection.execute("PRAGMA user_version").fetchall())
    assert version == VERSION


def test_one_process_writes_branches(tmp_path: Path) -> None:
    database = Database(tmp_path / "documents.sqlite")
    database.create()
    database.claim()
    code = f"from weft.documents.database import Database\nDatabase({str(database.path)!r}).claim()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=20)
    assert f"another server uses the documents in {database.path}" in ran.stderr
    database.close()
    assert subprocess.run([sys.executable, "-c", code], check=True, timeout=20).returncode == 0


@pytest.mark.parametrize("query", ["deja", "DÉJÀ", "de\u0301ja\u0300", "éj", "STRASSE", "straße"])
async def test_search_ignores_case_and_diacritics(tmp_path: Path, query: str) -> None:
    async with weft.documents.open(tmp_path / "documents.sqlite") as documents:
        document = await documents.create("The fox")
        await documents.add_node(document.id, None, "Nothing.")
        node = await documents.add_node(document.id, None, "Ein déjà vu 🦊 auf der Straße")
        [hit] = await documents.search(query)
        assert (hit.document, hit.title, hit.node, hit.field) == (document.id, "The fox", node.id, "text")
        assert node.text[hit.start : hit.start + hit.length] in ("déjà", "éj", "Straße")
        assert hit.excerpt == node.text


async def test_search_reads_thousands_of_nodes_in_parts(tmp_path: Path) -> None:
    async with weft.documents.open(tmp_path / "documents.sqlite") as documents:
        nodes = [
            SavedNode(id=nth, parent=nth - 1 or None, text="hay", label="needle" * (nth == 4_900)) for nth in range(1, 5_001)
        ]
        document = await documents.add(None, SavedDocument(nodes=nodes))
        assert [(hit.node, hit.field) for hit in await documents.search("needle")] == [(4_900, "label")]
        assert len(await documents.search("hay", limit=10)) == 10
        assert await documents.search("needle", document_id="other") == []
        assert len(await documents.nodes(document.id)) == 5_000


async def test_the_trash_is_not_searched(tmp_path: Path) -> None:
    async with weft.documents.open(tmp_path / "documents.sqlite") as documents:
        nodes = [SavedNode(id=1, text="top", is_trashed=True), SavedNode(id=2, parent=1, text="needle")]
        await documents.add(None, SavedDocument(nodes=nodes))
        assert await documents.search("needle") == []


async def test_a_document_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    limits = weft.documents.Limits(max_nodes=1_500)
    async with weft.documents.open(tmp_path / "documents.sqlite", limits=limits) as documents:
        with pytest.raises(weft.DocumentsFullError, match="at most 1500 nodes in a document"):
            await documents.add(None, SavedDocument(nodes=[SavedNode(id=nth, text="x") for nth in range(1, 1_502)]))
        assert await documents.list() == []


async def test_a_copy_has_all_nodes_in_order(tmp_path: Path) -> None:
    async with weft.documents.open(tmp_path / "documents.sqlite") as documents:
        document = await documents.create("The fox")
        top = await documents.add_node(document.id, None, "a")
        for text in ("b", "c", "d"):
            await documents.add_node(document.id, top.id, text)
        copy = await documents.import_file(await documents.export(document.id, "json"), "json")
        key = DocumentKey(None, copy.id)
        assert [(node.parent, node.text) for node in (await documents.read(key)).nodes] == [
            *((None, "a"), (1, "b"), (1, "c"), (1, "d"))
        ]
        assert not copy.is_trashed
        assert (await documents.export(copy.id, "text", 3)).decode() == "ac"


async def test_a_tree_becomes_a_document_and_back(tmp_path: Path) -> None:
    async with (
        weft.Engine(n_slots=4, n_ctx=2048, n_threads=1) as engine,
        weft.documents.open(tmp_path / "documents.sqlite") as documents,
    ):
        tree = weft.Tree(engine, "There was a fox 🦊.")
        first, _ = await tree.root.extend(n=2, max_tokens=12, logprobs=3, seed=1)
        first.append(" But one night").append(" it snowed.")
        document = await documents.add_tree(tree, "The fox")
        made = await documents.tree(document.id, engine)
        for node in tree.nodes:
            copy = made.nodes[node.id + 1]
            assert (copy.tokens, copy.text, copy.logprob) == (node.tokens, node.text, node.logprob)
        assert made.n_retokenized == 0
        assert made.nodes[2].logprobs == first.logprobs


async def test_text_of_another_model_is_tokenized_again_and_that_is_reported(tmp_path: Path) -> None:
    async with (
        weft.Engine(n_slots=1, n_ctx=512, n_threads=1) as engine,
        weft.documents.open(tmp_path / "documents.sqlite") as documents,
    ):
        spans = [weft.documents.Span(5, 1_000_000, -1.0)]
        nodes = [SavedNode(id=1, text="There was", spans=spans, model="other", digest="other")]
        document = await documents.add(None, SavedDocument(nodes=nodes))
        made = await documents.tree(document.id, engine)
        assert made.n_retokenized == 1
        assert list(made.tree.root.tokens) == engine.tokenize("There was")


async def test_several_nodes_at_the_top_are_no_tree(tmp_path: Path) -> None:
    async with (
        weft.Engine(n_slots=1, n_ctx=512, n_threads=1) as engine,
        weft.documents.open(tmp_path / "documents.sqlite") as documents,
    ):
        document = await documents.create()
        for text in ("a", "b"):
            await documents.add_node(document.id, None, text)
        with pytest.raises(weft.InvalidRequestError, match="a tree has one node at the top"):
            await documents.tree(document.id, engine)


async def test_an_interrupted_node_stays_one_in_a_file(tmp_path: Path) -> None:
    async with weft.documents.open(tmp_path / "documents.sqlite") as documents:
        document = await documents.add(None, SavedDocument(nodes=[SavedNode(id=1, text="half", is_interrupted=True)]))
        assert await documents.run(branches.interrupt) == 0
        [node] = await documents.nodes(document.id)
        assert node.state == "interrupted"
