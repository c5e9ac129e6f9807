"""Authentication by API key."""

import hmac
from collections.abc import Iterable
from contextvars import ContextVar
from hashlib import sha256

PUBLIC = frozenset(
    {
        *("/health", "/v1/health", "/models", "/v1/models", "/", "/index.html", "/completion.js"),
        *("/docs", "/docs.css", "/docs.js", "/openapi.json"),
    }
)
"""Paths that need no key: liveness and the model list (as in llama-server of 2024), the pages on which the user enters the key,
the OpenAPI document that one of them shows, and the script that pages import."""

Header = tuple[bytes, bytes]

_owner: ContextVar[str | None] = ContextVar("owner", default=None)


def current_owner() -> str | None:
    """Returns the SHA-256 digest of the API key of the current request, or None if the server has no keys."""
    return _owner.get()


class Keys:
    """Accepted API keys. Without any, every request is accepted."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = [key.encode() for key in keys]

    def allow(self, path: str | None, headers: Iterable[Header]) -> bool:
        """Returns whether a request with these headers may access a path. None stands for an unknown path."""
        return not self._keys or path in PUBLIC or bool(self._fitting(headers))

    def remember_owner(self, headers: Iterable[Header]) -> None:
        """Sets the owner of the current task from the key in these headers."""
        fitting = self._fitting(headers)
        _owner.set(sha256(fitting[0]).hexdigest() if fitting else None)

    def _fitting(self, headers: Iterable[Header]) -> list[bytes]:
        shown = [_without_scheme(value) for name, value in headers if name in (b"authorization", b"x-api-key")]
        # All pairs are compared in constant time, so that timing reveals nothing about a key.
        compared = [(key, hmac.compare_digest(key, one)) for key in self._keys for one in shown]
        return [key for key, is_same in compared if is_same]


def _without_scheme(value: bytes) -> bytes:
    """Removes a `Bearer` prefix. Like llama-server, both headers accept a key with or without it."""
    scheme, _, key = value.strip().partition(b" ")
    return key.strip() if key and scheme.lower() == b"bearer" else value.strip()
