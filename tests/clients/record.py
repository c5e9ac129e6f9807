"""Stands between a client and a server, and writes down what the client sends, for `traffic/`.

    python -m tests.clients.record traffic.json http://127.0.0.1:8080 --port 8081

Texts that are longer than a line or two are cut: what counts is which fields are sent, and of which kinds.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from tests.clients.between import Hearing, Sent, between

__all__ = ["recorder", "shortened"]

LONGEST = 240
"""Most characters of a text that is written down."""


def shortened(value: Any) -> Any:  # noqa: ANN401 (any JSON)
    """The same JSON without long texts."""
    if isinstance(value, dict):
        return {name: shortened(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shortened(one) for one in value]
    return value[:LONGEST] + " …" if isinstance(value, str) and len(value) > LONGEST else value


def recorder(file: Path) -> Hearing:
    """Writes down all that it hears of, in `file`."""
    written: list[Any] = []

    def hears(sent: Sent) -> None:
        body = shortened(json.loads(sent.body)) if sent.body else None
        written.append({"method": sent.method, "path": sent.path, "headers": sent.headers, "body": body})
        file.write_text(json.dumps(written, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    return hears


def main() -> None:
    """Records until it is interrupted."""
    parser = argparse.ArgumentParser(description="Records what a client sends to a server.")
    parser.add_argument("file", type=Path, help="where it is written")
    parser.add_argument("server", help="where the server is")
    parser.add_argument("--port", type=int, default=8081, help="where the client is to send it (default: 8081)")
    given = parser.parse_args()
    between(given.server, recorder(given.file), given.port).serve_forever()


if __name__ == "__main__":
    main()
