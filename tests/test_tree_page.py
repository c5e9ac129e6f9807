"""What docs/guides/tree.md shows runs and counts as it says, and its pictures are what is drawn today."""

import ast
import contextlib
import inspect
import io
import re
import runpy
from collections.abc import AsyncIterator
from pathlib import Path
from types import CodeType
from typing import Any
from xml.etree import ElementTree

import pytest

import weft
from tests.helpers import is_idle, prompt_of, wait_until
from weft.drawing.figure import DEFAULT_DRAWN, MAX_DRAWN
from weft.tree.tree import MAX_BYTES, MAX_CACHE_FILES, MAX_NODES

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "guides" / "tree.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def compiled(code: str) -> CodeType:
    """A statement, or an expression for its value; either may await."""
    for mode in ("eval", "exec"):
        with contextlib.suppress(SyntaxError):
            made: CodeType = compile(code, "tree.md", mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            return made
    raise AssertionError(code)


async def value_of(code: str, names: dict[str, Any]) -> object:
    value = eval(compiled(code), names)
    return await value if inspect.iscoroutine(value) else value


@pytest.fixture
async def fresh() -> AsyncIterator[weft.Engine]:
    """Nothing is cached there yet."""
    async with weft.Engine(n_slots=8, n_ctx=4096, kv_unified=True, n_threads=1) as engine:
        yield engine
        await wait_until(lambda: is_idle(engine))


async def test_the_sessions_show_what_they_say(fresh: weft.Engine) -> None:
    names = {"engine": fresh, "weft": weft, "prompt_of_200_tokens": prompt_of(200, "page")}
    n_shown = 0
    for session in blocks("pycon"):
        for code, shown in re.findall(r"^>>> (.*\n(?:\.\.\. .*\n)*)((?:(?!>>>).*\n)*)", session, re.MULTILINE):
            value = await value_of(re.sub(r"^\.\.\. ", "", code, flags=re.MULTILINE), names)
            if shown:
                n_shown += 1
                assert repr(value) == shown.strip(), code
    assert n_shown == 5


async def test_the_program_makes_a_tree_as_it_is_drawn() -> None:
    program = blocks("python")[0]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        await value_of(program, {"weft": weft})
    drawn, shown = (
        ElementTree.fromstring(text) for text in (printed.getvalue(), (ROOT / "docs" / "images" / "tree.svg").read_text())
    )
    kinds = [[(part.tag, part.get("class")) for part in picture.iter()] for picture in (drawn, shown)]
    assert kinds[0] == kinds[1]


async def test_the_program_forks_a_branch_as_the_page_says(fresh: weft.Engine) -> None:
    names: dict[str, Any] = {"engine": fresh, "weft": weft, "prompt": prompt_of(40, "forks")}
    await value_of(blocks("python")[1], names)
    assert names["indices"] == [2, 3, 4, 5]
    assert [event.index async for event in names["hotter"] if isinstance(event, weft.Finished)] == [0]


async def test_the_pictures_are_current(engine: weft.Engine) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "tree_pictures.py"))
    drawn = await script["drawn"](engine)
    assert {f"../images/{path.name}" for path in drawn} == set(re.findall(r"!\[[^]]*\]\((\S+\.svg)\)", PAGE))
    for path, text in drawn.items():
        assert path.read_text(encoding="utf-8") == text, "scripts/tree_pictures.py"


def test_every_bound_on_the_page_is_so() -> None:
    assert f"{MAX_NODES:,} nodes and {MAX_BYTES >> 20} MiB" in PAGE
    assert f"at most {MAX_CACHE_FILES} of them" in PAGE
    assert f"{DEFAULT_DRAWN} nodes that were used last, or `?limit=` of them, up to {MAX_DRAWN:,}" in PAGE


def test_every_method_and_attribute_that_is_named_is_there() -> None:
    table = PAGE[PAGE.index("| of a node | |") :].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(?:await )?(?:node\.)?(\w+)", row.split(" | ")[0])}
    assert len(named) > 15
    assert [name for name in named if not hasattr(weft.Node, name)] == []


def test_every_file_that_is_named_is_there() -> None:
    named = re.findall(r"\]\(([^)#]+)", PAGE)
    assert len(named) > 6
    assert [name for name in named if not (ROOT / "docs" / "guides" / name).exists()] == []
