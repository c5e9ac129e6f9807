"""Writes the tables and curves of docs/benchmarks/scale.md from the recording of `python -m benches.cluster --write`.

Run `python -m scripts.scale_table` in the repository's root.
"""

from collections.abc import Sequence
from pathlib import Path

from benches.cluster.__main__ import PLACED, TUNED, Row, drawn, read

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks" / "scale.md"

HEAD = """\
| load, replicas | router | hit rate, % | of one cache, % | wait, p99 | TTFT, p50 | TTFT, p99 | imbalance | s per 10⁶ tokens |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""

HEAD_ROUTERS = """\
| load, replicas | exact counts | one router | two | four |
| --- | --- | --- | --- | --- |
"""

HEAD_FOUR = """\
| conversations | router | of one cache, % | lost to routing, % | lost to eviction, % | wait, p99 | TTFT, p50 |
| --- | --- | --- | --- | --- | --- | --- |
"""


def tuned(rows: Sequence[Row]) -> str:
    """Returns the rows of eight replicas, and of the largest cluster, for the loads on which the cost function was tuned."""
    lines = []
    for load in TUNED:
        of_load = [row for row in rows if row.load == load and not row.n_routers and row.rule != PLACED]
        for n_replicas in (8, max(row.n_replicas for row in of_load if row.rule == "Weft")):
            lines += [_line(row) for row in of_load if row.n_replicas == n_replicas]
    return HEAD + "".join(lines)


def held_out(rows: Sequence[Row]) -> str:
    """Returns the rows of the loads on which nothing was tuned, without the clusters of four."""
    others = [row for row in rows if row.load not in TUNED and not row.n_routers and row.n_replicas > 4]
    return HEAD + "".join(map(_line, others))


def of_routers(rows: Sequence[Row]) -> str:
    """Returns hit rates relative to one cache, and waits, by number of routers."""
    by_key = {row.key: row for row in rows}
    lines = []
    for load, n_replicas in dict.fromkeys((row.load, row.n_replicas) for row in rows if row.n_routers == 4):
        cells = [f"{load}, {n_replicas}"]
        for n in (0, 1, 2, 4):
            row = by_key.get((load, n_replicas, "Weft", n))
            cells.append("" if row is None else f"{100 * row.hit_rate / row.of_one_cache:.1f} %, {row.waited_p99_s:.1f} s")
        lines.append(f"| {' | '.join(cells)} |\n")
    return HEAD_ROUTERS + "".join(lines)


def of_four(rows: Sequence[Row]) -> str:
    """Returns the causes of misses in clusters of four replicas."""
    lines = []
    for row in rows:
        if (
            row.n_replicas != 4
            or not row.load.startswith("mooncake")
            or row.n_routers
            or row.rule not in ("Weft", "Ray, prefixes", PLACED)
        ):
            continue
        parted = ["", ""]
        if row.with_room is not None:
            parted = [
                f"{100 * lost / row.of_one_cache:.1f}"
                for lost in (row.of_one_cache - row.with_room, row.with_room - row.hit_rate)
            ]
        cells = [
            row.load,
            row.rule,
            f"{100 * row.hit_rate / row.of_one_cache:.1f}",
            *parted,
            f"{row.waited_p99_s:.0f} s",
            f"{row.first_p50_s:.1f} s",
        ]
        lines.append(f"| {' | '.join(cells)} |\n")
    return HEAD_FOUR + "".join(lines)


TABLES = {"table": tuned, "others": held_out, "routers": of_routers, "four": of_four}
"""Tables by the names of their markers on the page."""


def _line(row: Row) -> str:
    cells = [
        f"{row.load}, {row.n_replicas}",
        row.rule,
        f"{100 * row.hit_rate:.1f}",
        f"{100 * row.hit_rate / row.of_one_cache:.1f}",
        f"{row.waited_p99_s:.1f} s",
        f"{row.first_p50_s:.2f} s",
        f"{row.first_p99_s:.1f} s",
        f"{row.imbalance:.2f}",
        f"{row.s_per_million:,.0f}",
    ]
    return f"| {' | '.join(cells)} |\n"


def page(text: str, rows: Sequence[Row]) -> str:
    """Returns the page with current tables."""
    for name, table in TABLES.items():
        before, rest = text.split(f"<!-- {name} -->\n")
        _, after = rest.split(f"<!-- end of {name} -->\n")
        text = f"{before}<!-- {name} -->\n\n{table(rows)}\n<!-- end of {name} -->\n{after}"
    return text


if __name__ == "__main__":
    recorded = read()
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), recorded), encoding="utf-8")
    for path, picture in drawn(recorded).items():
        path.write_text(picture, encoding="utf-8")
