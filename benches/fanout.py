"""What it takes to go on from one long text in several ways, against llama-server at its best flags.

Two loads, each on a server that knows nothing yet: four agents that share 7,400 tokens and have 100 of their own, and sixteen
questions of 20 tokens about a document of 4,000. Weft is asked by as many plain requests at once, and by one request with
branches (`suffix_prompt`). llama-server is asked by the same plain requests: with a slot for each of them, with the first
request alone before the others come, and with one slot, where each request goes on from the one before; with and without flash
attention. Told are seconds until the last answer has ended, those until an answer's first token on average, and the tokens of
prompts that were computed.

Where nobody names a model, the agents' is a random one of 28 million parameters. llama-server computes the document anew in
nearly every slot, 64,000 tokens in all, and with one pool for all slots (`--kv-unified`) each of them against the cells of all
others too, which it then leaves out: minutes for one load. So the questions are put to a random model of 3 million parameters,
and llama-server has a cache for each slot there, which is its faster way. Start it in the repository's root as
`python -m benches.fanout --llama-server PATH`, or by `make bench-fanout`: some six minutes, less than four for the questions.
"""

# ruff: noqa: T201  (a bench answers on the standard output)

import argparse
import json
import random
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

from benches.scoring import PATIENCE_S, Server, llama_server, write_model
from benches.start import serving
from benches.streaming import BenchError

N_CTX = 73_728
"""llama-server needs cells for each of sixteen copies of the document."""
N_ANSWER = 32
FIRST_TOKEN, LAST_TOKEN = 300, 1_900
"""Ids of ordinary pieces of the demo model's vocabulary."""


@dataclass(frozen=True)
class Load:
    """Texts that begin alike, in tokens."""

    name: str
    n_shared: int
    n_texts: int
    n_own: int
    n_layers: int
    n_heads: int
    """Of the random model that continues them."""
    one_pool: bool
    """Whether llama-server's slots share their cells."""

    def texts(self, seed: int) -> tuple[list[int], list[list[int]]]:
        """What is shared, and what each text has of its own."""
        draw = random.Random(seed)

        def some(n: int) -> list[int]:
            return [draw.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(n)]

        return some(self.n_shared), [[FIRST_TOKEN - 1 - nth, *some(self.n_own - 1)] for nth in range(self.n_texts)]


LOADS = (
    Load("4 agents, 7,400 shared tokens", 7_400, 4, 100, n_layers=8, n_heads=8, one_pool=True),
    Load("16 questions, a document of 4,000", 4_000, 16, 20, n_layers=2, n_heads=4, one_pool=False),
)


@dataclass(frozen=True)
class Took:
    """What a load took."""

    total_s: float
    first_s: float
    n_computed: int


def read(port: int, body: dict[str, Any]) -> list[float]:
    """Streams a completion; when the first token of each of its branches came."""
    body = body | {"stream": True, "n_predict": N_ANSWER, "ignore_eos": True, "temperature": 0.0, "cache_prompt": True}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", json.dumps(body).encode())
    first: dict[int, float] = {}
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if event.get("tokens") or event.get("content"):
                    first.setdefault(event.get("index", 0), time.perf_counter())
    return list(first.values())


Ask = Callable[[int, list[int], list[list[int]]], list[float]]
"""Asks for all answers; when the first token of each came."""


def at_once(port: int, shared: list[int], own: list[list[int]]) -> list[float]:
    """A request for each."""
    with ThreadPoolExecutor(len(own)) as pool:
        return [first for firsts in pool.map(lambda end: read(port, {"prompt": shared + end}), own) for first in firsts]


def first_alone(port: int, shared: list[int], own: list[list[int]]) -> list[float]:
    """The first, and once it has ended the others."""
    return [*read(port, {"prompt": shared + own[0]}), *at_once(port, shared, own[1:])]


def branches(port: int, shared: list[int], own: list[list[int]]) -> list[float]:
    """One request."""
    return read(port, {"prompt": shared, "branches": [{"suffix_prompt": end} for end in own]})


def measure(server: AbstractContextManager[int], ask: Ask, load: Load, seed: int) -> Took:
    """Asks a server that knows nothing yet."""
    with server as port:
        shared, own = load.texts(seed)
        read(port, {"prompt": shared[-8:]})
        counted = Server(port)
        n_before, started = counted.n_computed(), time.perf_counter()
        firsts = ask(port, shared, own)
        took_s = time.perf_counter() - started
        if len(firsts) != load.n_texts:
            raise BenchError(f"{len(firsts)} of {load.n_texts} texts were answered")
        return Took(took_s, mean(firsts) - started, counted.n_computed() - n_before)


def report(name: str, tries: Sequence[Took], best_s: float | None) -> float:
    """Prints the medians of a row; returns that of the seconds."""
    total_s = median(took.total_s for took in tries)
    first_s = median(took.first_s for took in tries)
    ratio = f"{best_s / total_s:>7.2f}×" if best_s else ""
    print(f"  {name:<44} {total_s:>8.2f} {first_s:>8.2f} {tries[0].n_computed:>9} {ratio}", flush=True)
    return total_s


def main() -> int:
    """Measures both loads."""
    parser = argparse.ArgumentParser(description="what several continuations of one long text take")
    parser.add_argument("model", nargs="?", type=Path, help="a GGUF file for both loads (default: random ones)")
    parser.add_argument("--llama-server", help="llama.cpp's server, to be asked too")
    parser.add_argument("--load", type=int, choices=range(len(LOADS)), help="only this one")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(f"  {'':<44} {'seconds':>8} {'first s':>8} {'computed':>9}  llama-server's best ÷ this")
    with tempfile.TemporaryDirectory() as folder:
        for load in LOADS if args.load is None else [LOADS[args.load]]:
            print(load.name)
            model = args.model or Path(folder) / "random.gguf"
            if args.model is None:
                write_model(model, N_CTX, n_layers=load.n_layers, n_heads=load.n_heads)
            common = ["-c", str(N_CTX), "--metrics"]
            best_s = None
            if args.llama_server:
                ways: list[tuple[str, int, Ask]] = [
                    ("a slot each, at once", load.n_texts, at_once),
                    ("a slot each, the first alone", load.n_texts, first_alone),
                    ("one slot", 1, at_once),
                ]
                for (how, slots, ask), attention in product(ways, ("on", "off")):
                    layout = "--kv-unified" if load.one_pool else "--no-kv-unified"
                    flags = [*common, "-np", str(slots), layout, "-fa", attention]
                    tries = [measure(llama_server(args.llama_server, model, flags), ask, load, n) for n in range(args.rounds)]
                    took_s = report(f"llama-server, {how}, -fa {attention}", tries, None)
                    best_s = min(took_s, best_s or took_s)
            own: list[tuple[str, Ask]] = [("Weft, at once", at_once), ("Weft, branches of one request", branches)]
            for how, ask in own:
                flags = [*common, "-np", str(load.n_texts), "--kv-unified", "-m", str(model)]
                report(how, [measure(weft_server(flags), ask, load, n) for n in range(args.rounds)], best_s)
    return 0


@contextmanager
def weft_server(flags: Sequence[str]) -> Iterator[int]:
    """Weft's server; yields its port."""
    with serving(flags) as (port, _):
        yield port


if __name__ == "__main__":
    sys.exit(main())
