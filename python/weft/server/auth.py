"""API keys: who may use the server."""

import hmac
from collections.abc import Iterable
from pathlib import Path

from weft import InvalidConfig
from weft.settings import Settings

__all__ = ["PUBLIC", "Keys", "keys_of"]

PUBLIC = frozenset({"/health", "/v1/health", "/", "/index.html"})
"""Paths that need no key: whether the server lives, and the page, at which a person types the key."""

Header = tuple[bytes, bytes]


class Keys:
    """The keys that open the server; without any it is open."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = [key.encode() for key in keys]

    def allow(self, path: str | None, headers: Iterable[Header]) -> bool:
        """Whether a request with these headers may have this path; None is a path that there is not."""
        return not self._keys or path in PUBLIC or self._fits(headers)

    def _fits(self, headers: Iterable[Header]) -> bool:
        shown = [_without_scheme(value) for name, value in headers if name in (b"authorization", b"x-api-key")]
        # Every pair is compared, and to its end: how long it takes says nothing of how much of a key was right.
        return sum([hmac.compare_digest(key, one) for key in self._keys for one in shown]) > 0


def _without_scheme(value: bytes) -> bytes:
    """A key without the word `Bearer` before it; llama-server takes it with and without, in either header."""
    scheme, _, key = value.strip().partition(b" ")
    return key.strip() if key and scheme.lower() == b"bearer" else value.strip()


def keys_of(settings: Settings) -> tuple[str, ...]:
    """The keys of the settings, those in the file of keys among them: one a line, lines that begin with `#` are comments.

    Raises:
        InvalidConfig: the file cannot be read, or holds no key.
    """
    path = settings.api_key_file
    if path is None:
        return settings.api_keys
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidConfig("api_key_file", f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidConfig("api_key_file", f"cannot read {path}: it is no text in UTF-8") from error
    keys = [line.strip() for line in text.splitlines()]
    keys = [key for key in keys if key and not key.startswith("#")]
    if not keys:
        # A server that was to be locked must not be open because a file came out empty.
        raise InvalidConfig("api_key_file", f"{path} holds no key; write one on each line")
    return (*settings.api_keys, *keys)
