"""Compares rules of routing on clusters of 1 to 64 replicas; `python -m benches.cluster` in the repository's root.

Each line says of the tokens of all prompts how many were found computed, how many one cache of the same total size finds that
gets all requests in the same order, how long requests waited beside the time that their own prompts take (p99), when they had
their first token, how evenly the replicas worked, and how long one replica computes for a million tokens. `--write` keeps the
numbers and draws the curves of `docs/scale.md`; `--trace` names Mooncake's `conversation_trace.jsonl`, which is not in the
repository.
"""

# ruff: noqa: T201  (a bench answers on the standard output)

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benches.cluster.chart import draw
from benches.cluster.engines import Engines, built
from benches.cluster.loads import Session, chats, fan_outs, mooncake
from benches.cluster.rules import RULES
from benches.cluster.simulation import Outcome, in_one_cache, simulate

DOCS = Path(__file__).parents[2] / "docs"
RECORDED = DOCS / "recorded" / "scale.json"

N_SLOTS = 8


class Load(NamedTuple):
    """What is asked, and how much each replica keeps, in tokens."""

    name: str
    about: str
    asked: Callable[[int], Iterator[Session]]
    n_cells: int
    n_stored: int


def loads(trace: Path | None) -> list[Load]:
    """All that there are; Mooncake's trace where its file is named."""
    both = [
        Load(
            "chats",
            "chats behind system prompts",
            lambda n: chats(n, 600, per_s=0.2, n_system_prompts=4 * n),
            32_768,
            65_536,
        ),
        Load("fan-outs", "fan-outs of 40 branches", lambda n: fan_outs(n, 600, per_s=0.006), 32_768, 65_536),
    ]
    if trace is None:
        return both
    return [*both, Load("mooncake", "Mooncake's conversations", lambda n: mooncake(trace, n, 3_600), 135_168, 393_216)]


class Row(NamedTuple):
    """One simulation."""

    load: str
    n_replicas: int
    rule: str
    n_requests: int
    hit_rate: float
    of_one_cache: float
    waited_p99_s: float
    first_p50_s: float
    first_p99_s: float
    imbalance: float
    busy: float
    s_per_million: float

    def line(self) -> str:
        """For a terminal."""
        return (
            f"  {self.load:<9} {self.n_replicas:>3} {self.rule:<17} │ {100 * self.hit_rate:>5.1f} {100 * self.of_one_cache:>7.1f}"
            f" {100 * self.hit_rate / self.of_one_cache:>6.1f} │ {self.waited_p99_s:>8.2f} {self.first_p50_s:>7.2f}"
            f" {self.first_p99_s:>8.2f} │ {self.imbalance:>5.2f} {100 * self.busy:>5.0f} {self.s_per_million:>7.0f}"
        )


HEAD = (
    f"  {'load':<9} {'n':>3} {'rule':<17} │ {'hit %':>5} {'one, %':>7} {'of it':>6} │ {'wait p99':>8} {'1st p50':>7}"
    f" {'1st p99':>8} │ {'max/⌀':>5} {'busy%':>5} {'s/M':>7}"
)


def compare(load: Load, n_replicas: int, names: Sequence[str], program: str) -> Iterator[Row]:
    """All rules on one load, and one cache of the same total size, which gets what came in the order of the first of them."""
    sessions = list(load.asked(n_replicas))
    of_one_cache = None
    for name in names:
        with Engines(program, n_replicas, n_slots=N_SLOTS, n_cells=load.n_cells, n_stored=load.n_stored) as engines:
            outcome = simulate(sessions, n_replicas, engines, RULES[name](), n_slots=N_SLOTS)
        if of_one_cache is None:
            n_stored = n_replicas * (load.n_cells + load.n_stored) - load.n_cells
            with Engines(program, 1, n_slots=N_SLOTS, n_cells=load.n_cells, n_stored=n_stored) as engines:
                of_one_cache = in_one_cache(outcome.sent, engines)
        yield _row(load, n_replicas, name, outcome, of_one_cache)


def _row(load: Load, n_replicas: int, rule: str, outcome: Outcome, of_one_cache: float) -> Row:
    took_s = max(job.end_s for job in outcome.jobs)
    return Row(
        load.name,
        n_replicas,
        rule,
        len(outcome.jobs),
        outcome.hit_rate,
        of_one_cache,
        outcome.waited_s(0.99),
        outcome.first_s(0.5),
        outcome.first_s(0.99),
        outcome.imbalance,
        sum(outcome.busy_s) / n_replicas / took_s,
        outcome.s_per_million,
    )


def drawn(rows: Sequence[Row]) -> dict[Path, str]:
    """The pictures of `docs/scale.md`."""
    pictures = {}
    for load in dict.fromkeys(row.load for row in rows):
        of_load = [row for row in rows if row.load == load]
        xs = sorted({row.n_replicas for row in of_load})
        names = [name for name in RULES if any(row.rule == name for row in of_load)]
        by = {(row.rule, row.n_replicas): row for row in of_load}
        hits = {name: {x: by[name, x].hit_rate for x in xs if (name, x) in by} for name in names}
        hits = {"one cache": {x: by[names[0], x].of_one_cache for x in xs}, **hits}
        waits = {name: {x: by[name, x].waited_p99_s for x in xs if (name, x) in by} for name in names}
        title = f"{load}: share of the prompts' tokens that is not computed"
        pictures[DOCS / f"scale-{load}-hits.svg"] = draw(title, xs, hits, is_log=False, unit="")
        title = f"{load}: longest wait of 99 % of the requests"
        pictures[DOCS / f"scale-{load}-waits.svg"] = draw(title, xs, waits, is_log=True, unit=" s")
    return pictures


def read() -> list[Row]:
    """The rows of which the pictures are."""
    return [Row(**row) for row in json.loads(RECORDED.read_text(encoding="utf-8"))]


def write(rows: Sequence[Row]) -> None:
    """Keeps these rows, and those that were kept of other simulations; draws all."""
    kept = {row[:3]: row for row in [*(read() if RECORDED.exists() else []), *rows]}
    names = list(RULES)
    rows = sorted(kept.values(), key=lambda row: (row.load, row.n_replicas, names.index(row.rule)))
    RECORDED.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n", encoding="utf-8")
    for path, picture in drawn(rows).items():
        path.write_text(picture, encoding="utf-8")


def main() -> None:
    """Compares, prints and, where that is asked, writes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trace", type=Path, help="Mooncake's conversation_trace.jsonl")
    parser.add_argument("--replicas", default="1,2,4,8,16,32,64", help="how many, with commas between")
    parser.add_argument("--loads", default="", help="only these, with commas between")
    parser.add_argument("--rules", default=";".join(RULES), help="only these, with semicolons between")
    parser.add_argument("--program", help="the engines' program, where it is built already")
    parser.add_argument("--write", action="store_true", help="keep the numbers and draw the curves")
    given = parser.parse_args()
    program = given.program or built()
    rows = []
    print(HEAD)
    for load in loads(given.trace):
        if given.loads and load.name not in given.loads.split(","):
            continue
        for n_replicas in map(int, given.replicas.split(",")):
            for row in compare(load, n_replicas, given.rules.split(";"), program):
                print(row.line(), flush=True)
                rows.append(row)
            if given.write:
                write(rows)


if __name__ == "__main__":
    main()
