"""Writes the table of docs/scale.md and draws its curves, from what `python -m benches.cluster --write` has recorded.

It is `python -m scripts.scale_table` in the repository's root.
"""

from pathlib import Path

from benches.cluster.__main__ import Row, drawn, read

PAGE = Path(__file__).parent.parent / "docs" / "scale.md"

BEGIN, END = "<!-- table -->\n", "<!-- end of the table -->\n"

HEAD = """\
| load, replicas | rule | found, % | of one cache, % | wait, p99 | first token, p50 | p99 | busiest over mean | s for 10⁶ tokens |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


def table(rows: list[Row]) -> str:
    """The largest cluster of each load, and one of eight."""
    lines = []
    for load in dict.fromkeys(row.load for row in rows):
        of_load = [row for row in rows if row.load == load]
        for n_replicas in (8, max(row.n_replicas for row in of_load)):
            lines += [_line(row) for row in of_load if row.n_replicas == n_replicas]
    return HEAD + "".join(lines)


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


def page(text: str, rows: list[Row]) -> str:
    """The page with its table as it is now."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + "\n" + table(rows) + "\n" + END + after


if __name__ == "__main__":
    recorded = read()
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), recorded), encoding="utf-8")
    for path, picture in drawn(recorded).items():
        path.write_text(picture, encoding="utf-8")
