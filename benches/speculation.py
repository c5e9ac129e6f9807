"""Speculative decoding over HTTP, beside a llama-server: a text that is copied, JSON of a schema, and prose.

All servers are started once and asked by turns: Weft with drafts and without, and llama-server without and with each of its ways
to draft from text; both also with a draft model, if one is given. A row has the median of the tokens per second that the server
reports, as a multiple of Weft's without drafts too, and the share of drafted tokens that were accepted. Each round has its own
prompts and API key, so that Weft drafts nothing from an earlier round. Start it in the repository's root as
`python -m benches.speculation -m MODEL --llama-server PATH`.
"""

# ruff: noqa: T201  (a bench answers on the standard output)

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches.against import PATIENCE_S, Server, started
from benches.streaming import BenchError

COMMON = ("-c", "8192", "-np", "1", "-t", "2")

WEFT = {"Weft, no drafts": "--spec-type none", "Weft": ""}

LLAMA_SERVER = {
    "llama-server": "--spec-type none",
    "llama-server, ngram-simple": "--spec-type ngram-simple",
    "llama-server, ngram-simple 4, 16": "--spec-type ngram-simple --spec-ngram-simple-size-n 4 --spec-ngram-simple-size-m 16",
    "llama-server, ngram-map-k": "--spec-type ngram-map-k",
    "llama-server, ngram-map-k 4, 16": "--spec-type ngram-map-k --spec-ngram-map-k-size-n 4 --spec-ngram-map-k-size-m 16",
    "llama-server, ngram-mod": "--spec-type ngram-mod",
    "llama-server, ngram-mod 8, 16": "--spec-type ngram-mod --spec-ngram-mod-n-match 8 --spec-ngram-mod-n-min 2 "
    "--spec-ngram-mod-n-max 16",
}

DRAFT_MODEL = "--spec-type draft-simple -md"
"""Flag of a draft model, in both servers."""

REPORT = Path(__file__).with_name("report.txt").read_text(encoding="utf-8")
CUSTOMER = json.loads(Path(__file__).with_name("customer.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Speed:
    """What one answer took."""

    tokens_per_s: float
    n_drafted: int
    n_accepted: int


def copying(nth: int) -> dict[str, Any]:
    """A text that was written twice is written once more."""
    return {"prompt": f"{nth}.\n\n{REPORT}\n" * 2 + f"{nth}.\n\n", "n_predict": 300, "temperature": 0.0, "ignore_eos": True}


def customer(nth: int) -> dict[str, Any]:
    """JSON of a schema."""
    return {"prompt": chat(f"{nth}. Invent a customer of a bookshop, as JSON."), "n_predict": 400, "json_schema": CUSTOMER}


def prose(nth: int) -> dict[str, Any]:
    """A story."""
    return {"prompt": chat(f"{nth}. Write a short story about a fox."), "n_predict": 200, "ignore_eos": True}


def chat(question: str) -> str:
    """One question, in the format of SmolLM2 and Qwen."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


LOADS = {"copying 300 tokens": copying, "JSON of a schema": customer, "prose": prose}


def key(nth: int) -> str:
    """The API key of a round."""
    return f"round-{nth}"


def ask(server: Server, body: dict[str, Any], nth: int) -> Speed:
    """One answer."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {key(nth)}"}
    content = json.dumps(body | {"seed": nth, "cache_prompt": True}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/completion", content, headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        timings = json.load(answer)["timings"]
    return Speed(timings["predicted_per_second"], timings.get("draft_n", 0), timings.get("draft_n_accepted", 0))


def commands(args: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """What each server is started as, by its name."""
    keys = ",".join(map(key, range(args.rounds + 1)))
    flags = ["-m", str(args.model), *shlex.split(args.common), "--api-key", keys]
    for name, own in WEFT.items():
        yield name, [sys.executable, "-m", "weft", *flags, "--kernels", "weft", *shlex.split(own)]
    drafting = [*shlex.split(DRAFT_MODEL), str(args.draft)] if args.draft else []
    if drafting:
        yield "Weft, draft model", [sys.executable, "-m", "weft", *flags, "--kernels", "weft", *drafting]
    if args.llama_server:
        for name, own in LLAMA_SERVER.items():
            yield name, [args.llama_server, *flags, *shlex.split(own)]
        if drafting:
            yield "llama-server, draft model", [args.llama_server, *flags, *drafting]


def main() -> int:
    """Prints a table for each load; 1 if a server does not start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--draft", type=Path, help="a draft model for MODEL, which both servers also use")
    parser.add_argument("--llama-server", help="llama.cpp's server")
    parser.add_argument("--common", default=shlex.join(COMMON), help="flags of all servers")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(f"{args.model.name}; load before: {os.getloadavg()[0]:.2f}")
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            servers = [stack.enter_context(started(name, command, folder)) for name, command in commands(args)]
            for name, load in LOADS.items():
                # The first round warms up: Weft measures what rows cost.
                speeds: dict[str, list[Speed]] = {server.name: [] for server in servers}
                for nth in range(args.rounds + 1):
                    for server in servers[:: -1 if nth % 2 else 1]:
                        speeds[server.name].append(ask(server, load(nth), nth))
                report(name, {name: of_server[1:] for name, of_server in speeds.items()})
    except BenchError as error:
        print(f"speculation bench: {error}", file=sys.stderr)
        return 1
    return 0


def report(load: str, speeds: dict[str, list[Speed]]) -> None:
    """Prints the medians of a load."""
    print(load, flush=True)
    medians = {name: statistics.median(one.tokens_per_s for one in of_server) for name, of_server in speeds.items()}
    first = next(iter(medians.values()))
    for name, median in medians.items():
        n_drafted, n_accepted = (sum(getattr(one, what) for one in speeds[name]) for what in ("n_drafted", "n_accepted"))
        share = f"{n_accepted} of {n_drafted} drafted tokens accepted" if n_drafted else "no drafts"
        print(f"  {name:<34} {median:>7.1f} tokens/s {median / first:>6.2f} ×  {share}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
