"""Weft beside a llama-server, over HTTP: streams of their own prompts, of one prompt, and one that runs while a long one comes.

All servers are started once, and are asked in turns, with prompts that none has seen; what is told are medians of the rounds. A
row tells the seconds until the last answer has ended, as a multiple of the first server's too, the tokens per second while all
are written, the seconds until a first token on average, the 99th percentile and the longest of the pauses between two tokens of
an answer, and the tokens of prompts that were computed. Of the answer beside which a prompt comes, speed and pauses are told of
the time until that prompt's first token. Where the first request goes alone, first tokens are counted from its beginning on.
Start it in the repository's root as `python -m benches.against -m MODEL --llama-server PATH`; `--random 8b-q4_k` writes a random
model and takes that.
"""

# ruff: noqa: T201  (a bench answers on the standard output)

import argparse
import asyncio
import json
import random
import re
import shlex
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benches.sized import SIZES, write_sized
from benches.streaming import BenchError, free_port, running

PATIENCE_S = 120.0

COMMON = ("-c", "73728", "-np", "32", "--metrics")
"""Cells for 32 copies of a prompt of 2,048 tokens, and slots for all."""

WEFT = {"Weft": "--kv-unified"}
"""What Weft is started with beside `COMMON`, by the name in the table."""

LLAMA_SERVER = {
    "llama-server, one pool": "-ngl 99 -fa on --kv-unified --cache-ram 0",
    "llama-server, a cache per slot": "-ngl 99 -fa on --no-kv-unified --cache-ram 0",
}
"""What llama-server is. Without `--cache-ram 0` it copies what a slot held into the machine's memory before each new prompt."""


@dataclass(frozen=True)
class Load:
    """Answers that are written at once."""

    name: str
    n_answers: int
    n_shared: int
    """Tokens with which all prompts begin."""
    n_own: int
    """Tokens of each prompt behind those."""
    n_predict: int
    is_first_alone: bool = False
    """Whether the first one is asked for by itself before the others are."""
    more: dict[str, Any] = field(default_factory=dict)
    """What else a request says."""


LOADS = {
    "one": Load("1 answer, 512 + 256 tokens", 1, 0, 512, 256),
    "eight": Load("8 answers, 512 + 128 each", 8, 0, 512, 128),
    "many": Load("32 answers, 512 + 128 each", 32, 0, 512, 128),
    "greedy": Load("32 answers, 512 + 128 each, greedy", 32, 0, 512, 128, more={"temperature": 0.0}),
    "shared-eight": Load("8 answers, one prompt of 2,048 + 20 own", 8, 2048, 20, 128),
    "shared": Load("32 answers, one prompt of 2,048 + 20 own", 32, 2048, 20, 128),
    "alone": Load("the same, the first one asked for alone", 32, 2048, 20, 128, is_first_alone=True),
    "long": Load("1 answer, 8,192 + 16 tokens", 1, 0, 8192, 16),
}

ARRIVAL = "arrival"
N_RUNNING = 500
"""Tokens of the answer that is written meanwhile."""
N_BESIDE = 8192
"""Tokens of the prompt that comes while an answer is written."""


@dataclass
class Answer:
    """When its pieces came."""

    times: list[float]
    n_tokens: int


@dataclass(frozen=True)
class Took:
    """What a load took."""

    total_s: float
    steady: float
    first_s: float
    p99_ms: float
    longest_ms: float
    n_computed: int
    profile: dict[str, float]


@dataclass(frozen=True)
class Effort:
    """How often is asked, with which prompts, and until when."""

    about: str
    """Prompts differ where this differs."""
    n_rounds: int
    n_vocab: int
    until: float


@dataclass(frozen=True)
class Server:
    """Somebody who answers."""

    name: str
    port: int
    is_split: bool
    """Whether each slot has a part of the cells, so that a long prompt has no room."""

    def metrics(self) -> dict[str, float]:
        """What it counts."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=PATIENCE_S) as answer:
            found = re.findall(r"^([a-z_:]+(?:\{[^}]*\})?) ([0-9.e+-]+)$", answer.read().decode(), re.MULTILINE)
        return {name: float(value) for name, value in found}


async def ask(port: int, body: dict[str, Any], started: asyncio.Event | None = None, after: int = 0) -> Answer:
    """Streams a completion. `started` is set once `after` pieces have come."""
    content = json.dumps(body | {"stream": True, "ignore_eos": True, "cache_prompt": True}).encode()
    head = f"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(f"{head}Connection: close\r\n\r\n".encode() + content)
    times: list[float] = []
    last = b""
    async for line in reader:
        if line.startswith(b"data: {"):
            last = line
            times.append(time.perf_counter())
            if started is not None and len(times) == after:
                started.set()
            if b'"stop":true' in line:
                break
        elif line.startswith(b"HTTP/1.1 ") and b" 200 " not in line:
            raise BenchError(f"refused: {line.decode()} {(await reader.read()).decode()}")
    writer.close()
    if not last:
        raise BenchError("an answer has no tokens")
    event = json.loads(last[6:])
    if "tokens_predicted" not in event:
        raise BenchError(f"an answer ends early: {event}")
    # The last event ends the answer and brings no token.
    return Answer(times[:-1], event["tokens_predicted"])


def prompts(load: Load, seed: str, n_vocab: int) -> list[list[int]]:
    """Random ones."""
    draw = random.Random(seed)
    shared = [draw.randrange(300, n_vocab) for _ in range(load.n_shared)]
    return [shared + [draw.randrange(300, n_vocab) for _ in range(load.n_own)] for _ in range(load.n_answers)]


async def answers(server: Server, load: Load, asked: Sequence[list[int]]) -> list[Answer]:
    """All answers of a load."""
    bodies = [{"prompt": prompt, "n_predict": load.n_predict, "seed": nth} | load.more for nth, prompt in enumerate(asked)]
    first = [await ask(server.port, bodies.pop(0))] if load.is_first_alone else []
    return first + await asyncio.gather(*(ask(server.port, body) for body in bodies))


def measure(server: Server, load: Load, seed: str, n_vocab: int) -> Took:
    """Asks for a load."""
    asked = prompts(load, seed, n_vocab)
    before, began = server.metrics(), time.perf_counter()
    got = asyncio.run(asyncio.wait_for(answers(server, load, asked), PATIENCE_S))
    took_s = time.perf_counter() - began
    after = server.metrics()
    if {answer.n_tokens for answer in got} != {load.n_predict}:
        raise BenchError(f"answers of {[answer.n_tokens for answer in got]} tokens instead of {load.n_predict}")
    at_once = got[load.is_first_alone :]
    from_s, to_s = max(answer.times[0] for answer in at_once), min(answer.times[-1] for answer in at_once)
    n_steady = sum(from_s < one <= to_s for answer in at_once for one in answer.times)
    pauses = sorted(later - earlier for answer in at_once for earlier, later in pairwise(answer.times))
    return Took(
        total_s=took_s,
        steady=n_steady / (to_s - from_s) if to_s > from_s else 0.0,
        first_s=statistics.mean(answer.times[0] - began for answer in at_once),
        p99_ms=1000 * pauses[len(pauses) * 99 // 100],
        longest_ms=1000 * pauses[-1],
        n_computed=int(after["llamacpp:prompt_tokens_total"] - before["llamacpp:prompt_tokens_total"]),
        profile=spent(before, after),
    )


def spent(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What Weft's own metrics grew by: seconds by stage of a step, decodes, tokens that were moved."""
    names = ("weft:step_seconds_total", "llamacpp:n_decode_total", "weft:tokens_offloaded_total", "weft:tokens_relocated_total")
    grown = {name: value - before.get(name, 0.0) for name, value in after.items() if name.startswith(names)}
    return {re.sub(r'.*stage="(\w+)".*|.*:', r"\1", name): round(value, 4) for name, value in grown.items() if value}


def measure_arrival(server: Server, seed: str, n_vocab: int) -> Took:
    """One answer, and a long prompt that comes while it is written."""
    draw = random.Random(seed)
    short, long = ([draw.randrange(300, n_vocab) for _ in range(n)] for n in (64, N_BESIDE))

    async def both() -> tuple[Answer, Answer, float]:
        started = asyncio.Event()
        running = asyncio.create_task(ask(server.port, {"prompt": short, "n_predict": N_RUNNING, "seed": 1}, started, after=100))
        await started.wait()
        asked = time.perf_counter()
        beside = await ask(server.port, {"prompt": long, "n_predict": 2, "seed": 1})
        return await running, beside, asked

    before, began = server.metrics(), time.perf_counter()
    answer, beside, asked = asyncio.run(asyncio.wait_for(both(), PATIENCE_S))
    took_s = time.perf_counter() - began
    after = server.metrics()
    first = beside.times[0]
    if answer.times[-1] < first:
        raise BenchError("the answer ended before the prompt's first token came")
    meanwhile = [later - earlier for earlier, later in pairwise(answer.times) if earlier < first and later > asked]
    n_meanwhile = sum(asked < one <= first for one in answer.times)
    return Took(
        total_s=took_s,
        steady=n_meanwhile / (first - asked),
        first_s=first - asked,
        p99_ms=1000 * sorted(meanwhile)[len(meanwhile) * 99 // 100],
        longest_ms=1000 * max(meanwhile),
        n_computed=int(after["llamacpp:prompt_tokens_total"] - before["llamacpp:prompt_tokens_total"]),
        profile=spent(before, after),
    )


@contextmanager
def started(name: str, command: Sequence[str], logs: Path) -> Iterator[Server]:
    """A server that has loaded its model, and keeps its log."""
    port = free_port()
    log_file = logs / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.log"
    began = time.perf_counter()
    with log_file.open("w+b") as log, running([*command, "--port", str(port)], port, log, name=name, patience_s=PATIENCE_S):
        print(f"{name} is ready after {time.perf_counter() - began:.1f} s: {shlex.join(command[1:])}", flush=True)
        yield Server(name, port, is_split="--no-kv-unified" in command)


def report(what: str, tries: dict[str, list[Took]]) -> None:
    """Prints the medians of a load; the first server's time is what others are compared with."""
    print(what, flush=True)
    own_s = next((statistics.median(one.total_s for one in took) for took in list(tries.values())[:1] if took), float("nan"))
    for name, took in tries.items():
        if not took:
            continue
        total_s, steady, first_s, p99_ms, longest_ms = (
            statistics.median(getattr(one, figure) for one in took)
            for figure in ("total_s", "steady", "first_s", "p99_ms", "longest_ms")
        )
        n_computed = statistics.median(one.n_computed for one in took)
        print(
            f"  {name:<32} {total_s:>7.3f} s {total_s / own_s:>6.2f} × {steady:>8.0f} tokens/s, first {first_s:>7.3f} s, "
            f"p99 {p99_ms:>7.1f} ms, longest {longest_ms:>7.1f} ms, {n_computed:>6.0f} computed",
            flush=True,
        )
        if len(took[-1].profile) > 1:
            print(f"    of which {took[-1].profile}", flush=True)


def ask_all(load: str, servers: Sequence[Server], effort: Effort) -> dict[str, list[Took]]:
    """Asks each server for a load, in rounds in which who is first takes turns."""
    tries: dict[str, list[Took]] = {server.name: [] for server in servers}
    for nth in range(effort.n_rounds):
        for server in servers[:: -1 if nth % 2 else 1]:
            if time.perf_counter() > effort.until or (load in (ARRIVAL, "long") and server.is_split):
                continue
            seed = f"{effort.about} {load} {nth}"
            try:
                if load == ARRIVAL:
                    took = measure_arrival(server, seed, effort.n_vocab)
                else:
                    took = measure(server, LOADS[load], seed, effort.n_vocab)
            except (BenchError, OSError, TimeoutError) as error:
                print(f"  {server.name}, {load}: {error!r:.400}", flush=True)
            else:
                tries[server.name].append(took)
    return tries


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("-m", "--model", type=Path, help="a GGUF file")
    model.add_argument("--random", choices=SIZES, help="writes a random model of this size")
    parser.add_argument("--llama-server", help="llama.cpp's server")
    parser.add_argument("--common", default=shlex.join(COMMON), help="flags of all servers")
    parser.add_argument("--weft", action="append", metavar="NAME=FLAGS", help="a server of Weft (default: one)")
    parser.add_argument("--other", action="append", metavar="NAME=FLAGS", help="a llama-server (default: two)")
    parser.add_argument("--loads", default=",".join([*LOADS, ARRIVAL]))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=int, default=1, help="rounds of 32 answers before anything is measured")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so long")
    parser.add_argument("--n-vocab", type=int, default=2_000, help="prompts are of tokens below this, unless the model is random")
    parser.add_argument("--out", type=Path, help="folder for logs and for what was measured, as JSON")
    return parser.parse_args()


def commands(args: argparse.Namespace, model: Path) -> Iterator[tuple[str, list[str]]]:
    """What each server is started as, by its name."""
    ours, theirs = ([f"{name}={flags}" for name, flags in some.items()] for some in (WEFT, LLAMA_SERVER))
    programs = [([sys.executable, "-m", "weft"], args.weft or ours)]
    if args.llama_server:
        programs.append(([args.llama_server], args.other or theirs))
    for program, named in programs:
        for name, _, flags in (one.partition("=") for one in named):
            yield name, [*program, "-m", str(model), *shlex.split(args.common), *shlex.split(flags)]


def main() -> int:
    """Prints a table for each load; 1 if one was answered by nobody as it should be."""
    args = parsed()
    until = time.perf_counter() + args.seconds
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model, n_vocab = args.model, args.n_vocab
        if args.random:
            model, n_vocab = folder / f"{args.random}.gguf", SIZES[args.random].n_vocab
            began = time.perf_counter()
            write_sized(model, SIZES[args.random])
            print(
                f"{model.name}: {model.stat().st_size / 1e9:.2f} GB, written in {time.perf_counter() - began:.1f} s", flush=True
            )
        out = args.out or folder
        servers = [stack.enter_context(started(name, command, out)) for name, command in commands(args, model)]
        ask_all("many", servers, Effort("before", args.before, n_vocab, until))
        kept, has_failed = {}, False
        for load in args.loads.split(","):
            tries = ask_all(load, servers, Effort("measured", args.rounds, n_vocab, until))
            report(LOADS[load].name if load in LOADS else f"1 answer while {N_BESIDE:,} tokens come", tries)
            has_failed |= not any(tries.values())
            kept[load] = {name: [asdict(one) for one in took] for name, took in tries.items()}
            (out / f"{model.stem}.json").write_text(json.dumps(kept, indent=1), encoding="utf-8")
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
