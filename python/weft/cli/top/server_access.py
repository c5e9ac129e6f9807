"""Access to a server, for commands that are its clients."""

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from weft.drawing.figure import readable

MAX_ERROR_BYTES = 65_536
"""Maximum bytes of an error response that are read."""


class NoAnswerError(Exception):
    """The server did not respond, or its response is invalid. The text has the reason, in one line."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(readable(reason))
        self.status = status
        """Status of an error response."""


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Does not follow redirects, so that the API key is only sent to the given server."""


class ServerAccess:
    """Connections to one server.

    Args:
        url: URL of the server, with or without a scheme.
        key: API key; None sends none.
        timeout_s: Timeout of network operations.

    Raises:
        ValueError: `url` is not an HTTP URL.
    """

    def __init__(self, url: str, key: str | None, timeout_s: float) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is not the URL of a server; an example is http://127.0.0.1:8080")
        self.url = parts.geturl().rstrip("/")
        """URL of the server, without a slash at the end."""
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._timeout_s = timeout_s
        self._opener = build_opener(_NoRedirects)

    def open(self, path: str, body: bytes | None = None) -> Any:  # noqa: ANN401 (urllib has no common type)
        """Sends a request, with a body of JSON if one is given, and returns the response.

        Raises:
            NoAnswerError: The server did not respond, or with an error.
        """
        headers = self._headers if body is None else self._headers | {"Content-Type": "application/json"}
        try:
            return self._opener.open(Request(self.url + path, data=body, headers=headers), timeout=self._timeout_s)
        except HTTPError as error:
            with error:
                raise NoAnswerError(self._status_message(error), error.code) from None
        except (HTTPException, OSError) as error:
            raise self.unreachable(error) from None

    def unreachable(self, error: Exception) -> NoAnswerError:
        """Returns the error for a server that does not respond."""
        reason = getattr(error, "reason", None) or error
        return NoAnswerError(f"{self.url} does not respond: {reason or type(error).__name__}")

    def _status_message(self, error: HTTPError) -> str:
        if error.code == 401:
            return f"{self.url} requires an API key; set it with --api-key or LLAMA_API_KEY"
        try:
            reason = error_text(json.loads(error.read(MAX_ERROR_BYTES))["error"])
        except (ValueError, LookupError, TypeError, OSError, HTTPException):
            reason = str(error.reason)
        return f"{self.url} responded with {error.code}: {reason}"


def error_text(error: object) -> str:
    """Returns the message in the `error` of a response, an object or a text."""
    return str(error.get("message", error)) if isinstance(error, Mapping) else str(error)
