"""API keys: who may use the server."""

import hmac
from collections.abc import Iterable

__all__ = ["PUBLIC", "Keys"]

PUBLIC = frozenset({"/health", "/v1/health", "/", "/index.html", "/completion.js"})
"""Paths that need no key: whether the server lives, the page, at which a person types the key, and the script of pages."""

Header = tuple[bytes, bytes]


class Keys:
    """The keys that open the server; without any it is open."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = [key.encode() for key in keys]

    def allow(self, path: str | None, headers: Iterable[Header]) -> bool:
        """Whether a request with these headers may have this path; None is a path that there is not."""
        return not self._keys or path in PUBLIC or self._fits(headers)

    def owner(self, headers: Iterable[Header]) -> int | None:
        """Which of the keys a request shows, so that nobody is told what another has; None where the server is open."""
        return next((nth for nth, fits in enumerate(self._fitting(headers)) if fits), None)

    def _fits(self, headers: Iterable[Header]) -> bool:
        return sum(self._fitting(headers)) > 0

    def _fitting(self, headers: Iterable[Header]) -> list[bool]:
        """Of each key, whether it is shown."""
        shown = [_without_scheme(value) for name, value in headers if name in (b"authorization", b"x-api-key")]
        # Every pair is compared, and to its end: how long it takes says nothing of how much of a key was right.
        return [sum([hmac.compare_digest(key, one) for one in shown]) > 0 for key in self._keys]


def _without_scheme(value: bytes) -> bytes:
    """A key without the word `Bearer` before it; llama-server takes it with and without, in either header."""
    scheme, _, key = value.strip().partition(b" ")
    return key.strip() if key and scheme.lower() == b"bearer" else value.strip()
