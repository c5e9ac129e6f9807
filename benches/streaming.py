"""What HTTP costs: streamed tokens per second of the server, against those of the engine in this process.

Both run the same requests in turn, several times over, and the ratio is the median of the rounds, because a shared machine drifts
by more than HTTP costs. Both are timed by their reader, from the first event of a run to the last, so that the prompt's prefill
is outside. Start it in the repository's root, after `cargo bench --bench decode`, which writes the synthetic model.
"""

# ruff: noqa: T201  (a bench answers on the standard output)

import argparse
import asyncio
import contextlib
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

import weft

SYNTHETIC = Path(os.environ.get("CARGO_TARGET_DIR", "target"), "bench-models", "synthetic-0.5b-q8_0.gguf")
DEMO = Path("python", "weft", "models", "storyteller-q8_0.gguf")
SERVER = (sys.executable, "-m", "weft")
PROMPT = "Once upon a time, there was a little girl who lived in a small house by the sea."
# Longest answer that is asked for: with its prompt it fits the demo model's context of 1,024 tokens.
MAX_TOKENS = 512
# Shortest answer that is asked for: one that warms a side up.
N_TRIAL = 16
# Cells of each stream for its prompt, and for what admission keeps free.
SPARE_CELLS = 128
# A stream that sends less than the reader waits for is long over after this time.
SILENCE_S = 60.0


@dataclass(frozen=True)
class Load:
    """How many streams run at once, and in how many requests."""

    connections: int
    n: int

    @property
    def streams(self) -> int:
        """Completions being written at the same time."""
        return self.connections * self.n

    def __str__(self) -> str:
        """For the table."""
        return f"{self.connections} of n={self.n}"


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    side_s: float
    """Aimed-at time of one side in one round."""
    rounds: int


LOADS = (Load(1, 1), Load(1, 8), Load(1, 32), Load(32, 1))
FULL = Effort(side_s=1.5, rounds=5)
QUICK = Effort(side_s=0.5, rounds=2)


class BenchError(Exception):
    """The bench cannot go on; the message says why."""


class Branch(msgspec.Struct):
    """What is checked of an event of `/completion`."""

    stop: bool
    tokens_predicted: int


def main() -> int:
    """Prints the table; 1 if something it needs is missing or answers wrongly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: under a minute")
    parser.add_argument(
        "-m", "--model", action="append", type=Path, help="a GGUF file, instead of the synthetic and the demo model"
    )
    options = parser.parse_args()
    print(
        f"streaming over HTTP: the server against the engine in this process, in one run; load before: {os.getloadavg()[0]:.2f}"
    )
    try:
        for path in options.model or [SYNTHETIC, DEMO]:
            if not path.is_file():
                raise BenchError(f"there is no model at {path}; `cargo bench --bench decode` writes the synthetic one")
            asyncio.run(bench(path, QUICK if options.quick else FULL))
    except BenchError as error:
        print(f"http bench: {error}", file=sys.stderr)
        return 1
    return 0


async def bench(path: Path, effort: Effort) -> None:
    """Measures one model with every load, and prints its part of the table."""
    print(f"\n{path.name}")
    print("   requests  tokens  rounds │ engine tokens/s │ HTTP tokens/s │ ratio")
    for load in LOADS:
        # A pool of its own for each load, with little room beside its streams: cells that earlier rounds left behind slow both
        # sides down, and would make HTTP's share look smaller than it is.
        ctx_size = load.streams * (MAX_TOKENS + SPARE_CELLS)
        async with weft.Engine(path, n_slots=load.streams, n_ctx=ctx_size) as engine:
            with served(path, load.streams, ctx_size) as port:
                n_tokens = await fitting_tokens(engine, load, effort)
                http_speed(port, load, N_TRIAL)
                speeds = [await one_round(engine, port, load, n_tokens, number) for number in range(effort.rounds)]
        print(line(load, n_tokens, speeds), flush=True)


async def one_round(engine: weft.Engine, port: int, load: Load, n_tokens: int, number: int) -> tuple[float, float]:
    """Tokens per second in process and over HTTP. Who goes first takes turns, so that a steady drift favours no side."""
    if number % 2:
        over_http = http_speed(port, load, n_tokens)
        return await engine_speed(engine, load, n_tokens), over_http
    in_process = await engine_speed(engine, load, n_tokens)
    return in_process, http_speed(port, load, n_tokens)


def line(load: Load, n_tokens: int, speeds: Sequence[tuple[float, float]]) -> str:
    """One row of the table."""
    in_process, over_http = (statistics.median(side) for side in zip(*speeds, strict=True))
    ratios = [over_http / in_process for in_process, over_http in speeds]
    spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
    speed = f"{in_process:>15.1f} │ {over_http:>13.1f}"
    return f" {load!s:>10}  {n_tokens:>6}  {len(speeds):>6} │ {speed} │ {statistics.median(ratios):.3f} {spread}"


async def fitting_tokens(engine: weft.Engine, load: Load, effort: Effort) -> int:
    """How many tokens per branch fill the time, from trials that grow until they last long enough to tell."""
    n_trial = N_TRIAL
    while True:
        speed = await engine_speed(engine, load, n_trial) / load.streams
        n_fitting = int(effort.side_s * speed)
        if n_fitting < n_trial * 4 or n_trial * 4 > MAX_TOKENS:
            return max(N_TRIAL, min(MAX_TOKENS, n_fitting))
        n_trial *= 4


async def engine_speed(engine: weft.Engine, load: Load, n_tokens: int) -> float:
    """Tokens per second of all branches together, in this process."""

    async def read() -> tuple[float, float, int]:
        first, count = 0.0, 0
        async for event in engine.stream(PROMPT, n=load.n, max_tokens=n_tokens, seed=1, ignore_eos=True):
            first = first or time.perf_counter()
            count += isinstance(event, weft.Token)
        return first, time.perf_counter(), count

    runs = await asyncio.gather(*(read() for _ in range(load.connections)))
    return speed_of(runs, load, n_tokens)


def http_speed(port: int, load: Load, n_tokens: int) -> float:
    """Tokens per second of all branches together, over one connection per request."""
    request = request_of(port, load, n_tokens)
    readers = [Reader(port, request) for _ in range(load.connections)]
    read_all(readers)
    return speed_of([(reader.first, reader.last, reader.tokens(load, n_tokens)) for reader in readers], load, n_tokens)


def read_all(readers: "Sequence[Reader]") -> None:
    """Reads each answer to its end.

    Raises:
        BenchError: The server has fallen silent.
    """
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader.connection, selectors.EVENT_READ, reader)
        while selector.get_map():
            ready = selector.select(timeout=SILENCE_S)
            if not ready:
                raise BenchError(f"the server has sent nothing for {SILENCE_S:.0f} s, and has not closed the connection")
            for key, _ in ready:
                if key.data.read():
                    selector.unregister(key.fileobj)
                    key.data.connection.close()


def request_of(port: int, load: Load, n_tokens: int) -> bytes:
    """What one connection sends."""
    body = msgspec.json.encode(
        {"prompt": PROMPT, "n": load.n, "n_predict": n_tokens, "seed": 1, "ignore_eos": True, "stream": True}
    )
    head = f"POST /completion HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def speed_of(runs: Sequence[tuple[float, float, int]], load: Load, n_tokens: int) -> float:
    """Tokens per second from the first event of all runs to the last, each being (first, last, tokens)."""
    count = sum(run[2] for run in runs)
    if count != load.streams * n_tokens:
        raise BenchError(f"{load} gave {count} tokens where {load.streams * n_tokens} were asked for")
    return count / (max(run[1] for run in runs) - min(run[0] for run in runs))


class Reader:
    """A client that costs next to nothing, because it shares the processor with the server that it measures.

    It stores what it receives and looks at it when the clock has stopped. After the first event the kernel wakes it only for
    every 16 kB, or at the end (`SO_RCVLOWAT`, socket(7)).
    """

    def __init__(self, port: int, request: bytes) -> None:
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.connection.sendall(request)
        self.received: list[bytes] = []
        self.first = 0.0
        self.last = 0.0

    def read(self) -> bool:
        """Takes what is there; whether that was all."""
        data = self.connection.recv(1 << 18)
        self.last = time.perf_counter()
        self.received.append(data)
        if not self.first and b"data: " in data:
            self.first = self.last
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 << 14)
        return not data

    def tokens(self, load: Load, n_tokens: int) -> int:
        """Tokens of all branches, having checked that each branch ended with `n_tokens` of them."""
        head, _, body = b"".join(self.received).partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise BenchError(f"the server answered {head.splitlines()[:1]}: {body[:500]!r}")
        if b"transfer-encoding: chunked" in head.lower():
            body = b"".join(chunks(body))
        events = [msgspec.json.decode(frame[6:], type=Branch) for frame in body.split(b"\n\n") if frame.startswith(b"data: ")]
        ends = [event.tokens_predicted for event in events if event.stop]
        if ends != [n_tokens] * load.n:
            raise BenchError(f"{load.n} branches of {n_tokens} tokens were asked for; they ended after {ends}")
        return sum(not event.stop for event in events)


def chunks(body: bytes) -> Iterator[bytes]:
    """The pieces of a chunked body (RFC 9112, section 7.1)."""
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size.split(b";")[0], 16)
        yield rest[:length]
        body = rest[length + 2 :] if length else b""


@contextlib.contextmanager
def served(path: Path, slots: int, ctx_size: int, command: Sequence[str] = SERVER) -> Iterator[int]:
    """A server of the model in a process of its own; yields its port once it is ready, and ends it."""
    port = free_port()
    flags = ["-m", str(path), "--port", str(port), "-np", str(slots), "-c", str(ctx_size)]
    with tempfile.TemporaryFile() as log, running([*command, *flags], port, log):
        yield port


@contextlib.contextmanager
def running(
    command: Sequence[str],
    port: int,
    log: IO[bytes],
    *,
    name: str = "the server",
    patience_s: float = 60.0,
    environ: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that serves at this port and writes to `log`, which can be read; yields it once it is ready, and ends it."""
    server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environ)
    try:
        deadline = time.monotonic() + patience_s
        while not is_ready(port):
            if server.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                raise BenchError(f"{name} did not start:\n{log.read()[-2_000:].decode(errors='replace')}")
            time.sleep(0.002)
        yield server
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def post(port: int, path: str, body: dict[str, Any], patience_s: float) -> dict[str, Any]:
    """The answer to a request."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=patience_s) as answer:
            told: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        raise BenchError(f"{path}: {error.read().decode()}") from error
    return told


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def is_ready(port: int) -> bool:
    """Whether the server has loaded its model."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
            return connection.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
