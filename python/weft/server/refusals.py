"""Counts refused requests and interrupted responses by reason, so that operators can detect an attack."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable
from enum import StrEnum
from threading import Lock

logger = logging.getLogger(__name__)

LINES_PER_S = 10
"""Maximum log lines per second and reason. Further ones are counted, and the next line reports their number."""


class Reason(StrEnum):
    """Why a connection or request was refused, or a response interrupted; used by `/metrics` and the log."""

    NO_REQUEST = "no_request"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    WRONG_HOST = "wrong_host"
    CROSS_ORIGIN = "cross_origin"
    NO_KEY = "no_key"
    NO_ROUTE = "no_route"
    NOT_SUPPORTED = "not_supported"
    SLOW_BODY = "slow_body"
    BODY_TOO_LARGE = "body_too_large"
    TOO_MANY_BODIES = "too_many_bodies"
    INVALID_BODY = "invalid_body"
    INVALID_FIELD = "invalid_field"
    CONTEXT_TOO_LONG = "context_too_long"
    QUEUE_FULL = "queue_full"
    TEXTS_WAITING = "texts_waiting"
    ANSWER_TOO_LARGE = "answer_too_large"
    PINS_FULL = "pins_full"
    CONFLICT = "conflict"
    DOCUMENTS_FULL = "documents_full"
    SLOTS_BUSY = "slots_busy"
    NOT_READY = "not_ready"
    CLIENT_LEFT = "client_left"
    SLOW_READER = "slow_reader"


class Refusals:
    """Counts refusals and limits their log lines, so that an attack cannot flood the log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts = dict.fromkeys(Reason, 0)
        """Refusals since the server's start."""
        self._clock = clock
        self._second: defaultdict[Reason, int] = defaultdict(int)
        """Second of the clock in which each reason was last logged."""
        self._n_lines = dict.fromkeys(Reason, 0)
        """Lines logged in that second."""
        self._n_unlogged = dict.fromkeys(Reason, 0)
        """Refusals since the last logged line."""
        self._lock = Lock()
        """Connections are monitored on a separate thread, requests are handled on the event loop."""

    def add(self, reason: Reason) -> int | None:
        """Counts a refusal.

        Returns:
            The number of preceding refusals that were not logged, or None if this one must not be logged either.
        """
        with self._lock:
            self.counts[reason] += 1
            if (second := int(self._clock())) != self._second[reason]:
                self._second[reason], self._n_lines[reason] = second, 0
            if self._n_lines[reason] >= LINES_PER_S:
                self._n_unlogged[reason] += 1
                return None
            self._n_lines[reason] += 1
            n_unlogged, self._n_unlogged[reason] = self._n_unlogged[reason], 0
            return n_unlogged

    def no_request(self, client: str) -> None:
        """Records a connection that was closed because no complete request head arrived in time."""
        self._cut(Reason.NO_REQUEST, f"a connection of {client} was closed: it sent no request")

    def too_many(self, client: str) -> None:
        """Records a connection that was closed because there were too many, in total or from its address."""
        self._cut(Reason.TOO_MANY_CONNECTIONS, f"a connection of {client} was closed: there are too many")

    def unread(self, client: str) -> None:
        """Records a connection that was closed because its client did not read the end of a response in time."""
        self._cut(Reason.SLOW_READER, f"a connection of {client} was closed: the end of its answer stayed unread")

    def _cut(self, reason: Reason, text: str) -> None:
        if (n_unlogged := self.add(reason)) is not None:
            logger.info("%s%s", text, unlogged(n_unlogged))


def unlogged(n: int) -> str:
    """Returns the suffix of a log line that represents `n` further events."""
    return f" ({n} more like it were not logged)" if n else ""
