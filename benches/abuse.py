"""What one stream and one chat feel of 200 connections that abuse the server, and whether anything is left of these.

The server is one of the demo model, or of another one (`--model`, `--random`), with 32 slots, in processes of its own. A stream
is read all the time, one after the other, and a short chat is asked for again and again; measured are the pauses between the
writes of the stream, and the time from its request to the first text. First alone; then beside as many processes that merely
spin as there are abusive ones, because the machine has few cores and all of these take some of their time; then beside plain
streams in all slots, because every server is slower where others are served; then beside the abuse (`benches/abusers.py`).
All but the server and whoever measures run only
where a processor would be idle, so that what is felt is the server's doing and not that of clients on the same cores.

Memory, handles and threads are looked at while the server is idle: new, then before and after the abuse that is measured. Before
that, what is bounded is filled (the cells, the prompts in host memory, the memory of earlier requests), and there is as much
abuse as fills what allocators keep. Start it in the repository's root as `python -m benches.abuse`.
"""

# ruff: noqa: T201  (a bench answers on the standard output)

import argparse
import contextlib
import json
import os
import re
import resource
import selectors
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benches.abusers import ABUSES
from benches.scoring import write_model
from benches.start import MIB, cpu_seconds, memory, serving
from benches.streaming import DEMO, BenchError, post

SLOTS = 32
N_CELLS = 32_768
FLAGS = ("-np", str(SLOTS), "-c", str(N_CELLS), "--kv-unified", "--cache-ram", "32", "--metrics")

PROCESSES = 2
"""Processes of abusive clients, which have the connections among them."""

WARM_S = 90.0
"""Of abuse before anything is measured: from some 2,000 requests on, what the server holds hardly grows any more."""

N_REMEMBERED = 4096
REMEMBERED_PROMPT = "word " * 480
"""Requests that the engine remembers at most, and what all of them begin with: with a thousand tokens each it is full."""

MOST_BESIDE_S = 30.0
"""How long each of the phases besides the abuse is measured at most."""

CHAT_PAUSE_S = 0.05
"""Between the end of a chat and the next."""

PATIENCE_S = 60.0

SETTLE_S = 12.0
"""How long a server that became idle has at least before it is looked at: it looks after its heap every 5 s."""

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
FIRST_TEXT = re.compile(rb'"content":"[^"]')
SPIN = f"import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile os.getppid() == {os.getpid()}: pass"


@dataclass
class Felt:
    """Times in seconds."""

    gaps: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    """Answers other than 200, and chats without a text."""


@dataclass(frozen=True)
class State:
    """What an idle server holds."""

    resident: tuple[int, ...]
    peak: tuple[int, ...]
    """Of the supervisor and the worker, in bytes."""
    handles: int
    threads: int
    busy: int
    """Slots, and requests that are served or wait."""
    stored: int
    """Bytes of cached prompts in host memory."""


class Client:
    """Asks for the same kind of stream again and again."""

    def __init__(self, port: int, path: str, body: dict[str, object], felt: Felt) -> None:
        self._port, self._path, self._body = port, path, body
        self._felt = felt
        self._n = 0
        self.ask()

    def ask(self) -> None:
        """Opens a connection and asks."""
        self._n += 1
        told = json.dumps(self._body).replace("NUMBER", str(self._n)).encode()
        self.asked_at = time.perf_counter()
        self.last_at: float | None = None
        self.begin = b""
        self.socket = socket.create_connection(("127.0.0.1", self._port))
        head = f"POST {self._path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(told)}\r\n\r\n"
        self.socket.sendall(head.encode() + told)

    def read(self) -> bool:
        """Takes what is there; whether that was all."""
        data = self.socket.recv(1 << 16)
        now = time.perf_counter()
        if not data:
            self.socket.close()
            if self.last_at is None:
                self._felt.refused[self.begin[9:12].decode() or "closed"] += 1
            return True
        self.take(data, now)
        return False

    def take(self, data: bytes, now: float) -> None:
        """Notes when it came."""
        raise NotImplementedError


class Stream(Client):
    """Pauses between writes, after the first text."""

    def take(self, data: bytes, now: float) -> None:
        """Notes the pause."""
        if self.last_at is not None:
            self._felt.gaps.append(now - self.last_at)
            self.last_at = now
        else:
            self.begin += data
            if FIRST_TEXT.search(self.begin):
                self.last_at = now


class Chat(Client):
    """Time to the first text."""

    def take(self, data: bytes, now: float) -> None:
        """Notes the first."""
        if self.last_at is None:
            self.begin += data
            if FIRST_TEXT.search(self.begin):
                self.last_at = now
                self._felt.firsts.append(now - self.asked_at)


def feel(port: int, seconds: float, priority: int) -> Felt:
    """Reads a stream and asks for chats for so long."""
    felt = Felt()
    common = {"stream": True, "priority": priority}
    stream = Stream(port, "/completion", {"prompt": "Once upon a time,", "n_predict": 900, "ignore_eos": True} | common, felt)
    messages = [{"role": "user", "content": "Tell me story number NUMBER, of a dog and a small house by the sea."}]
    chat = Chat(port, "/v1/chat/completions", {"messages": messages, "max_tokens": 16} | common, felt)
    end = time.perf_counter() + seconds
    chat_at: float | None = None
    with selectors.DefaultSelector() as selector:
        for client in (stream, chat):
            selector.register(client.socket, selectors.EVENT_READ, client)
        while (now := time.perf_counter()) < end:
            if chat_at is not None and now >= chat_at:
                chat_at = None
                chat.ask()
                selector.register(chat.socket, selectors.EVENT_READ, chat)
            for key, _ in selector.select(CHAT_PAUSE_S if chat_at is None else max(0.0, chat_at - now)):
                client = key.data
                # Whoever is closed has no handle by then.
                selector.unregister(key.fileobj)
                if not client.read():
                    selector.register(client.socket, selectors.EVENT_READ, client)
                elif client is chat:
                    chat_at = time.perf_counter() + CHAT_PAUSE_S
                else:
                    stream.ask()
                    selector.register(stream.socket, selectors.EVENT_READ, stream)
    stream.socket.close()
    chat.socket.close()
    if not felt.gaps or not felt.firsts:
        raise BenchError(f"the server has answered nothing to whoever measures; refused: {dict(felt.refused)}")
    return felt


@contextlib.contextmanager
def abused(port: int, connections: int, only: str | None = None) -> Iterator[Counter[tuple[str, str]]]:
    """Abuse beside the block; its answers are counted when the block is left."""
    counts: Counter[tuple[str, str]] = Counter()
    command = [sys.executable, "-m", "benches.abusers", str(port)]
    choice = ["--only", only] if only else []
    shares = [(connections + nth) // PROCESSES for nth in range(PROCESSES)]
    running = [
        subprocess.Popen([*command, str(share), str(seed), *choice], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for seed, share in enumerate(shares)
    ]
    try:
        yield counts
        for process in running:
            try:
                told, _ = process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired as error:
                raise BenchError("the abusive clients find no time to end: others take all of the machine") from error
            for name, statuses in json.loads(told).items():
                counts.update({(name, status): n for status, n in statuses.items()})
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextlib.contextmanager
def spinning() -> Iterator[None]:
    """Processes beside the block that do nothing but take time that nobody else takes."""
    running = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(PROCESSES)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def ask(port: int, path: str) -> str:
    """The answer to a GET."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def metrics(port: int) -> dict[str, float]:
    """All that /metrics tells, by name and labels."""
    rows = (line.rpartition(" ") for line in ask(port, "/metrics").splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in rows}


def state(port: int, processes: Sequence[int]) -> State:
    """What the server holds, as soon as nothing runs and nobody is connected any more."""
    deadline = time.monotonic() + PATIENCE_S
    settled = time.monotonic() + SETTLE_S
    worker = Path("/proc", str(processes[-1]))
    handles: list[int] = []
    while True:
        told = metrics(port)
        busy = sum(slot["is_processing"] for slot in json.loads(ask(port, "/slots")))
        busy += int(told["llamacpp:requests_processing"] + told["llamacpp:requests_deferred"])
        handles.append(len(list((worker / "fd").iterdir())))
        is_same = time.monotonic() > settled and len(set(handles[-4:])) == 1
        if time.monotonic() > deadline or (not busy and is_same):
            break
        time.sleep(1)
    held = [memory(process) for process in processes]
    return State(
        resident=tuple(one.resident for one in held),
        peak=tuple(one.peak for one in held),
        handles=handles[-1],
        threads=len(list((worker / "task").iterdir())),
        busy=busy,
        stored=int(told["weft:host_cache_bytes"]),
    )


def fill(port: int) -> None:
    """Fills what is bounded: long streams in all slots until every cell was used, then as many requests as are remembered."""
    long = [{"prompt": f"Story {nth}:", "n_predict": N_CELLS // SLOTS - 32, "ignore_eos": True} for nth in range(2 * SLOTS)]
    remembered = [{"prompt": f"{REMEMBERED_PROMPT}{nth}", "n_predict": 1} for nth in range(N_REMEMBERED)]
    with ThreadPoolExecutor(SLOTS) as pool:
        for _ in pool.map(lambda fields: post(port, "/completion", fields, PATIENCE_S), [*long, *remembered]):
            pass


class Others:
    """What other programs on the machine take of it meanwhile: figures are worth little where that is much."""

    def __init__(self, processes: Sequence[int]) -> None:
        self._processes = processes
        self._before = self._look()

    def _look(self) -> tuple[float, float]:
        """Seconds of all processors since the start, and those that others than the server, this process and its clients took."""
        ticks = [int(n) for n in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
        all_s, idle_s = sum(ticks) / TICKS_PER_S, (ticks[3] + ticks[4]) / TICKS_PER_S
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        ours_s = sum(one.ru_utime + one.ru_stime for one in used) + sum(map(cpu_seconds, self._processes))
        return all_s, all_s - idle_s - ours_s

    def part(self) -> float:
        """Of the machine, since the last time; clients must have ended."""
        before, self._before = self._before, self._look()
        return max(0.0, (self._before[1] - before[1]) / (self._before[0] - before[0]))


def share(times: list[float], part: float) -> float:
    """A percentile, in milliseconds."""
    return 1e3 * sorted(times)[min(len(times) - 1, int(part * len(times)))]


def numbers(felt: Felt) -> list[float]:
    """p50, p99 and the greatest, of both."""
    return [share(times, part) for times in (felt.gaps, felt.firsts) for part in (0.5, 0.99, 1.0)]


def print_felt(what: str, felt: Felt, others: float) -> None:
    """One row."""
    gaps, firsts = numbers(felt)[:3], numbers(felt)[3:]
    row = " │ ".join(" ".join(f"{value:>8.1f}" for value in part) for part in (gaps, firsts))
    refused = f"  refused: {dict(felt.refused)}" if felt.refused else ""
    print(f" {what:<26} │ {row} │ {len(felt.gaps):>7} {len(felt.firsts):>6} │ {others:>6.1%}{refused}", flush=True)


def print_ratio(what: str, felt: Felt, base: Felt) -> None:
    """One row of the one divided by the other."""
    ratios = [one / other for one, other in zip(numbers(felt), numbers(base), strict=True)]
    row = " │ ".join(" ".join(f"{value:>7.1f}×" for value in part) for part in (ratios[:3], ratios[3:]))
    print(f" {what:<26} │ {row} │", flush=True)


def print_states(states: Mapping[str, State]) -> None:
    """What was held at some times, by their names; the last two are compared."""
    *_, before, after = states.values()
    print(f"\n the server, idle          │ {' '.join(f'{name:>8}' for name in states)} │ at most")
    for name, number in (("supervisor", 0), ("worker", 1)):
        held = " ".join(f"{one.resident[number] / MIB:>8.1f}" for one in states.values())
        growth = after.resident[number] / before.resident[number] - 1
        print(f" {name + ', MiB':<25} │ {held} │ {after.peak[number] / MIB:>7.1f}  ({growth:+.1%})")
    print(f" {'of it cached, MiB':<25} │ {' '.join(f'{one.stored / MIB:>8.1f}' for one in states.values())} │")
    for name in ("handles", "threads", "busy"):
        print(f" {name:<25} │ {' '.join(f'{getattr(one, name):>8}' for one in states.values())} │")


def print_answers(counts: Counter[tuple[str, str]], before: dict[str, float], after: dict[str, float]) -> None:
    """How the abuse was answered, and what the server counted as refused."""
    statuses: Counter[str] = Counter()
    print(f"\n {counts.total()} abuses")
    for name in ABUSES:
        told = {status: n for (abuse, status), n in sorted(counts.items()) if abuse == name}
        statuses.update(told)
        if told:
            print(f"  {name:<27} {'  '.join(f'{status}: {n}' for status, n in told.items())}")
    print(f"  {'together':<27} {'  '.join(f'{status}: {n}' for status, n in sorted(statuses.items()))}")
    reasons = {name.split('"')[1]: name for name in after if name.startswith("weft:refused_total")}
    refused = {reason: after[name] - before.get(name, 0) for reason, name in reasons.items()}
    print(" refused_total: " + "  ".join(f"{reason}: {n:.0f}" for reason, n in refused.items() if n))


def bench(options: argparse.Namespace, folder: str) -> int:
    """Measures, and prints; 1 if the server logged an error."""
    log = Path(folder, "log")
    model = options.model
    if options.random:
        model = Path(folder, "random.gguf")
        write_model(model)
    with serving((*FLAGS, "--slot-save-path", folder, "--log-file", str(log)), model=model) as (port, processes):
        new = state(port, processes)
        fill(port)
        with abused(port, options.connections, options.only):
            time.sleep(min(WARM_S, options.seconds))
        before = state(port, processes)
        beside_s = min(MOST_BESIDE_S, options.seconds)
        print(f"{'':<27} │ gaps ms: p50      p99      max │ first ms: p50     p99      max │    gaps  chats │ others")
        others = Others(processes)
        alone = feel(port, beside_s, options.priority)
        print_felt("alone", alone, others.part())
        with spinning():
            control = feel(port, beside_s, options.priority)
        print_felt(f"{PROCESSES} processes spin", control, others.part())
        with abused(port, SLOTS, "a plain stream"):
            plain = feel(port, beside_s, options.priority)
        print_felt("plain streams in all slots", plain, others.part())
        counted = metrics(port)
        with abused(port, options.connections, options.only) as counts:
            felt = feel(port, options.seconds, options.priority)
        print_felt("abuse", felt, others.part())
        print_ratio("abuse ÷ alone", felt, alone)
        print_ratio("abuse ÷ spin", felt, control)
        after = state(port, processes)
        print_answers(counts, counted, metrics(port))
        print_states({"new": new, "before": before, "after": after})
    lines = Counter(re.findall(r"\b(WARNING|ERROR|CRITICAL|Traceback)\b", log.read_text(errors="replace")))
    print(f"\n the log has {log.stat().st_size / MIB:.1f} MiB, and of lines that worry: {dict(lines) or 'none'}")
    return 1 if lines["ERROR"] + lines["CRITICAL"] + lines["Traceback"] else 0


def main() -> int:
    """Prints the tables; 1 if the server does not start, does not answer, or logs an error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="of abuse (default: 600)")
    parser.add_argument("--connections", type=int, default=200, help="of abusive clients (default: 200)")
    parser.add_argument("--priority", type=int, default=100, help="of the stream and the chat that are measured (default: 100)")
    parser.add_argument("--model", type=Path, default=DEMO, help="a GGUF file (default: the demo model)")
    parser.add_argument("--random", action="store_true", help="a random model of 28 M parameters instead")
    parser.add_argument("--only", choices=ABUSES, help="one kind of abuse instead of all")
    options = parser.parse_args()
    print(
        f"{options.connections} connections of {options.only or 'mixed abuse'} for {options.seconds:g} s beside a stream and a"
        f" chat of priority {options.priority}; load before: {os.getloadavg()[0]:.2f}"
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            return bench(options, folder)
    except BenchError as error:
        print(f"abuse bench: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
