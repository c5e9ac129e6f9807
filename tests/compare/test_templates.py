"""Fetching the chat templates that are compared, and the requests that are made of them."""

import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.compare import fetch_templates, templates
from tests.compare.reasons import reasons

NAME = f"package-1.0/{fetch_templates.SOURCE}/a.jinja"


def archive(folder: Path, files: Mapping[str, str]) -> Path:
    path = folder / "package-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as written:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            written.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(fetch_templates, "FOLDER", tmp_path / "templates")
    monkeypatch.setattr(fetch_templates, "MARKER", tmp_path / "templates" / "SHA256")
    return tmp_path / "templates"


def test_the_templates_of_an_archive_with_the_right_checksum_are_written_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {"package-1.0/a.jinja": "b", f"package-1.0/x/{fetch_templates.SOURCE}/c.jinja": "c", f"{NAME}.txt": "d"}
    path = archive(tmp_path, {NAME: "{{ messages }}", **others})
    monkeypatch.setattr(fetch_templates, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    assert fetch_templates.fetch(path) == 1
    assert [file.name for file in folder.glob("*.jinja")] == ["a.jinja"]
    assert (folder / "a.jinja").read_text() == "{{ messages }}"
    path.unlink()
    assert fetch_templates.fetch(path) == 1


def test_an_archive_with_another_checksum_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has the SHA-256"):
        fetch_templates.fetch(archive(tmp_path, {NAME: "a"}))
    assert not folder.exists()


def test_every_chat_is_sent_with_every_template(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    monkeypatch.setattr(templates, "FOLDER", folder)
    for name in ("a", "b"):
        (folder / f"{name}.jinja").write_text("")
    names = [case.name for case in templates.template_cases()]
    assert len(set(names)) == len(names) == 2 * len(templates.CHATS) >= 28
    assert all(name.endswith((", a.jinja", ", b.jinja")) for name in names)


def test_the_page_has_reasons_for_prompts() -> None:
    assert [reason for reason in reasons() if "body.prompt" in reason.places]
