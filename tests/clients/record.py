"""Stands between a client and a server, and writes down what the client sends, for `traffic/`.

    python -m tests.clients.record traffic.json http://127.0.0.1:8080 --port 8081

Texts that are longer than a line or two are cut: what counts is which fields are sent, and of which kinds.
"""

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

__all__ = ["shortened"]

LONGEST = 240
"""Most characters of a text that is written down."""

HOPS = frozenset({"host", "connection", "content-length", "accept-encoding", "transfer-encoding", "authorization", "x-api-key"})
"""Headers that are of this connection, or secret."""


def shortened(value: Any) -> Any:  # noqa: ANN401 (any JSON)
    """The same JSON without long texts."""
    if isinstance(value, dict):
        return {name: shortened(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shortened(one) for one in value]
    return value[:LONGEST] + " …" if isinstance(value, str) and len(value) > LONGEST else value


def _handler(upstream: str, file: Path) -> type[BaseHTTPRequestHandler]:
    written: list[Any] = []
    writing = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Says nothing."""

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items() if name.lower() not in HOPS}
            with writing:
                sent = shortened(json.loads(body)) if body else None
                written.append({"method": self.command, "path": self.path, "headers": headers, "body": sent})
                file.write_text(json.dumps(written, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
            answer = httpx.request(self.command, upstream + self.path, content=body, headers=headers, timeout=300)
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers.get("content-type", ""))
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

    for method in ("GET", "POST", "DELETE", "HEAD"):
        setattr(Handler, f"do_{method}", Handler._forward)
    return Handler


def main() -> None:
    """Records until it is interrupted."""
    parser = argparse.ArgumentParser(description="Records what a client sends to a server.")
    parser.add_argument("file", type=Path, help="where it is written")
    parser.add_argument("server", help="where the server is")
    parser.add_argument("--port", type=int, default=8081, help="where the client is to send it (default: 8081)")
    given = parser.parse_args()
    ThreadingHTTPServer(("127.0.0.1", given.port), _handler(given.server.rstrip("/"), given.file)).serve_forever()


if __name__ == "__main__":
    main()
