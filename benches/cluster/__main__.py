"""Compares rules of routing on clusters of 1 to 64 replicas; `python -m benches.cluster` in the repository's root.

Each line reports the share of prompt tokens found in the cache, the same share for one cache of the same total size that gets all
requests in the same order, the p99 of the time that requests waited in addition to their own prompts, the time to first token,
how evenly the replicas worked, and the compute time of one replica per million tokens. `--write` stores the numbers and draws the
curves of `docs/benchmarks/scale.md`; `--trace` and `--synthetic` name Mooncake's traces, which are not in the repository. The
router's constants were tuned on the loads of `TUNED`; the other loads test them.
"""

# ruff: noqa: T201  (a bench answers on the standard output)

import argparse
import fcntl
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benches.cluster.chart import draw
from benches.cluster.engines import Engines, built
from benches.cluster.loads import Chats, FanOuts, Session, agents, chats, fan_outs, mooncake
from benches.cluster.rules import RULES, Cells, Placed, Rule, routers
from benches.cluster.simulation import Outcome, found_again, in_one_cache, simulate

DOCS = Path(__file__).parents[2] / "docs"
RECORDED = DOCS / "recorded" / "scale.json"

N_SLOTS = 8


PLACED, CELLS = "placed beforehand", "Weft, cells of 8"
"""A rule that knows all that will be asked, and the router on two levels; they are compared where that is asked."""


class Load(NamedTuple):
    """What is asked, and how much each replica keeps, in tokens."""

    name: str
    asked: Callable[[int], Iterator[Session]]
    n_cells: int
    n_stored: int


TUNED = ("chats", "fan-outs", "mooncake")
"""The loads that the router's numbers were chosen on. Of the others, one was looked at before it was as it is: how several
routers agree was chosen on long fan-outs too, of another seed."""

LONG_CHATS = Chats(exponent=1.2, n_system=(4_000, 10_000), n_asked=161.3, n_answered=338.0, n_turns=3.5, in_bursts=True)
LONG_FAN_OUTS = FanOuts(n_shared=(3_000, 5_000), n_branches=16, n_after=12, in_bursts=True)


def loads(trace: Path | None, synthetic: Path | None = None) -> list[Load]:
    """All that there are; those of Mooncake's traces where their files are named."""
    small, large = (32_768, 65_536), (135_168, 393_216)
    found = [
        Load("chats", lambda n: chats(n, 600, per_s=0.2, n_system_prompts=4 * n), *small),
        Load("fan-outs", lambda n: fan_outs(n, 600, per_s=0.006), *small),
        Load("long chats", lambda n: chats(n, 600, per_s=0.06, n_system_prompts=4 * n, seed=1, like=LONG_CHATS), *small),
        Load("long fan-outs", lambda n: fan_outs(n, 600, per_s=0.012, seed=2, like=LONG_FAN_OUTS), *small),
        Load("agents", lambda n: agents(n, 600, per_s=0.015, seed=1), *small),
    ]
    if trace is not None:
        found.append(Load("mooncake", lambda n: mooncake(trace, n, 3_600), *large))
        found += [
            Load(f"mooncake, others {nth}", lambda n, nth=nth: mooncake(trace, n, 3_600, part=-nth), *large)  # type: ignore[misc]
            for nth in range(1, 9)
        ]
    if synthetic is not None:
        found.append(Load("documents", lambda n: mooncake(synthetic, n, 3_600, full=64), *large))
    return found


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
    n_routers: int = 0
    """How many there are that know what Ray's routers know; 0 is one that knows how many requests each replica has."""
    with_room: float | None = None
    """The hit rate of the same requests at the same replicas, each of which could keep as much as all do together."""

    @property
    def key(self) -> tuple[str, int, str, int]:
        """By which it is found."""
        return self.load, self.n_replicas, self.rule, self.n_routers

    def line(self) -> str:
        """For a terminal."""
        name = f"{self.rule}, {self.n_routers} routers" if self.n_routers else self.rule
        room = "" if self.with_room is None else f"{100 * self.with_room / self.of_one_cache:>6.1f}"
        return (
            f"  {self.load:<16} {self.n_replicas:>3} {name:<17} │ {100 * self.hit_rate:>5.1f} {100 * self.of_one_cache:>7.1f}"
            f" {100 * self.hit_rate / self.of_one_cache:>6.1f} {room:>6} │ {self.waited_p99_s:>8.2f} {self.first_p50_s:>7.2f}"
            f" {self.first_p99_s:>8.2f} │ {self.imbalance:>5.2f} {100 * self.busy:>5.0f} {self.s_per_million:>7.0f}"
        )


HEAD = (
    f"  {'load':<16} {'n':>3} {'rule':<17} │ {'hit %':>5} {'one, %':>7} {'of it':>6} {'room':>6} │ {'wait p99':>8} {'1st p50':>7}"
    f" {'1st p99':>8} │ {'max/⌀':>5} {'busy%':>5} {'s/M':>7}"
)

ROOM = 8
"""Replicas of the largest cluster of which it is asked what would be found with more room: it takes as much memory again."""


def compare(load: Load, n_replicas: int, names: Sequence[str], n_routers: Sequence[int], program: str) -> Iterator[Row]:
    """All rules on one load, and one cache of the same total size, which gets what came in the order of the first of them."""
    sessions = list(load.asked(n_replicas))
    made: dict[str, Callable[[], Rule]] = {**RULES, PLACED: lambda: Placed(sessions, n_replicas), CELLS: Cells}
    asked: list[tuple[str, int, Rule | Sequence[Rule]]] = [(name, 0, made[name]()) for name in names]
    asked += [("Weft", n, routers(n)) for n in n_routers]
    of_one_cache = None

    def engines(n: int, times: int) -> Engines:
        n_stored = times * (load.n_cells + load.n_stored) - load.n_cells
        return Engines(program, n, n_slots=N_SLOTS, n_cells=load.n_cells, n_stored=n_stored)

    for name, n, rule in asked:
        with engines(n_replicas, 1) as held:
            outcome = simulate(sessions, n_replicas, held, rule, n_slots=N_SLOTS)
        if of_one_cache is None:
            with engines(1, n_replicas) as held:
                of_one_cache = in_one_cache(outcome.sent, held)
        with_room = None
        if n_replicas <= ROOM and name in ("Weft", PLACED) and not n:
            with engines(n_replicas, n_replicas) as held:
                with_room = found_again(outcome.begun, held)
        yield _row(load, n_replicas, name, outcome, of_one_cache)._replace(n_routers=n, with_room=with_room)


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
    """The pictures of `docs/benchmarks/scale.md`."""
    pictures = {}
    for load in TUNED:
        of_load = [row for row in rows if row.load == load and not row.n_routers]
        xs = sorted({row.n_replicas for row in of_load if row.rule == "Weft"})
        names = [name for name in RULES if any(row.rule == name for row in of_load)]
        by = {(row.rule, row.n_replicas): row for row in of_load}
        hits = {name: {x: by[name, x].hit_rate for x in xs if (name, x) in by} for name in names}
        hits = {"one cache": {x: by[names[0], x].of_one_cache for x in xs}, **hits}
        waits = {name: {x: by[name, x].waited_p99_s for x in xs if (name, x) in by} for name in names}
        title = f"{load}: share of the prompts' tokens that is not computed"
        pictures[DOCS / "images" / f"scale-{load}-hits.svg"] = draw(title, xs, hits, is_log=False, unit="")
        title = f"{load}: longest wait of 99 % of the requests"
        pictures[DOCS / "images" / f"scale-{load}-waits.svg"] = draw(title, xs, waits, is_log=True, unit=" s")
    return pictures


def read() -> list[Row]:
    """The rows of which the pictures are."""
    return [Row(**row) for row in json.loads(RECORDED.read_text(encoding="utf-8"))]


def write(rows: Sequence[Row]) -> None:
    """Keeps these rows, and those that were kept of other simulations, which may run beside this one; draws all."""
    with DOCS.joinpath("scale.md").open(encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _write(rows)


def _write(rows: Sequence[Row]) -> None:
    kept = {row.key: row for row in [*(read() if RECORDED.exists() else []), *rows]}
    names = [*RULES, PLACED, CELLS]
    rows = sorted(kept.values(), key=lambda row: (row.load, row.n_replicas, names.index(row.rule), row.n_routers))
    RECORDED.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n", encoding="utf-8")
    for path, picture in drawn(rows).items():
        path.write_text(picture, encoding="utf-8")


def main() -> None:
    """Compares, prints and, where that is asked, writes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trace", type=Path, help="Mooncake's conversation_trace.jsonl")
    parser.add_argument("--synthetic", type=Path, help="Mooncake's synthetic_trace.jsonl")
    parser.add_argument("--routers", default="", help="Weft's rule by so many routers too, with commas between")
    parser.add_argument("--replicas", default="1,2,4,8,16,32,64", help="how many, with commas between")
    parser.add_argument("--loads", default="", help="only these, with semicolons between")
    parser.add_argument(
        "--rules", default=";".join(RULES), help=f"these, with semicolons between; {PLACED!r} and {CELLS!r} are too"
    )
    parser.add_argument("--program", help="the engines' program, where it is built already")
    parser.add_argument("--write", action="store_true", help="keep the numbers and draw the curves")
    given = parser.parse_args()
    program = given.program or built()
    rows = []
    print(HEAD)
    for load in loads(given.trace, given.synthetic):
        if given.loads and load.name not in given.loads.split(";"):
            continue
        for n_replicas in map(int, given.replicas.split(",")):
            n_routers = [int(n) for n in given.routers.split(",") if n]
            for row in compare(load, n_replicas, [rule for rule in given.rules.split(";") if rule], n_routers, program):
                print(row.line(), flush=True)
                rows.append(row)
            if given.write:
                write(rows)


if __name__ == "__main__":
    main()
