"""What a start costs, in time and in memory, with the demo model.

Every time is of a fresh process, with the bytecode of every module at hand: a first round that is not counted writes it. The
starts take turns, and each is also told as a multiple of the interpreter that did nothing in the same round, which a slow machine
slows down as well. Other programs make a start later and never earlier, so look at the least time, and at the time of the
processor, which they change little. Memory is what is resident: of a process all that it maps, and in brackets its share of what
it has in common with others (`Pss`, proc_pid_smaps_rollup(5)). Start it in the repository's root as `python -m benches.start`; it
takes half a minute. `--python /tmp/installed/bin/python` starts the wheel that this interpreter has.
"""

# ruff: noqa: T201  (a bench answers on the standard output)

import argparse
import contextlib
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benches.streaming import DEMO, BenchError, Load, free_port, http_speed, running

PROMPT = "Once upon a time,"

STAGES = (
    ("interpreter, asyncio", "import asyncio"),
    ("supervisor", "import weft.serving.serve"),
    ("engine's modules", "import weft.engine"),
    ("HTTP's modules", "import weft.server"),
    ("application", "app = weft.server.create_app(weft.Engine())"),
    ("model loaded, 8 slots", "engine = weft.Engine(); loop = asyncio.new_event_loop(); loop.run_until_complete(engine.start())"),
)
"""What a worker comes to, one after the other, in one interpreter."""

STREAMS = 32
MAX_TOKENS = 256
PATIENCE_S = 60.0
MIB = 1 << 20

LOOK = """
def look():
    with open("/proc/self/smaps_rollup") as file:
        rows = dict(line.split()[:2] for line in file if line.endswith("kB\\n"))
    print(rows["Rss:"], rows["Anonymous:"])
"""


@dataclass(frozen=True)
class Took:
    """One start."""

    wall_s: float
    cpu_s: float
    """Of all its processes, user and system."""


@dataclass(frozen=True)
class Memory:
    """What one process holds, in bytes."""

    resident: int
    share: int
    peak: int

    def __str__(self) -> str:
        """For the table."""
        return f"{self.resident / MIB:5.1f} ({self.share / MIB:4.1f})"


def main() -> int:
    """Prints the tables; 1 if the server does not start or answers wrongly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--python", help="an interpreter that has a wheel, in place of this one")
    options = parser.parse_args()
    if options.python:
        quick = ["--quick"] if options.quick else []
        os.execv(options.python, [options.python, "-m", "benches.start", *quick])
    n = 3 if options.quick else 11
    print(f"starts of a fresh process, {n} of each in turn; load before: {os.getloadavg()[0]:.2f}")
    try:
        print_times([[start() for _, start in STARTS] for _ in range(n + 1)][1:])
        print_stages()
        print_processes()
    except BenchError as error:
        print(f"start bench: {error}", file=sys.stderr)
        return 1
    return 0


def print_times(rounds: Sequence[Sequence[Took]]) -> None:
    """A row for each start; the first start is what the others are measured by."""
    print("                                     │ wall ms: least  median  times the first │ processor ms: least")
    for number, (what, _) in enumerate(STARTS):
        wall = [1e3 * took[number].wall_s for took in rounds]
        times = statistics.median(took[number].wall_s / took[0].wall_s for took in rounds)
        cpu = min(1e3 * took[number].cpu_s for took in rounds)
        print(f" {what:<35} │ {min(wall):>14.0f} {statistics.median(wall):>7.0f} {times:>16.1f} │ {cpu:>19.0f}", flush=True)


def command(arguments: Sequence[str]) -> Took:
    """Runs an interpreter to its end."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True, env=environ())
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Took(wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def until_ready() -> Took:
    """Starts the server until it is ready."""
    began = time.perf_counter()
    with serving(()) as (_, processes):
        wall_s = time.perf_counter() - began
        return Took(wall_s, sum(map(cpu_seconds, processes)))


def until_first_token() -> Took:
    """Starts the server, asks for a stream as soon as it is ready, and waits for the first event."""
    began = time.perf_counter()
    with serving(()) as (port, processes):
        body = json.dumps({"prompt": PROMPT, "n_predict": 8, "stream": True}).encode()
        head = f"POST /completion HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
            connection.sendall(head + body)
            told = b""
            while b"data: " not in told:
                piece = connection.recv(65_536)
                if not piece:
                    raise BenchError(f"there is no token in the answer:\n{told.decode(errors='replace')}")
                told += piece
        wall_s = time.perf_counter() - began
        return Took(wall_s, sum(map(cpu_seconds, processes)))


STARTS: tuple[tuple[str, Callable[[], Took]], ...] = (
    ("an interpreter that does nothing", partial(command, ("-c", "pass"))),
    ("import weft", partial(command, ("-c", "import weft"))),
    ("import weft, and its engine", partial(command, ("-c", "import weft; weft.Engine"))),
    ("python -m weft --version", partial(command, ("-m", "weft", "--version"))),
    ("python -m weft --help", partial(command, ("-m", "weft", "--help"))),
    ("python -m weft until /health is 200", until_ready),
    ("python -m weft until a first token", until_first_token),
)


def print_stages() -> None:
    """Where the memory of a worker goes."""
    code = f"import asyncio\n{LOOK}\nlook()\n" + "".join(f"{code}\nlook()\n" for _, code in STAGES)
    ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, text=True, env=environ())
    _, *sums = [tuple(int(number) / 1024 for number in line.split()) for line in ran.stdout.splitlines()]
    print("\nwhere a worker's memory goes, MiB      │ resident   added │ of it its own")
    before = (0.0, 0.0)
    for (what, _), (resident, own) in zip(STAGES, sums, strict=True):
        print(f" {what:<37} │ {resident:>8.1f} {resident - before[0]:>7.1f} │ {own - before[1]:>13.1f}")
        before = resident, own


def print_processes() -> None:
    """What the processes hold: idle, and with all streams."""
    print("\nresident memory, MiB (share)           │  supervisor │      worker │ worker's peak")
    with serving(()) as (_, processes):
        print_memory("idle, 8 slots", processes)
    with serving(("-np", str(STREAMS))) as (port, processes):
        print_memory(f"idle, {STREAMS} slots", processes)
        http_speed(port, Load(STREAMS, 1), MAX_TOKENS)
        print_memory(f"after {STREAMS} streams of {MAX_TOKENS} tokens", processes)


def print_memory(what: str, processes: Sequence[int]) -> None:
    """One row."""
    supervisor, worker = map(memory, processes)
    print(f" {what:<37} │ {supervisor} │ {worker} │ {worker.peak / MIB:>13.1f}", flush=True)


@contextlib.contextmanager
def serving(flags: Sequence[str], program: Sequence[str] = ("weft",), model: Path = DEMO) -> Iterator[tuple[int, list[int]]]:
    """A server of a model; yields its port and its processes, the supervisor first, as soon as it is ready.

    `program` is what serves, with flags of its own.
    """
    port = free_port()
    command = [sys.executable, "-m", *program, "-m", str(model.absolute()), "--port", str(port), *flags]
    with tempfile.TemporaryFile() as log, running(command, port, log, patience_s=PATIENCE_S, environ=environ()) as server:
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text(encoding="ascii")
        yield port, [server.pid, *map(int, children.split())]


def cpu_seconds(process: int) -> float:
    """What a process has used of the processor (proc_pid_stat(5))."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: int) -> Memory:
    """What a process holds."""
    rollup = fields_of(Path(f"/proc/{process}/smaps_rollup"))
    return Memory(rollup["Rss"], rollup["Pss"], fields_of(Path(f"/proc/{process}/status"))["VmHWM"])


def fields_of(path: Path) -> dict[str, int]:
    """The fields of a file that are in kB, in bytes."""
    rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("kB")]
    return {name.rstrip(":"): int(number) * 1024 for name, number, _ in rows}


def environ() -> dict[str, str]:
    """The environment without settings of the server, and with leave to write bytecode."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("LLAMA_ARG_") and name != "PYTHONDONTWRITEBYTECODE"
    }


if __name__ == "__main__":
    sys.exit(main())
