"""The tables, curves and bounds of docs/benchmarks/scale.md are those of the recording and of the code."""

import re
import runpy
from pathlib import Path

import pytest

from benches.cluster.__main__ import PLACED, TUNED, Row, drawn, read

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "benchmarks" / "scale.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return read()


def test_the_tables_are_those_of_the_recording(rows: list[Row]) -> None:
    page = runpy.run_path(str(ROOT / "scripts" / "scale_table.py"))["page"]
    assert page(PAGE, rows) == PAGE, "python -m scripts.scale_table"


def test_the_curves_are_those_of_the_recording(rows: list[Row]) -> None:
    pictures = drawn(rows)
    assert {f"../images/{path.name}" for path in pictures} == set(re.findall(r"!\[[^]]*\]\((\S+\.svg)\)", PAGE))
    for path, text in pictures.items():
        assert path.read_text(encoding="utf-8") == text, "python -m scripts.scale_table"


@pytest.mark.parametrize(("load", "most"), [("chats", 0.98), ("fan-outs", 0.95), ("mooncake", 0.95)])
def test_the_hit_rate_of_a_cluster_is_almost_that_of_one_cache(load: str, most: float, rows: list[Row]) -> None:
    ours = [row for row in rows if (row.load, row.rule, row.n_routers) == (load, "Weft", 0)]
    assert {row.n_replicas for row in ours} >= {1, 2, 4, 8, 16, 32}
    assert [row for row in ours if row.hit_rate < most * row.of_one_cache] == []


def test_the_hit_rate_is_as_high_on_loads_that_were_not_used_for_tuning(rows: list[Row]) -> None:
    others = [row for row in rows if row.load not in TUNED and (row.rule, row.n_routers) == ("Weft", 0)]
    assert len({row.load for row in others}) >= 9
    found = [row.hit_rate / row.of_one_cache for row in others]
    assert min(found) > 0.97
    by_key = {row.key: row for row in rows}
    for row in others:
        assert row.waited_p99_s < by_key[row.load, row.n_replicas, "round robin", 0].waited_p99_s


def test_a_fixed_placement_has_a_higher_hit_rate_and_longer_waits(rows: list[Row]) -> None:
    by_key = {row.key: row for row in rows}
    placed = [row for row in rows if row.rule == PLACED and row.load not in TUNED]
    assert len(placed) >= 6
    for best in placed:
        ours = by_key[best.load, 4, "Weft", 0]
        assert best.hit_rate > ours.hit_rate
        assert best.waited_p99_s > 1.5 * ours.waited_p99_s


def test_the_bounds_on_the_page_are_those_of_the_code() -> None:
    digest, routing = (
        runpy.run_path(str(ROOT / "python" / "weft" / "ray" / f"{name}.py")) for name in ("digest", "prefix_routing")
    )
    assert f"{digest['MAX_HASHES']:,}, which are {digest['MAX_HASHES'] * 8 // 1024} KiB" in PAGE
    assert f"and {digest['MAX_HASHES'] * digest['BLOCK']:,} tokens" in PAGE
    assert f"| {digest['MAX_BLOCKS']:,}, its first {digest['MAX_BLOCKS'] * digest['BLOCK']:,} tokens |" in PAGE
    assert f"| {routing['MAX_AGE_S']:.0f} s |" in PAGE
    assert f"| {routing['MAX_REPLICAS']:,}, {routing['MAX_SENT']:,} and {routing['MAX_PROMPTS']} |" in PAGE
    assert f"{routing['COMPUTING']:.0f} to {routing['MOST_COMPUTING']:.0f} ×" in PAGE
    assert f"+  {routing['WRITING']:.0f} for each" in PAGE
    assert f", {routing['SHARING']:.0f} for each that runs" in PAGE
