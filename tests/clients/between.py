"""Stands between a client and a server: passes on what either sends, and lets somebody hear of it."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import httpx

__all__ = ["Answered", "Hearing", "Sent", "between"]

HOPS = frozenset({"host", "connection", "content-length", "accept-encoding", "transfer-encoding", "authorization", "x-api-key"})
"""Headers that are of one connection, or secret."""


class Sent(NamedTuple):
    """A request of the client's."""

    method: str
    path: str
    headers: dict[str, str]
    """Those that are passed on."""
    body: bytes


Answered = Callable[[int], None]
"""Hears the status of an answer."""

Hearing = Callable[[Sent], Answered | None]
"""Hears of a request before it is passed on; what it returns hears of its answer. Of one thing at a time."""


def between(server: str, hears: Hearing, port: int = 0) -> ThreadingHTTPServer:
    """A server at `port` of this machine, a free one for 0, which passes on to `server`. It has not begun to serve."""
    upstream = server.rstrip("/")
    hearing = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Says nothing."""

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items() if name.lower() not in HOPS}
            with hearing:
                answered = hears(Sent(self.command, self.path, headers, body))
            answer = httpx.request(self.command, upstream + self.path, content=body, headers=headers, timeout=300)
            if answered is not None:
                with hearing:
                    answered(answer.status_code)
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers.get("content-type", ""))
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

    for method in ("GET", "POST", "DELETE", "HEAD"):
        setattr(Handler, f"do_{method}", Handler._forward)
    return ThreadingHTTPServer(("127.0.0.1", port), Handler)
