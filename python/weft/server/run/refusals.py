"""What was refused or cut off before the engine had it: counted for `/metrics`, and told in the log now and then."""

import logging
import time
from threading import Lock
from typing import Final

__all__ = ["REASONS", "Refusals"]

logger = logging.getLogger(__name__)

REASONS: Final = {
    "texts_waiting": "too many texts waited to be read; the client was told to come back",
    "prompt_too_long": "a prompt was too long for the context by its length alone",
    "client_left": "a client left before work on its text began or ended",
}
"""Why, by the name that the metric has for it."""

LOG_INTERVAL_S = 10.0
"""Seconds between two lines of the log about one reason: whoever floods the server does not flood its log."""


class Refusals:
    """Counts since the server's start. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._n = dict.fromkeys(REASONS, 0)
        self._n_told = dict.fromkeys(REASONS, 0)
        self._told_at = dict.fromkeys(REASONS, -LOG_INTERVAL_S)

    @property
    def counts(self) -> dict[str, int]:
        """How often each reason was met."""
        with self._lock:
            return dict(self._n)

    def count(self, reason: str) -> None:
        """Counts one, of a reason in [`REASONS`]."""
        now = time.monotonic()
        with self._lock:
            self._n[reason] += 1
            if now - self._told_at[reason] < LOG_INTERVAL_S:
                return
            n_new = self._n[reason] - self._n_told[reason]
            self._n_told[reason], self._told_at[reason] = self._n[reason], now
        logger.info("refused: %s (%s, %d since the last such line)", REASONS[reason], reason, n_new)
