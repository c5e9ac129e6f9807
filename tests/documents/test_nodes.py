"""The tree of a document in its file."""

import random
from typing import Any

import pytest

from weft.documents import branches, catalog, nodes, structure
from weft.documents.branches import End, Growth, NodeId
from weft.documents.catalog import DocumentChange
from weft.documents.database import Database
from weft.documents.nodes import Content, NodeChange
from weft.documents.records import DocumentKey, Node, Span
from weft.errors import DocumentConflictError, DocumentNotFoundError, DocumentsFullError, InvalidRequestError


def added(database: Database, key: DocumentKey, parent: int | None, *texts: str, **more: Any) -> list[int]:  # noqa: ANN401 (fields of `Content`)
    contents = [Content(text=text, **more) for text in texts]
    return [node.id for node in nodes.create(database, key, parent, contents)]


def all_nodes(database: Database, key: DocumentKey) -> dict[int, Node]:
    return {node.id: node for node in nodes.nodes(database, key, limit=1_000)}


def below(database: Database, key: DocumentKey, parent: int | None) -> list[int]:
    found = [node for node in all_nodes(database, key).values() if node.parent == parent]
    return [node.id for node in sorted(found, key=lambda node: (node.position, node.id))]


def texts(database: Database, key: DocumentKey) -> dict[int, str]:
    return {node.id: node.text for node in all_nodes(database, key).values()}


def check(database: Database, key: DocumentKey) -> None:
    """The counts of a document are those of its nodes, and every node has a parent that is there."""
    found = all_nodes(database, key)
    document = catalog.document(database, key)
    assert document.n_nodes == len(found)
    [(n_bytes,)] = database.connection.execute("SELECT COALESCE(SUM(n_bytes), 0) FROM nodes")
    assert document.n_bytes == n_bytes + catalog.BASE_BYTES + len(document.title.encode())
    for node_id, node in found.items():
        assert node.parent is None or node.parent in found
        stored = nodes.node(database, key, node_id)
        assert sum(span.n_bytes for span in stored.spans) <= len(node.text.encode())
        [(size,)] = database.connection.execute(f"SELECT {catalog.NODE_SIZE} FROM nodes WHERE id = ?", (node_id,))
        assert stored.n_bytes == size


def test_nodes_are_read_in_pages(database: Database, key: DocumentKey) -> None:
    added(database, key, None, *"abcde")
    assert [node.text for node in nodes.nodes(database, key, after=1, limit=3)] == ["b", "c", "d"]


def test_new_nodes_stand_after_or_between_their_siblings(database: Database, key: DocumentKey) -> None:
    first, second = added(database, key, None, "a", "b")
    [between] = nodes.create(database, key, None, [Content(text="c")], index=1)
    [before] = nodes.create(database, key, None, [Content(text="d")], index=0)
    assert below(database, key, None) == [before.id, first, between.id, second]
    with pytest.raises(InvalidRequestError, match="index is 5; it must be 0 to 4"):
        nodes.create(database, key, None, [Content(text="e")], index=5)


def test_siblings_are_renumbered_when_there_is_no_space_between_two(database: Database, key: DocumentKey) -> None:
    added(database, key, None, "a", "b")
    last = 2
    order = [1, 2]
    for _ in range(30):
        [last] = added(database, key, None, "x")
        structure.move(database, key, last, None, 1)
        order.insert(1, last)
    database.connection.execute("UPDATE nodes SET position = 1 WHERE id IN (1, 2)")
    database.connection.execute("UPDATE nodes SET position = 2 WHERE id > 2")
    changed = structure.move(database, key, last, None, 1)
    assert len(changed) > 2
    assert below(database, key, None)[:3] == [1, last, 2]


def test_an_edit_changes_the_version_that_it_names(database: Database, key: DocumentKey) -> None:
    [node_id] = added(database, key, None, "one two", spans=[Span(3, 5), Span(4, 6)], model="m", digest="d")
    node, is_sibling = nodes.change(database, key, node_id, NodeChange(version=1, text="one three"))
    assert (node.id, node.text, node.version, is_sibling) == (node_id, "one three", 2, False)
    assert nodes.node(database, key, node_id).spans == [Span(3, 5)], "tokens of the unchanged beginning stay"
    check(database, key)


def test_a_stale_edit_becomes_a_sibling(database: Database, key: DocumentKey) -> None:
    [parent] = added(database, key, None, "root")
    [node_id] = added(database, key, parent, "text")
    nodes.change(database, key, node_id, NodeChange(version=1, text="mine"))
    node, is_sibling = nodes.change(database, key, node_id, NodeChange(version=1, text="yours", note="kept"))
    assert is_sibling
    assert (node.parent, node.text, node.note) == (parent, "yours", "kept")
    assert texts(database, key) == {parent: "root", node_id: "mine", node.id: "yours"}


def test_an_edit_of_a_text_names_a_version(database: Database, key: DocumentKey) -> None:
    [node_id] = added(database, key, None, "text")
    with pytest.raises(InvalidRequestError, match="must name the version"):
        nodes.change(database, key, node_id, NodeChange(text="mine"))


def test_labels_and_notes_take_the_last_change_unless_a_version_is_named(database: Database, key: DocumentKey) -> None:
    [node_id] = added(database, key, None, "text")
    nodes.change(database, key, node_id, NodeChange(label="a", is_bookmarked=True))
    node, _ = nodes.change(database, key, node_id, NodeChange(label="b"))
    assert (node.label, node.is_bookmarked) == ("b", True)
    with pytest.raises(DocumentConflictError, match="version 1 of node 1 is not current; read version 3"):
        nodes.change(database, key, node_id, NodeChange(version=1, label="c"))


def test_a_running_node_is_not_overwritten(database: Database, key: DocumentKey) -> None:
    [node_id] = added(database, key, None, "", state="running")
    branches.write(database, [Growth(key.id, node_id, "written", [])])
    node, is_sibling = nodes.change(database, key, node_id, NodeChange(version=1, text="mine"))
    assert is_sibling
    assert texts(database, key) == {node_id: "written", node.id: "mine"}


def test_split_and_merge_restore_the_node(database: Database, key: DocumentKey) -> None:
    spans = [Span(4, 5), Span(4, 6)]
    [node_id] = added(database, key, None, "one two!", spans=spans, model="m", digest="d")
    [child] = added(database, key, node_id, "below")
    head, rest, moved = structure.split(database, key, node_id, 4)
    assert (head.text, rest.text, rest.parent, moved.id, moved.parent) == ("one ", "two!", node_id, child, rest.id)
    check(database, key)
    [whole, again], gone = structure.merge(database, key, node_id)
    assert (whole.text, gone, again.parent) == ("one two!", rest.id, node_id)
    assert nodes.node(database, key, node_id).spans == spans
    check(database, key)


def test_tokens_of_two_models_are_not_merged(database: Database, key: DocumentKey) -> None:
    [node_id] = added(database, key, None, "one", spans=[Span(3, 5)], model="m", digest="d")
    added(database, key, node_id, "two", spans=[Span(3, 5)], model="other", digest="e")
    structure.merge(database, key, node_id)
    stored = nodes.node(database, key, node_id)
    assert (stored.node.text, stored.node.model, stored.spans) == ("onetwo", "m", [Span(3, 5)])


@pytest.mark.parametrize("at", [1, 2, 3], ids=str)
def test_a_split_inside_a_character_is_refused(database: Database, key: DocumentKey, at: int) -> None:
    [node_id] = added(database, key, None, "🦊")
    with pytest.raises(InvalidRequestError, match="inside a character"):
        structure.split(database, key, node_id, at)


def test_only_a_node_with_one_child_is_merged(database: Database, key: DocumentKey) -> None:
    [node_id] = added(database, key, None, "a")
    with pytest.raises(DocumentConflictError, match="node 1 has 0 children"):
        structure.merge(database, key, node_id)
    added(database, key, node_id, "b", "c")
    with pytest.raises(DocumentConflictError, match="node 1 has 2 children"):
        structure.merge(database, key, node_id)


def test_a_node_does_not_move_below_itself(database: Database, key: DocumentKey) -> None:
    [top] = added(database, key, None, "a")
    [child] = added(database, key, top, "b")
    [deepest] = added(database, key, child, "c")
    with pytest.raises(DocumentConflictError, match=f"node {deepest} is node {top} or one of its descendants"):
        structure.move(database, key, top, deepest, None)
    [moved] = structure.move(database, key, deepest, top, 0)
    assert moved.parent == top
    assert below(database, key, top) == [deepest, child]


def test_deletion_takes_descendants(database: Database, key: DocumentKey) -> None:
    top, other = added(database, key, None, "a", "b")
    [child] = added(database, key, top, "c")
    [deepest] = added(database, key, child, "d", state="running")
    branches.write(database, [Growth(key.id, deepest, "text", [])])
    assert sorted(structure.delete(database, key, top)) == [top, child, deepest]
    assert texts(database, key) == {other: "b"}
    assert database.connection.execute("SELECT * FROM growth").fetchall() == []
    check(database, key)


def test_ids_are_not_reused(database: Database, key: DocumentKey) -> None:
    added(database, key, None, "a")
    structure.delete(database, key, 1)
    assert added(database, key, None, "b") == [2]


def test_branches_inside_a_node_split_it(database: Database, key: DocumentKey) -> None:
    [node_id] = added(database, key, None, "one two")
    changed, made = structure.add_branches(database, key, node_id, 3, [Content(text="", state="running")] * 2)
    assert [node.text for node in changed] == ["one", " two"]
    assert [node.parent for node in made] == [node_id] * 2
    check(database, key)


def test_branches_at_the_ends_of_a_node_split_nothing(database: Database, key: DocumentKey) -> None:
    [top] = added(database, key, None, "root")
    [node_id] = added(database, key, top, "text")
    for at, parent in ((0, top), (4, node_id)):
        changed, [made] = structure.add_branches(database, key, node_id, at, [Content(text="x")])
        assert changed == []
        assert made.parent == parent


def test_written_text_is_read_before_the_branch_ends(database: Database, key: DocumentKey) -> None:
    [node_id] = added(database, key, None, "", state="running", model="m", digest="d")
    for nth, text in enumerate(("one", " two", " 🦊")):
        branches.write(database, [Growth(key.id, node_id, text, [Span(len(text.encode()), nth)])])
    assert texts(database, key) == {node_id: "one two 🦊"}
    branches.write(database, [Growth(key.id, node_id, ".", [Span(1, 3)], End("done", "stop"))])
    stored = nodes.node(database, key, node_id)
    assert (stored.node.text, stored.node.state, stored.node.finish_reason) == ("one two 🦊.", "done", "stop")
    assert [span.token for span in stored.spans] == [0, 1, 2, 3]
    check(database, key)


def test_text_of_a_finished_or_deleted_node_is_ignored(database: Database, key: DocumentKey) -> None:
    [node_id] = added(database, key, None, "done")
    assert (
        branches.write(database, [Growth(key.id, node_id, "x", []), Growth(key.id, 99, "x", []), Growth("?", 1, "x", [])]) == []
    )
    assert texts(database, key) == {node_id: "done"}
    check(database, key)


def test_running_nodes_are_interrupted_after_a_crash(database: Database, key: DocumentKey) -> None:
    running, done = added(database, key, None, "", "done")
    database.connection.execute("UPDATE nodes SET state = 'running' WHERE id = ?", (running,))
    branches.write(database, [Growth(key.id, running, "half a sen", [])])
    database.close()
    again = Database(database.path)
    assert branches.interrupt(again) == 1
    found = all_nodes(again, key)
    assert (found[running].state, found[running].text, found[done].state) == ("interrupted", "half a sen", "done")
    again.close()


def test_a_branch_that_fills_the_quota_is_reported(database: Database, key: DocumentKey) -> None:
    [node_id] = added(database, key, None, "", state="running")
    assert branches.write(database, [Growth(key.id, node_id, "x" * 90_000, [])]) == []
    assert branches.write(database, [Growth(key.id, node_id, "x" * 20_000, [])]) == [NodeId(key.id, node_id)]
    check(database, key)


def test_each_quota_is_kept(database: Database, key: DocumentKey) -> None:
    with pytest.raises(DocumentsFullError, match="at most 40 nodes in a document"):
        added(database, key, None, *"x" * 41)
    with pytest.raises(DocumentsFullError, match="at most 100000 bytes"):
        added(database, key, None, "x" * 100_000)
    for _ in range(2):
        catalog.create(database, None, DocumentChange())
    with pytest.raises(DocumentsFullError, match="at most 3 documents"):
        catalog.create(database, None, DocumentChange())
    catalog.create(database, "digest of a key", DocumentChange())
    assert all_nodes(database, key) == {}
    check(database, key)


def test_owners_do_not_see_each_others_documents(database: Database, key: DocumentKey) -> None:
    other = DocumentKey("digest of a key", key.id)
    assert catalog.documents(database, "digest of a key") == []
    for call in (
        lambda: catalog.document(database, other),
        lambda: catalog.delete(database, other),
        lambda: catalog.change(database, other, DocumentChange(title="mine")),
        lambda: nodes.create(database, other, None, [Content(text="x")]),
        lambda: nodes.nodes(database, other, limit=1),
    ):
        with pytest.raises(DocumentNotFoundError):
            call()
    assert catalog.move(database, database.owner(None), database.owner("digest of a key")) == 1
    assert catalog.document(database, other).title == "The fox"
    assert catalog.documents(database, None) == []


def test_no_key_and_no_digest_is_in_the_file(database: Database) -> None:
    catalog.create(database, "digest of a key", DocumentChange(title="The fox"))
    database.close()
    assert b"digest of a key" not in database.path.read_bytes()


def moves(source: random.Random, database: Database, key: DocumentKey) -> None:
    """One random change; those that are refused change nothing."""
    ids = [*all_nodes(database, key)]
    node_id = source.choice([*ids, 99])
    target = source.choice([None, *ids])
    text = source.choice(["", "one", "two 🦊 three", "ï"])
    match source.randrange(8):
        case 0 | 1:
            index = source.choice([None, 0, 1])
            nodes.create(database, key, target, [Content(text=text, spans=[Span(len(text.encode()), 7)])], index)
        case 2:
            nodes.change(database, key, node_id, NodeChange(version=source.randrange(1, 5), text=text))
        case 3:
            structure.move(database, key, node_id, target, source.choice([None, 0, 1, 2]))
        case 4:
            structure.split(database, key, node_id, source.randrange(8))
        case 5:
            structure.merge(database, key, node_id)
        case 6 if source.random() < 0.3:
            structure.delete(database, key, node_id)
        case _:
            contents = [Content(text="", state="running", digest="d")]
            _, [made] = structure.add_branches(database, key, node_id, source.randrange(5), contents)
            branches.write(database, [Growth(key.id, made.id, text, [Span(len(text.encode()), 8)])])
            if source.random() < 0.5:
                branches.write(database, [Growth(key.id, made.id, "", [], End("done", "end"))])


@pytest.mark.parametrize("seed", range(8))
def test_every_change_keeps_the_tree_whole(database: Database, key: DocumentKey, seed: int) -> None:
    source = random.Random(seed)
    n_refused = 0
    for _ in range(150):
        before = all_nodes(database, key)
        try:
            moves(source, database, key)
        except (DocumentConflictError, DocumentNotFoundError, InvalidRequestError, DocumentsFullError):
            n_refused += 1
            assert all_nodes(database, key) == before
        check(database, key)
    assert 0 < n_refused < 120
