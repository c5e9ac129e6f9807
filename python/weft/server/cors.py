"""CORS headers (https://fetch.spec.whatwg.org/#http-cors-protocol), configured with llama-server's settings."""

from weft.server.web_policy import Headers, WebPolicy, header
from weft.settings import Settings


class Cors:
    """Builds the response headers that allow pages of other origins to read responses."""

    def __init__(self, settings: Settings, policy: WebPolicy) -> None:
        self._policy = policy
        self._with_credentials = settings.cors_credentials
        self._methods = settings.cors_methods.encode()
        self._headers = settings.cors_headers.encode()

    def headers(self, request: Headers, *, is_open: bool) -> Headers:
        """Returns the CORS headers of a response.

        Credentials are allowed for origins named in the settings only. If the settings allow any origin, others are echoed, as in
        llama-server.

        Args:
            request: The headers of the request.
            is_open: Whether the route answers pages of any origin.
        """
        is_for_any = is_open and self._policy.allows_any_origin
        origin = header(request, b"origin")
        is_named = origin is not None and self._policy.names(origin)
        if is_for_any and not self._with_credentials and not is_named:
            return [(b"access-control-allow-origin", b"*")]
        # `Vary` is needed without other CORS headers too: caches must key on the origin.
        allowed = [(b"vary", b"Origin")]
        if origin is not None and (is_named or is_for_any):
            allowed.append((b"access-control-allow-origin", origin))
        if is_named and self._with_credentials:
            allowed.append((b"access-control-allow-credentials", b"true"))
        return allowed

    def preflight(self, request: Headers) -> Headers:
        """Returns the additional headers of a response to OPTIONS."""
        return [(b"access-control-allow-methods", self._methods), (b"access-control-allow-headers", self._allowed(request))]

    def _allowed(self, request: Headers) -> bytes:
        """Returns the value of Access-Control-Allow-Headers.

        `*` does not cover `Authorization`, and covers nothing for requests with credentials; the requested headers are therefore
        listed in addition to it.
        """
        wanted = header(request, b"access-control-request-headers")
        return self._headers + b", " + wanted if self._headers == b"*" and wanted else self._headers
