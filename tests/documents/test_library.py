"""Documents in Python: the file, its owners, search, and trees."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

import weft
import weft.documents
from weft.documents import branches
from weft.documents.database import Database
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
        pytest.param(None, "they are of version 99, and this Weft reads version 1", id="newer"),
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


def test_one_process_writes_branches(tmp_path: Path) -> None:
    database = Database(tmp_path / "documents.sqlite")
    database.create()
    database.claim()
    code = f"from weft.documents.database import Database\nDatabase({str(database.path)!r}).claim()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=20)
    assert "another server uses them; give each server its own --documents" in ran.stderr
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
