"""Encoding of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

import msgspec

from weft.server.errors import ErrorBody, describe

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # nginx buffers responses otherwise.
    "x-accel-buffering": "no",
}

PING = b": ping\n\n"
"""A comment, which clients ignore. It keeps connections through proxies alive."""

DONE = b"data: [DONE]\n\n"
"""End marker of OpenAI's streams."""

_encode = msgspec.json.Encoder().encode


def frame(data: object) -> bytes:
    """Returns an event. JSON has no raw line breaks, so one `data` line suffices."""
    return b"data: " + _encode(data) + b"\n\n"


def named_frame(event: str, data: object) -> bytes:
    """Returns a named event. `event` must be a single word."""
    return b"event: " + event.encode() + b"\n" + frame(data)


def spaced_frame(data: object) -> bytes:
    """Returns an event whose JSON has a space after each colon and comma, as from Python's json module."""
    return b"data: " + msgspec.json.format(_encode(data), indent=0) + b"\n\n"


def error_frame(error: Exception) -> bytes:
    """Returns an error event, with the body that a separate error response would have."""
    return frame(ErrorBody(describe(error)))
