"""The Python reference documents every public name, and every field with its range."""

import re
import runpy
from pathlib import Path

import griffe
import msgspec
import pytest

import weft
from weft.fields.meta import field_meta

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "docs" / "reference" / "python.md", *sorted((ROOT / "docs" / "reference" / "python").glob("*.md"))]
DIRECTIVES = [name for page in PAGES for name in re.findall(r"^::: weft\.(\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE)]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> griffe.Object:
    """The package as the site reads it."""
    folder = tmp_path_factory.mktemp("package")
    runpy.run_path(str(ROOT / "scripts" / "site_hooks.py"))["copy_package"](folder)
    extensions = griffe.load_extensions(str(ROOT / "scripts" / "griffe_fields.py"))
    found = griffe.load("weft", search_paths=[folder], extensions=extensions, allow_inspection=False)
    assert isinstance(found, griffe.Object)
    return found


def test_every_public_name_has_one_entry() -> None:
    assert sorted(name for name in DIRECTIVES if name not in ("documents", "hub")) == sorted(weft.__all__)


def test_the_overview_links_every_entry() -> None:
    rows = re.findall(r"^\| \[[^]]+\]\(python/(\w+)\.md\) \| (.*) \|$", PAGES[0].read_text(encoding="utf-8"), re.MULTILINE)
    assert {page: re.findall(r"\]\[weft\.(\w+)\]", names) for page, names in rows} == {
        page.stem: re.findall(r"^::: weft\.(\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE) for page in PAGES[1:]
    }


@pytest.mark.parametrize("name", weft.__all__)
def test_every_entry_is_documented(name: str, package: griffe.Object) -> None:
    entry = package[name]
    assert entry.docstring is not None
    assert len(entry.docstring.value) > 20


STRUCTS = {
    name: entry
    for name in weft.__all__
    if isinstance(entry := getattr(weft, name), type)
    and issubclass(entry, msgspec.Struct)
    and name not in ("Embeddings", "Ranking")  # Their fields have docstrings.
}


@pytest.mark.parametrize("name", STRUCTS)
def test_every_field_has_its_text(name: str, package: griffe.Object) -> None:
    for field, meta in field_meta(STRUCTS[name]).items():
        attribute = package[name].all_members[field]
        assert attribute.docstring is not None, field
        assert meta.text.rstrip(".")[1:] in attribute.docstring.value, field
        assert "Annotated" not in str(attribute.annotation), field


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("Request.n", "Range: 1 to 256."),
        ("EngineConfig.n_slots", "Range: 1 to 254. None: 8, each of which may use the whole context."),
        ("EngineConfig.cpus", "Range: 0 to 511."),
        ("SamplingParams.max_tokens", "Minimum: 0."),
    ],
)
def test_a_field_has_its_range(field: str, words: str, package: griffe.Object) -> None:
    struct, name = field.split(".")
    attribute = package[struct].all_members[name]
    assert attribute.docstring is not None
    assert words in attribute.docstring.value
