"""`weft documents` lists, moves and exports what is in a file."""

import json
from pathlib import Path

import pytest

import weft.documents
from weft.cli.commands import DOCUMENTS, EXPORT_FORMATS
from weft.cli.documents import documents
from weft.cli.main import parse_command
from weft.documents.formats import EXPORTS
from weft.documents.owners import key_digest


def run(path: Path, *arguments: str) -> int:
    (settings, _), options = parse_command(arguments, {"WEFT_DOCUMENTS": str(path)}, DOCUMENTS)
    return documents(settings, **options)


def test_the_command_knows_every_format() -> None:
    assert list(EXPORT_FORMATS) == list(EXPORTS)


def test_a_move_names_both_owners(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "documents.sqlite").touch()
    assert run(tmp_path / "documents.sqlite", "move", "--to", "none") == 1
    assert "move needs --from and --to" in capsys.readouterr().err


async def test_documents_of_a_replaced_key_are_moved_to_the_new_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, old, new = tmp_path / "documents.sqlite", tmp_path / "old", tmp_path / "new"
    old.write_text("# comment\nold key\n")
    new.write_text("new key\n")
    async with weft.documents.open(path, api_key="old key") as before:
        made = await before.create("The fox")
    assert run(path, "move", "--from", f"@{old}", "--to", f"@{new}") == 0
    assert capsys.readouterr().out == "moved 1 documents\n"
    async with weft.documents.open(path, api_key="new key") as after:
        assert [each.id for each in await after.list()] == [made.id]
    assert run(path, "move", "--from", f"@{new}", "--to", "none") == 0
    async with weft.documents.open(path) as without:
        assert [each.id for each in await without.list()] == [made.id]


async def test_owners_and_their_documents_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "documents.sqlite"
    async with weft.documents.open(path) as without, weft.documents.open(path, api_key="a key") as with_key:
        await without.create("The\x1b[2J fox")
        await with_key.create("The owl")
    assert run(path) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[1] for row in rows] == ["1", "1"]
    assert rows[0][0] == "none"
    assert key_digest("a key") not in rows[1][0]
    assert run(path, "list", "--from", rows[1][0][:6]) == 0
    assert "The owl" in capsys.readouterr().out
    assert run(path, "list", "--from", "none") == 0
    assert "\x1b" not in capsys.readouterr().out, "a title does not control the terminal"


async def test_documents_are_exported_while_a_server_has_the_file(tmp_path: Path) -> None:
    path = tmp_path / "documents.sqlite"
    async with weft.documents.open(path) as opened:
        document = await opened.create("The fox")
        await opened.add_node(document.id, None, "There was a fox.")
        await opened.run(lambda database: database.claim())
        assert run(path, "export", "--folder", str(tmp_path / "out")) == 0
        assert run(path, "export", "--folder", str(tmp_path / "out"), "--format", "text", "--from", "none") == 0
    saved = json.loads((tmp_path / "out" / f"{document.id}.json").read_bytes())
    assert (saved["title"], saved["nodes"][0]["text"]) == ("The fox", "There was a fox.")
    assert (tmp_path / "out" / f"{document.id}.txt").read_text() == "There was a fox."


def test_a_missing_file_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "none") == 1
    assert "there are no documents in" in capsys.readouterr().err


async def test_an_unknown_owner_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "documents.sqlite"
    async with weft.documents.open(path) as opened:
        await opened.create()
    assert run(path, "list", "--from", "abc") == 1
    assert "0 owners begin with 'abc'; one must" in capsys.readouterr().err
