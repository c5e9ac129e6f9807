"""Server-sent events: the bytes of one event (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

import msgspec

from weft.server.errors import ErrorBody, describe

__all__ = ["DONE", "HEADERS", "PING", "error_frame", "frame", "named_frame", "spaced_frame"]

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # nginx holds a stream back until its buffer is full, unless it is told not to.
    "x-accel-buffering": "no",
}

PING = b": ping\n\n"
"""A comment, which clients skip: it shows proxies that the connection lives."""

DONE = b"data: [DONE]\n\n"
"""How OpenAI's dialect says that a stream has ended."""

_encode = msgspec.json.Encoder().encode


def frame(data: object) -> bytes:
    """One event. JSON holds no raw line break, so one `data` line is always enough."""
    return b"data: " + _encode(data) + b"\n\n"


def named_frame(event: str, data: object) -> bytes:
    """One event with its name, which is a word, on a line of its own."""
    return b"event: " + event.encode() + b"\n" + frame(data)


def spaced_frame(data: object) -> bytes:
    """One event with a space after each colon and comma, as Python's own JSON has them."""
    return b"data: " + msgspec.json.format(_encode(data), indent=0) + b"\n\n"


def error_frame(error: Exception) -> bytes:
    """An error in mid-stream, in the shape that it would have had as an answer of its own."""
    return frame(ErrorBody(describe(error)))
