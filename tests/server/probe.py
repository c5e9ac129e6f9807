"""A client in a process of its own: how long a server lets those wait who ask for little, while others ask for much.

`python -m tests.server.probe PORT` asks `/health` again and again and reads one stream after the other. For each line that it is
sent it prints what the worst has been since the last one, in milliseconds: `{"health": 1.5, "stream": 30.1, "n": 250}`, where
`n` is how often it has had an answer. It measures alone:
whoever sends megabytes, or has to be fair to others on an event loop, measures himself.
"""

import json
import select
import socket
import sys
import time

PERIOD_S = 0.004
"""Between two questions."""

HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"

# It goes first where slots are rare; the pauses that are measured are then those of its own tokens.
BODY = b'{"prompt": "Once upon a time,", "n_predict": 900, "ignore_eos": true, "stream": true, "priority": 100}'
STREAM = b"POST /completion HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


class Health:
    """Questions, one at a time, on one connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.worst_s = 0.0
        self.n = 0
        self.next_at = 0.0
        self._asked_at: float | None = None

    def ask(self, now: float) -> None:
        """Asks, unless it is too early or an answer has still to come; one that is waited for counts as it is."""
        if self._asked_at is not None:
            self.worst_s = max(self.worst_s, now - self._asked_at)
        elif now >= self.next_at:
            self.socket.sendall(HEALTH)
            self._asked_at = now

    def take(self, now: float) -> None:
        """Takes an answer, which comes in one piece."""
        answer = self.socket.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 200 "), f"the server answers its probe, and not {answer!r}"
        assert self._asked_at is not None, "nothing comes unasked"
        self.worst_s = max(self.worst_s, now - self._asked_at)
        self._asked_at, self.next_at = None, now + PERIOD_S
        self.n += 1


class Stream:
    """Streams, one after the other; what passes before the first token of one is no pause."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.worst_s = 0.0
        self.socket = self._opened()

    def _opened(self) -> socket.socket:
        self._last_at: float | None = None
        opened = socket.create_connection(("127.0.0.1", self._port))
        opened.sendall(STREAM)
        return opened

    def take(self, now: float) -> None:
        """Takes tokens, or the end of a stream."""
        if not (data := self.socket.recv(65_536)):
            self.socket.close()
            self.socket = self._opened()
        elif b"data: " in data:
            if self._last_at is not None:
                self.worst_s = max(self.worst_s, now - self._last_at)
            self._last_at = now


def main(port: int) -> None:
    """Probes until standard input ends."""
    health, stream = Health(port), Stream(port)
    while True:
        ready, _, _ = select.select([sys.stdin, health.socket, stream.socket], [], [], PERIOD_S)
        now = time.perf_counter()
        if stream.socket in ready:
            stream.take(now)
        if health.socket in ready:
            health.take(now)
        health.ask(now)
        if sys.stdin in ready:
            if not sys.stdin.readline():
                return
            json.dump({"health": 1000 * health.worst_s, "stream": 1000 * stream.worst_s, "n": health.n}, sys.stdout)
            sys.stdout.write("\n")
            sys.stdout.flush()
            health.worst_s, stream.worst_s, health.n = 0.0, 0.0, 0


if __name__ == "__main__":
    main(int(sys.argv[1]))
