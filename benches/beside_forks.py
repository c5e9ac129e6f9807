"""What a stream and a chat feel of forks and of searches beside them, and what these leave behind.

The server is one of the demo model with 16 slots. Beside the stream and the chat of `benches.abuse` two clients ask for as much
as they are given: one lets a branch run, forks it four times where it stands and twice further back; the other searches with
eight beams. Memory, handles and slots are looked at while the server is idle, before and after. Start it in the repository's
root as `python -m benches.beside_forks`.
"""

# ruff: noqa: T201  (a bench answers on the standard output)

import argparse
import http.client
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benches.abuse import Others, feel, print_felt, print_ratio, print_states, state
from benches.start import serving
from benches.streaming import BenchError

FLAGS = ("-np", "16", "-c", "32768", "--kv-unified", "--cache-ram", "64", "--metrics")
WARM_S = 5.0
PROMPT = "Once upon a time, a fox and a bear went to the sea. " * 8


def fork(connect: Callable[[], http.client.HTTPConnection], done: Counter[str]) -> None:
    """One branch and six forks of it."""
    running = connect()
    running.request("POST", "/completion", json.dumps({"prompt": PROMPT, "n_predict": 200, "stream": True, "ignore_eos": True}))
    answer = running.getresponse()
    request_id = answer.headers["x-request-id"]
    for _ in range(60):
        answer.readline()
    bodies: list[dict[str, Any]] = [{"n": 4, "n_predict": 24}, {"n": 2, "n_predict": 24, "at": {"token": 3}, "temperature": 1.5}]
    for body in bodies:
        asking = connect()
        asking.request("POST", f"/requests/{request_id}/branches/0/fork", json.dumps(body))
        done[f"fork: {asking.getresponse().status}"] += 1
        asking.close()
    answer.read()
    running.close()


def search(connect: Callable[[], http.client.HTTPConnection], done: Counter[str]) -> None:
    """A search with eight beams."""
    asking = connect()
    asking.request("POST", "/completion", json.dumps({"prompt": PROMPT, "n_predict": 40, "beam_width": 8, "ignore_eos": True}))
    answer = asking.getresponse()
    answer.read()
    done[f"search: {answer.status}"] += 1
    asking.close()


@contextmanager
def beside(port: int) -> Iterator[Counter[str]]:
    """Both clients, as long as the block runs."""
    done: Counter[str] = Counter()
    is_over = threading.Event()

    def connect() -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def again(ask: Callable[[Callable[[], http.client.HTTPConnection], Counter[str]], None]) -> None:
        while not is_over.is_set():
            ask(connect, done)

    clients = [threading.Thread(target=again, args=(ask,)) for ask in (fork, search)]
    for client in clients:
        client.start()
    try:
        yield done
    finally:
        is_over.set()
        for client in clients:
            client.join()


def main() -> int:
    """Prints the tables; 1 if anything is left running."""
    parser = argparse.ArgumentParser(description="what a stream feels of forks and searches beside it")
    parser.add_argument("--seconds", type=float, default=60)
    args = parser.parse_args()
    try:
        with serving(FLAGS) as (port, processes):
            with beside(port):
                feel(port, WARM_S, 0)
            before = state(port, processes)
            print(f"{'':<27} │ gaps ms: p50      p99      max │ first ms: p50     p99      max │    gaps  chats │ others")
            others = Others(processes)
            alone = feel(port, args.seconds / 2, 0)
            print_felt("alone", alone, others.part())
            with beside(port) as done:
                felt = feel(port, args.seconds, 0)
            print_felt("forks and searches", felt, others.part())
            print_ratio("these ÷ alone", felt, alone)
            after = state(port, processes)
            print(f" {dict(done)}")
            print_states({"before": before, "after": after})
            return 1 if after.busy else 0
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
