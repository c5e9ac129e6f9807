"""What happens between two decodes: ten steps of the server under load, drawn as text.

The worker's parts of a step are the engine's own record (`Engine.recent_steps`); when the event loop was woken and when it wrote
is noted by hooks that only this bench puts in, on the same clock. It also says how long the worker is idle, and what the event
loop's thread, which is all of the interpreter, uses of one core. Start it in the repository's root as
`python -m benches.timeline`, after `cargo bench --bench decode`, which writes the synthetic model; it takes fifteen seconds.
"""

# ruff: noqa: T201  (a bench answers on the standard output)

import argparse
import asyncio
import itertools
import selectors
import statistics
import sys
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
from litestar.enums import ScopeType
from litestar.types import Message, Receive, Scope, Send

from benches.streaming import DEMO, SYNTHETIC, BenchError, Load, Reader, request_of, served
from weft import server
from weft.cli.main import main as weft_main
from weft.server.gateway import Gateway

ROUTE = "/timeline"
"""Where the hooked server tells what was noted."""

STREAMS = 32
N_SHOWN = 10
MAX_NOTED = 200_000
WARM_UP_S = 1.5
WATCHED_S = 3.0
PATIENCE_S = 120.0
"""A slow machine gets this long to take the steps that are shown."""

WIDTH = 96
"""Columns of the picture of one step."""

PARTS = ("receive", "admit", "reload", "offload", "plan", "decode", "sample", "detokenize", "publish")
"""The parts of a step, in their order but for what is placed after the decode."""

MARKS = {"decode": "D", "sample": "s", "detokenize": "t", "publish": "P"}
"""How parts are drawn; all others are preparation."""


class Step(msgspec.Struct):
    """One step of the worker, in seconds."""

    started: float
    took: float
    n_rows: int
    parts: dict[str, float]

    @property
    def decode_start(self) -> float:
        """When its decode began."""
        before = PARTS[: PARTS.index("decode")]
        return self.started + sum(self.parts[part] for part in before)

    @property
    def decode_end(self) -> float:
        """When its decode ended."""
        return self.decode_start + self.parts["decode"]

    @property
    def end(self) -> float:
        """When it ended."""
        return self.started + self.took


class Noted(msgspec.Struct):
    """What the hooks noted since they were last asked, in seconds of the monotonic clock."""

    now: float
    loop_s: float
    """CPU time of the event loop's thread."""
    wakes: list[tuple[float, float]]
    """Each call of the bell's callback: begin and end."""
    writes: list[tuple[float, float]]
    """Each write to a connection: begin and end."""
    n_decodes: int
    """Decodes since the engine's start."""
    steps: list[Step]


class Hooked:
    """The application, with a note of every wake and every write."""

    def __init__(self, app: Gateway) -> None:
        self._app = app
        self.service = app.service
        self._wakes: deque[tuple[float, float]] = deque(maxlen=MAX_NOTED)
        self._writes: deque[tuple[float, float]] = deque(maxlen=MAX_NOTED)
        self._watched: set[int] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the bench's own route, and passes everything else on."""
        self._watch(asyncio.get_running_loop())
        if scope["type"] == ScopeType.HTTP and scope["path"] == ROUTE:
            body = msgspec.json.encode(self._noted())
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body, "more_body": False})
            return

        async def noted(message: Message) -> None:
            began = time.monotonic()
            await send(message)
            if message["type"] == "http.response.body" and message["more_body"]:
                self._writes.append((began, time.monotonic()))

        await self._app(scope, receive, noted if scope["type"] == ScopeType.HTTP else send)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Notes from now on when the loop calls the readers that it is given: the bell of the engine."""
        if id(loop) in self._watched:
            return
        self._watched.add(id(loop))
        add_reader = loop.add_reader

        def add(fd: int, callback: Callable[..., object], *args: object) -> None:
            def noted() -> None:
                began = time.monotonic()
                callback(*args)
                self._wakes.append((began, time.monotonic()))

            add_reader(fd, noted)

        loop.add_reader = add  # type: ignore[method-assign,assignment]

    def _noted(self) -> Noted:
        steps = [
            Step(
                step.started,
                seconds(step.took),
                step.n_rows,
                {part: seconds(getattr(step.times, part)) for part in PARTS},
            )
            for step in self.service.engine.recent_steps()
        ]
        n_decodes = self.service.engine.stats().n_decodes
        noted = Noted(time.monotonic(), time.thread_time(), list(self._wakes), list(self._writes), n_decodes, steps)
        self._wakes.clear()
        self._writes.clear()
        return noted


def seconds(duration: timedelta) -> float:
    """Its seconds."""
    return duration.total_seconds()


def serve(argv: Sequence[str]) -> None:
    """Runs the server with the hooks in it."""
    names = vars(server)
    create_app = names["create_app"]
    names["create_app"] = lambda *args, **kwargs: Hooked(create_app(*args, **kwargs))
    weft_main(argv)


def main() -> int:
    """Prints the picture of each model; 1 if something it needs is missing or answers wrongly."""
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "-m", "--model", action="append", type=Path, help="a GGUF file, instead of the synthetic and the demo model"
    )
    parser.add_argument("--n", type=int, default=1, help="completions per connection; 1 is 32 connections, 32 is one")
    options = parser.parse_args()
    try:
        load = Load(STREAMS // options.n, options.n)
        for path in options.model or [SYNTHETIC, DEMO]:
            if not path.is_file():
                raise BenchError(f"there is no model at {path}; `cargo bench --bench decode` writes the synthetic one")
            show(path, load)
    except BenchError as error:
        print(f"timeline bench: {error}", file=sys.stderr)
        return 1
    return 0


def show(path: Path, load: Load) -> None:
    """Runs the load on a server of its own, and prints what was noted."""
    n_tokens = 900 if path == DEMO else 512
    ctx_size = load.streams * (n_tokens + 128)
    command = [sys.executable, "-m", "benches.timeline", "--serve"]
    with served(path, load.streams, ctx_size, command) as port:
        stop = threading.Event()
        reading = threading.Thread(target=read_until, args=(port, load, n_tokens, stop))
        reading.start()
        try:
            time.sleep(WARM_UP_S)
            before = ask(port)
            noted = watch(port, load)
        finally:
            stop.set()
            reading.join()
    print(f"\n{path.name}, {load}")
    print_picture(noted, load)
    print_sums(noted, before)


def watch(port: int, load: Load) -> Noted:
    """What is noted until there are enough steps to show."""
    wakes: list[tuple[float, float]] = []
    writes: list[tuple[float, float]] = []
    deadline = time.monotonic() + PATIENCE_S
    while True:
        time.sleep(WATCHED_S)
        noted = ask(port)
        wakes += noted.wakes
        writes += noted.writes
        if shown_of(noted, load) or time.monotonic() > deadline:
            return msgspec.structs.replace(noted, wakes=wakes, writes=writes)


def shown_of(noted: Noted, load: Load) -> list[Step]:
    """The last steps in a row that computed a row for each stream, one more than are drawn; none where there are too few."""
    for end in range(len(noted.steps), N_SHOWN, -1):
        steps = noted.steps[end - N_SHOWN - 1 : end]
        if all(step.n_rows == load.streams for step in steps):
            return steps
    return []


def ask(port: int) -> Noted:
    """What was noted since the last time."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{ROUTE}", timeout=10) as answer:
        return msgspec.json.decode(answer.read(), type=Noted)


def read_until(port: int, load: Load, n_tokens: int, stop: threading.Event) -> None:
    """Keeps all streams busy until told to stop: a connection that ends is replaced."""
    request = request_of(port, load, n_tokens)
    with selectors.DefaultSelector() as selector:

        def connect() -> None:
            reader = Reader(port, request)
            selector.register(reader.connection, selectors.EVENT_READ, reader)

        for _ in range(load.connections):
            connect()
        while not stop.is_set():
            for key, _ in selector.select(timeout=0.1):
                if key.data.read():
                    selector.unregister(key.fileobj)
                    key.data.connection.close()
                    connect()
        for key in list(selector.get_map().values()):
            key.data.connection.close()


def print_picture(noted: Noted, load: Load) -> None:
    """Ten steps that computed a row for each stream, each from the end of one decode to the end of the next."""
    shown = shown_of(noted, load)
    if not shown:
        raise BenchError(f"among the last {len(noted.steps)} steps no {N_SHOWN + 1} in a row had all {load.streams} streams")
    scale = max(later.decode_end - step.decode_end for step, later in itertools.pairwise(shown)) / WIDTH
    print(
        f"one column is {scale * 1e6:.0f} µs; worker: D decode, s sample, t detokenize, P publish, p the rest of the step, . idle"
    )
    print("event loop: W woken, w writing, - between writes")
    for number, (step, later) in enumerate(itertools.pairwise(shown), 1):
        begin, end = step.decode_end, later.decode_end
        cells = Cells(begin, scale)
        for at, until, mark in worker_spans(step, later):
            cells.mark(at, until, mark)
        loop = Cells(begin, scale)
        wakes = [wake for wake in noted.wakes if begin <= wake[0] < end]
        writes = [write for write in noted.writes if begin <= write[0] < end]
        if writes:
            loop.mark(writes[0][0], writes[-1][1], "-")
        for at, until in writes:
            loop.mark(at, until, "w")
        for at, until in wakes:
            loop.mark(at, until, "W")
        gap_us, wake_us = (later.decode_start - begin) * 1e6, [(at - begin) * 1e6 for at, _ in wakes]
        written = f"{len(writes)} writes, the last {1e6 * (writes[-1][1] - begin):.0f} µs" if writes else "no write"
        woken = ", ".join(f"{us:.0f}" for us in wake_us) or "never"
        print(f"{number:>2} worker {cells}")
        print(f"   loop   {loop}")
        print(f"          between decodes {gap_us:.0f} µs; woken {woken} µs after the decode; {written} after it")


def worker_spans(step: Step, later: Step) -> list[tuple[float, float, str]]:
    """What the worker does from the end of one decode to the end of the next: begin, end, mark."""
    spans, at = [], step.decode_end
    for part in PARTS[PARTS.index("decode") + 1 :]:
        spans.append((at, at + step.parts[part], MARKS[part]))
        at += step.parts[part]
    spans.append((at, step.end, "p"))
    spans.append((later.started, later.decode_start, "p"))
    spans.append((later.decode_start, later.decode_end, "D"))
    return spans


class Cells:
    """A line of the picture."""

    def __init__(self, begin: float, scale: float) -> None:
        self._begin = begin
        self._scale = scale
        self._cells = ["."] * WIDTH

    def mark(self, at: float, until: float, mark: str) -> None:
        """Fills the columns that a span touches; a short one has at least its first."""
        first = int((at - self._begin) / self._scale)
        last = max(int((until - self._begin) / self._scale), first + 1) if until > at else first
        for column in range(max(first, 0), min(last, WIDTH)):
            self._cells[column] = mark

    def __str__(self) -> str:
        """The line."""
        return "".join(self._cells)


def print_sums(noted: Noted, before: Noted) -> None:
    """Means over the steps that are remembered, and the event loop's use of one core over the whole time."""
    pairs = list(itertools.pairwise(noted.steps))
    span = sum(later.started - step.started for step, later in pairs)
    share = {part: sum(step.parts[part] for step, _ in pairs) / span for part in PARTS}
    named = sum(share.values())
    between = [later.started - step.end for step, later in pairs]
    parts = ", ".join(f"{part} {100 * share[part]:.2f} %" for part in PARTS if share[part] >= 0.0001)
    print(f"the worker's time over {len(noted.steps)} steps of {1e3 * span / len(pairs):.3f} ms: {parts}")
    print(
        f"idle between two steps: {1e6 * statistics.median(between):.1f} µs (median), {1e6 * max(between):.0f} µs at most;"
        f" unnamed within steps and between them: {100 * (1 - named):.2f} %"
    )
    watched = noted.now - before.now
    n_steps = max(noted.n_decodes - before.n_decodes, 1)
    loop_share = (noted.loop_s - before.loop_s) / watched
    print(
        f"event loop: {100 * loop_share:.1f} % of one core, {1e6 * loop_share * watched / n_steps:.0f} µs per step;"
        f" {len(noted.wakes) / n_steps:.2f} wakes and {len(noted.writes) / n_steps:.2f} writes per step"
    )


if __name__ == "__main__":
    sys.exit(main())
