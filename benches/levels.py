"""What a wheel's speed is at each level of CPUs, against that of the build for this machine alone, in one run.

Every side is a process of its own that holds the model; one of them computes at a time, in turns, and a ratio is of two that
followed each other, since a shared machine drifts by more than is to be told apart: the median of these ratios, with their
quartiles. Others that compute on the machine make a side slower and never faster, so the ratio of the best rounds is there
too. The native build is there twice: its ratio to itself is what the others can be told by. A side of the slowest level may take
a minute for one round, and gets few. Start it in the repository's root, with the interpreter of an environment that the wheel is
installed in: `python -m benches.levels /tmp/installed/bin/python`. The larger model is written by `cargo bench --bench decode --
--write-model`.
"""

# ruff: noqa: T201  (a bench answers on the standard output)

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benches.streaming import DEMO, SYNTHETIC
from weft.installed.levels import LEVELS, MACHINE, VARIABLE, processor_features

SIDE = Path(__file__).with_name("side.py")

FEWEST = 4
"""Rounds of a row, however long they take. An even number: who goes first takes turns."""


@dataclass(frozen=True)
class Work:
    """What is timed."""

    name: str
    n_prompt: int
    n_streams: int
    """0 for the prompt alone."""

    @property
    def spelt(self) -> str:
        """For another process."""
        return f"{self.n_prompt} {self.n_streams}"


HEADER = (
    f"{'':20}{'level':16}{'native tokens/s':>16}{'tokens/s':>10}{'of bests':>10}{'median':>8}   {'quartiles':14}processor  rounds"
)
WORKS = (Work("prefill", 512, 0), Work("decode, 1 stream", 32, 1), Work("decode, 8 streams", 32, 8))


class Speed(NamedTuple):
    """Tokens per second."""

    wall: float
    processor: float
    """Of all cores together: what waits for other programs does not count, what threads wait for each other does."""


@dataclass
class Side:
    """A process that computes when it is told to."""

    name: str
    process: subprocess.Popen[str]

    def time(self, work: Work, seconds: float) -> Speed:
        """Over about so many seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{work.spelt} {seconds}\n")
        self.process.stdin.flush()
        wall, processor = self.process.stdout.readline().split()
        return Speed(float(wall), float(processor))


def main() -> None:
    """Prints a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="an interpreter that has the wheel")
    parser.add_argument(
        "-m", "--model", action="append", type=Path, help="a GGUF file, instead of the synthetic and the demo model"
    )
    parser.add_argument(
        "--levels", help="those to compare, as `avx2` or, with other kernels of ours, `baseline/avx512`; all that run here"
    )
    parser.add_argument("--rounds", type=int, default=24, help="of a row, at most")
    parser.add_argument(
        "--row", type=float, default=30.0, help=f"seconds after which a row gets no further round beyond {FEWEST}"
    )
    parser.add_argument("--seconds", type=float, default=0.25, help="of one side in one round")
    parser.add_argument("--threads", type=int, help="with one, no thread waits for another")
    asked = parser.parse_args()
    has = processor_features()
    if has is None:
        parser.error("this machine does not tell what its processor has")
    names = [level.name for level in LEVELS[MACHINE] if level.flags <= has]
    if asked.levels:
        names = asked.levels.split(",")
    print(f"load before: {os.getloadavg()[0]:.2f}; {asked.rounds} rounds of {asked.seconds:g} s a side")
    for path in asked.model or [SYNTHETIC, DEMO]:
        compare(path, names, asked)


def compare(path: Path, names: Sequence[str], asked: argparse.Namespace) -> None:
    """One table."""
    file = [str(path), *([str(asked.threads)] if asked.threads else [])]
    print(f"\n{path.name}")
    with contextlib.ExitStack() as stack:
        native = stack.enter_context(started("native", sys.executable, file))
        others = [stack.enter_context(started("native again", sys.executable, file))]
        others += [stack.enter_context(started(name, asked.python, file, *name.split("/"))) for name in names]
        print(HEADER)
        for work in WORKS:
            for side in [native, *others]:
                side.time(work, 0.0)
            for other in others:
                print(row(work, other, rounds(native, other, work, asked)), flush=True)


def rounds(native: Side, other: Side, work: Work, asked: argparse.Namespace) -> list[tuple[Speed, Speed]]:
    """As many as are asked for, or as there is time for."""
    pairs: list[tuple[Speed, Speed]] = []
    until = time.monotonic() + asked.row
    while len(pairs) < asked.rounds and (len(pairs) < FEWEST or time.monotonic() < until):
        pairs.append(pair(native, other, work, asked.seconds, len(pairs)))
    return pairs


def pair(native: Side, other: Side, work: Work, seconds: float, number: int) -> tuple[Speed, Speed]:
    """Both, one after the other; who goes first takes turns."""
    if number % 2:
        second = other.time(work, seconds)
        return native.time(work, seconds), second
    first = native.time(work, seconds)
    return first, other.time(work, seconds)


def row(work: Work, side: Side, pairs: Sequence[tuple[Speed, Speed]]) -> str:
    """For the table."""
    native, other = (max(speed.wall for speed in column) for column in zip(*pairs, strict=True))
    low, middle, high = statistics.quantiles((theirs.wall / ours.wall for ours, theirs in pairs), n=4, method="inclusive")
    processor = statistics.median(theirs.processor / ours.processor for ours, theirs in pairs)
    ratios = f"{other / native:>10.3f}{middle:>8.3f}   {low:.3f} to {high:.3f}{processor:>9.3f}{len(pairs):>8}"
    return f"{work.name:<20}{side.name:<16}{native:>16.1f}{other:>10.1f}{ratios}"


@contextlib.contextmanager
def started(name: str, python: str, file: Sequence[str], level: str | None = None, kernels: str | None = None) -> Iterator[Side]:
    """A process that has loaded the model, by the Weft that its interpreter finds."""
    asked = {VARIABLE: level, "WEFT_INSTRUCTIONS": kernels}
    environ = {key: value for key, value in os.environ.items() if key not in asked}
    environ |= {key: value for key, value in asked.items() if value is not None}
    process = subprocess.Popen([python, SIDE, *file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)
    try:
        assert process.stdout is not None
        print(f"{name:<16}{process.stdout.readline().strip()}", flush=True)
        yield Side(name, process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=30)


if __name__ == "__main__":
    main()
