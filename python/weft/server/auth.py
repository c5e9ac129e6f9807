"""API keys: who may use the server."""

import hmac
from collections.abc import Iterable
from contextvars import ContextVar
from hashlib import sha256

__all__ = ["PUBLIC", "Keys", "current_owner"]

PUBLIC = frozenset({"/health", "/v1/health", "/models", "/v1/models", "/", "/index.html", "/completion.js"})
"""Paths that need no key: whether the server lives, and with which model (as in llama-server of 2024); the page, at which a
person types the key, and the script of pages."""

Header = tuple[bytes, bytes]

_owner: ContextVar[str | None] = ContextVar("owner", default=None)


def current_owner() -> str | None:
    """Whose the request is that this task answers: a digest of its key, or None where the server has none."""
    return _owner.get()


class Keys:
    """The keys that open the server; without any it is open."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = [key.encode() for key in keys]

    def allow(self, path: str | None, headers: Iterable[Header]) -> bool:
        """Whether a request with these headers may have this path; None is a path that there is not."""
        return not self._keys or path in PUBLIC or bool(self._fitting(headers))

    def remember_owner(self, headers: Iterable[Header]) -> None:
        """What this task does from now on is done for whoever has the key that these headers show."""
        fitting = self._fitting(headers)
        _owner.set(sha256(fitting[0]).hexdigest() if fitting else None)

    def _fitting(self, headers: Iterable[Header]) -> list[bytes]:
        shown = [_without_scheme(value) for name, value in headers if name in (b"authorization", b"x-api-key")]
        # Every pair is compared, and to its end: how long it takes says nothing of how much of a key was right.
        compared = [(key, hmac.compare_digest(key, one)) for key in self._keys for one in shown]
        return [key for key, is_same in compared if is_same]


def _without_scheme(value: bytes) -> bytes:
    """A key without the word `Bearer` before it; llama-server takes it with and without, in either header."""
    scheme, _, key = value.strip().partition(b" ")
    return key.strip() if key and scheme.lower() == b"bearer" else value.strip()
