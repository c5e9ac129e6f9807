"""What docs/scale.md shows is what was measured, and says what its text says."""

import re
import runpy
from pathlib import Path

import pytest

from benches.cluster.__main__ import Row, drawn, read

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return read()


def test_the_table_is_what_was_recorded(rows: list[Row]) -> None:
    page = runpy.run_path(str(ROOT / "scripts" / "scale_table.py"))["page"]
    assert page(PAGE, rows) == PAGE, "python -m scripts.scale_table"


def test_the_curves_are_what_was_recorded(rows: list[Row]) -> None:
    pictures = drawn(rows)
    assert {path.name for path in pictures} == set(re.findall(r"!\[[^]]*\]\((\S+\.svg)\)", PAGE))
    for path, text in pictures.items():
        assert path.read_text(encoding="utf-8") == text, "python -m scripts.scale_table"


@pytest.mark.parametrize(("load", "most"), [("chats", 0.98), ("fan-outs", 0.95), ("mooncake", 0.9)])
def test_a_cluster_found_almost_what_one_cache_of_its_size_finds(load: str, most: float, rows: list[Row]) -> None:
    ours = [row for row in rows if (row.load, row.rule) == (load, "Weft")]
    assert max(row.n_replicas for row in ours) >= 32
    assert [row for row in ours if row.hit_rate < most * row.of_one_cache] == []


def test_the_bounds_that_the_page_tells_are_those_of_the_code() -> None:
    digest, routing = (runpy.run_path(str(ROOT / "python" / "weft" / "ray" / f"{name}.py")) for name in ("digest", "routing"))
    assert f"{digest['MAX_HASHES']:,}, which are {digest['MAX_HASHES'] * 8 // 1024} KiB" in PAGE
    assert f"and {digest['MAX_HASHES'] * digest['BLOCK']:,} tokens" in PAGE
    assert f"| {digest['MAX_BLOCKS']:,}, its first {digest['MAX_BLOCKS'] * digest['BLOCK']:,} tokens |" in PAGE
    assert f"| {routing['MAX_AGE_S']:.0f} s |" in PAGE
    assert f"| {routing['MAX_REPLICAS']:,}, {routing['MAX_SENT']:,} and {routing['MAX_PROMPTS']} |" in PAGE
    assert f"{routing['COMPUTING']:.0f} to {routing['MOST_COMPUTING']:.0f} ×" in PAGE
    assert f"+  {routing['WRITING']:.0f} for each" in PAGE
    assert f", {routing['SHARING']:.0f} for each that runs" in PAGE
