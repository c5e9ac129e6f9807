"""docs/guides/tree.md and its neighbours name existing methods and limits, and their pictures are current.

tests/test_pages.py runs their programs.
"""

import contextlib
import io
import re
import runpy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import weft
from tests.pages import fences, value_of
from weft.drawing.figure import DEFAULT_DRAWN, MAX_DRAWN
from weft.tree.tree import MAX_BYTES, MAX_CACHE_FILES, MAX_NODES

ROOT = Path(__file__).parent.parent
GUIDES = ROOT / "docs" / "guides"
PAGE, CACHING = ((GUIDES / name).read_text(encoding="utf-8") for name in ("tree.md", "caching.md"))


async def test_the_program_makes_a_tree_as_it_is_drawn(engine: weft.Engine) -> None:
    program = next(fences(GUIDES / "tree.md")).code
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        await value_of(program, {"weft": weft, "engine": engine})
    drawn, shown = (
        ElementTree.fromstring(text) for text in (printed.getvalue(), (ROOT / "docs" / "images" / "tree.svg").read_text())
    )
    kinds = [[(part.tag, part.get("class")) for part in picture.iter()] for picture in (drawn, shown)]
    assert kinds[0] == kinds[1]


async def test_the_program_forks_a_branch_as_the_page_states(engine: weft.Engine) -> None:
    [program] = [fence.code for fence in fences(GUIDES / "branches.md") if "fork_stream(0" in fence.code]
    names: dict[str, Any] = {"engine": engine, "weft": weft}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        await value_of(program, names)
    assert names["joined"] == [2, 3, 4, 5]
    begin = "".join(f"{index} {names['texts'][index]}\n" for index in names["joined"])
    assert printed.getvalue().startswith(begin)
    assert printed.getvalue().removeprefix(begin).strip()


async def test_the_pictures_are_current(engine: weft.Engine) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "tree_pictures.py"))
    drawn = await script["drawn"](engine)
    assert {f"../images/{path.name}" for path in drawn} == set(re.findall(r"!\[[^]]*\]\((\S+\.svg)\)", PAGE + CACHING))
    for path, text in drawn.items():
        assert path.read_text(encoding="utf-8") == text, "scripts/tree_pictures.py"


def test_every_bound_on_the_page_is_so() -> None:
    assert f"{MAX_NODES:,} nodes and {MAX_BYTES >> 20} MiB" in PAGE
    assert f"for every leaf, at most {MAX_CACHE_FILES}." in PAGE
    assert f"the {DEFAULT_DRAWN} nodes nearest to the root, or `limit` of them, up to {MAX_DRAWN:,}" in PAGE
    assert f"{DEFAULT_DRAWN} nodes that were used last, or `?limit=` of them up to {MAX_DRAWN:,}" in " ".join(CACHING.split())


def test_every_method_and_attribute_that_is_named_is_there() -> None:
    table = PAGE[PAGE.index("| member | |") :].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(?:await )?(?:node\.)?(\w+)", row.split(" | ")[0])}
    assert len(named) > 15
    assert [name for name in named if not hasattr(weft.Node, name)] == []


def test_every_file_that_is_named_is_there() -> None:
    named = re.findall(r"\]\(([^)#]+)", PAGE)
    assert len(named) > 6
    assert [name for name in named if not (ROOT / "docs" / "guides" / name).exists()] == []
