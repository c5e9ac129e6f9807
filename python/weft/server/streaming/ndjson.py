"""Encoding of streams as JSON values, one per line (NDJSON)."""

import msgspec

from weft.server.streaming import sse

HEADERS = sse.HEADERS | {"content-type": "application/x-ndjson"}

_encode = msgspec.json.Encoder().encode


def line(data: object) -> bytes:
    """Returns a line. JSON has no raw line breaks."""
    return _encode(data) + b"\n"
