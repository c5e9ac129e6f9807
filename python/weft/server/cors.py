"""What pages of other origins may do (https://fetch.spec.whatwg.org/#http-cors-protocol), by llama-server's settings."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from weft.settings import Settings

__all__ = ["Cors", "Headers"]

Headers = Sequence[tuple[bytes, bytes]]

ANY = "*"
LOCALHOST = "localhost"
"""Stands in the list of origins for every origin on the browser's own machine."""

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class Cors:
    """Which origins are let in, and with what."""

    def __init__(self, settings: Settings) -> None:
        self._origins = frozenset(origin.rstrip("/") for origin in settings.cors_origins)
        self._with_credentials = settings.cors_credentials
        self._methods = settings.cors_methods.encode()
        self._headers = settings.cors_headers.encode()

    def headers(self, request: Headers) -> Headers:
        """What every answer to such a request says; nothing of other origins where its own is not let in.

        Origins are echoed, as llama-server does: with credentials, `*` would stand for no origin at all.
        """
        if ANY in self._origins and not self._with_credentials:
            return [(b"access-control-allow-origin", b"*")]
        origin = _value(request, b"origin")
        # Caches must know that it depends on who asks, also where it says nothing.
        allowed = [(b"vary", b"Origin")]
        if origin is not None and self._lets_in(origin):
            allowed.append((b"access-control-allow-origin", origin))
            if self._with_credentials:
                allowed.append((b"access-control-allow-credentials", b"true"))
        return allowed

    def preflight(self, request: Headers) -> Headers:
        """What the answer to OPTIONS says besides."""
        return [(b"access-control-allow-methods", self._methods), (b"access-control-allow-headers", self._allowed(request))]

    def _allowed(self, request: Headers) -> bytes:
        """The headers that may be sent.

        Browsers do not count `Authorization` under `*`, and under credentials nothing at all; so `*` names beside itself what
        the page wants to send.
        """
        wanted = _value(request, b"access-control-request-headers")
        return self._headers + b", " + wanted if self._headers == b"*" and wanted else self._headers

    def _lets_in(self, origin: bytes) -> bool:
        text = origin.decode("latin-1")
        return ANY in self._origins or text in self._origins or (LOCALHOST in self._origins and _is_local(text))


def _is_local(origin: str) -> bool:
    try:
        return urlsplit(origin).hostname in _LOCAL_HOSTS
    except ValueError:
        return False


def _value(headers: Headers, name: bytes) -> bytes | None:
    return next((value for given, value in headers if given == name), None)
