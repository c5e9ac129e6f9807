"""A client in a process of its own: how long a server lets those wait who ask for little, while others ask for much.

`python -m tests.server.probe PORT WORKER` asks `/health` again and again and reads one stream after the other. For each line
that it is sent it prints what the worst has been since the last one, in milliseconds, and how often it has had an answer:
`{"health": 1.5, "stream": 30.1, "n": 250}`. It measures alone: whoever sends megabytes, or has to be fair to others on an event
loop, measures himself.

Left out is the time in which this process, and the event loop of the process WORKER (or its engine, of a stream) could have run
and had no processor: other programs took it, and no server can help that. A loop that is held works meanwhile, or sleeps.
"""

import json
import os
import select
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PERIOD_S = 0.004
"""Between two questions."""

ENGINE = "weft-worker"
"""The threads that compute: each waits for the others many times in a step."""

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"

# It goes first where slots are rare; the pauses that are measured are then those of its own tokens.
BODY = b'{"prompt": "Once upon a time,", "n_predict": 900, "ignore_eos": true, "stream": true, "priority": 100}'
STREAM = b"POST /completion HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


class Moment(NamedTuple):
    """A time, and how long each thread had waited for a processor until then: in seconds, the probe's own first."""

    at: float
    waited: tuple[float, ...]


class Watch:
    """Measures how long something takes, but for the time that who is to do it waited for a processor."""

    def __init__(self, threads: Iterable[Path]) -> None:
        self._files = [os.open(thread / "schedstat", os.O_RDONLY) for thread in (Path("/proc/thread-self"), *threads)]

    def now(self) -> Moment:
        return Moment(time.perf_counter(), tuple(int(os.pread(file, 100, 0).split()[1]) / 1e9 for file in self._files))

    def since(self, began: Moment) -> float:
        """Seconds. Threads wait at the same time: what the one that waited longest did is left out, and not what all did."""
        now = self.now()
        own, *others = (after - before for before, after in zip(began.waited, now.waited, strict=True))
        return now.at - began.at - own - max(others)


class Health:
    """Questions, one at a time, on one connection."""

    def __init__(self, port: int, watch: Watch) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.n = 0
        self._watch = watch
        self._worst_s = 0.0
        self._next_at = 0.0
        self.asked_at: Moment | None = None

    def ask(self) -> None:
        """Asks, unless it is too early or an answer has still to come."""
        if self.asked_at is None and time.perf_counter() >= self._next_at:
            self.asked_at = self._watch.now()
            self.socket.sendall(HEALTH)

    def take(self) -> None:
        """Takes an answer, which comes in one piece."""
        answer = self.socket.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 200 "), f"the server answers its probe, and not {answer!r}"
        self._worst_s = self._worst()
        self.asked_at, self._next_at = None, time.perf_counter() + PERIOD_S
        self.n += 1

    def _worst(self) -> float:
        return self._worst_s if self.asked_at is None else max(self._worst_s, self._watch.since(self.asked_at))

    def told_ms(self) -> float:
        """The worst since this was last told; an answer that is waited for counts as it is."""
        worst_s, self._worst_s = self._worst(), 0.0
        return 1000 * worst_s


class Stream:
    """Streams, one after the other; what passes before the first token of one is no pause."""

    def __init__(self, port: int, watch: Watch) -> None:
        self._port = port
        self._watch = watch
        self._worst_s = 0.0
        self.socket = self._opened()

    def _opened(self) -> socket.socket:
        self._last_at: Moment | None = None
        opened = socket.create_connection(("127.0.0.1", self._port))
        opened.sendall(STREAM)
        return opened

    def take(self) -> None:
        """Takes tokens, or the end of a stream."""
        if not (data := self.socket.recv(65_536)):
            self.socket.close()
            self.socket = self._opened()
        elif b"data: " in data:
            self._worst_s, self._last_at = self._worst(), self._watch.now()

    def _worst(self) -> float:
        return self._worst_s if self._last_at is None else max(self._worst_s, self._watch.since(self._last_at))

    def told_ms(self) -> float:
        """The worst since this was last told; a pause that has not ended counts as it is."""
        worst_s, self._worst_s = self._worst(), 0.0
        return 1000 * worst_s


def main(port: int, worker: int) -> None:
    """Probes until standard input ends."""
    tasks = Path(f"/proc/{worker}/task")
    loop = tasks / str(worker)
    engine = [thread for thread in tasks.iterdir() if (thread / "comm").read_text().strip() == ENGINE]
    assert engine, "the engine computes"
    health = Health(port, Watch([loop]))
    stream = Stream(port, Watch([loop, *engine]))
    while True:
        # Who looks up for nothing while an answer has still to come waits for a processor meanwhile.
        timeout_s = PERIOD_S if health.asked_at is None else None
        ready, _, _ = select.select([sys.stdin, health.socket, stream.socket], [], [], timeout_s)
        if stream.socket in ready:
            stream.take()
        if health.socket in ready:
            health.take()
        health.ask()
        if sys.stdin in ready:
            if not sys.stdin.readline():
                return
            json.dump({"health": health.told_ms(), "stream": stream.told_ms(), "n": health.n}, sys.stdout)
            sys.stdout.write("\n")
            sys.stdout.flush()
            health.n = 0


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
