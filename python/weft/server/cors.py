"""CORS headers (https://fetch.spec.whatwg.org/#http-cors-protocol), by llama-server's settings."""

from weft.server.web_policy import Headers, WebPolicy, header
from weft.settings import Settings

__all__ = ["Cors"]


class Cors:
    """The headers that let a browser show a page of another origin what a request was answered."""

    def __init__(self, settings: Settings, policy: WebPolicy) -> None:
        self._policy = policy
        self._with_credentials = settings.cors_credentials
        self._methods = settings.cors_methods.encode()
        self._headers = settings.cors_headers.encode()

    def headers(self, request: Headers, *, is_open: bool) -> Headers:
        """Returns the headers of every answer to such a request.

        Credentials are only for origins that the settings name. Other origins are echoed, as llama-server does, where the
        settings allow any.

        Args:
            request: The headers of the request.
            is_open: Whether the route answers pages of any origin.
        """
        is_for_any = is_open and self._policy.allows_any_origin
        origin = header(request, b"origin")
        is_named = origin is not None and self._policy.names(origin)
        if is_for_any and not self._with_credentials and not is_named:
            return [(b"access-control-allow-origin", b"*")]
        # Caches must know that the answer depends on the origin, also where it has no further header.
        allowed = [(b"vary", b"Origin")]
        if origin is not None and (is_named or is_for_any):
            allowed.append((b"access-control-allow-origin", origin))
        if is_named and self._with_credentials:
            allowed.append((b"access-control-allow-credentials", b"true"))
        return allowed

    def preflight(self, request: Headers) -> Headers:
        """Returns the further headers of an answer to OPTIONS."""
        return [(b"access-control-allow-methods", self._methods), (b"access-control-allow-headers", self._allowed(request))]

    def _allowed(self, request: Headers) -> bytes:
        """The headers that may be sent.

        Browsers do not count `Authorization` under `*`, and under credentials nothing at all; so `*` names beside itself what
        the page wants to send.
        """
        wanted = header(request, b"access-control-request-headers")
        return self._headers + b", " + wanted if self._headers == b"*" and wanted else self._headers
