"""Access to a server, for commands that are its clients."""

from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, build_opener

__all__ = ["new_opener", "server_url", "status_message", "unreachable_message"]


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Does not follow redirects, so that the API key is only sent to the given server."""


def new_opener() -> OpenerDirector:
    """Returns an opener that does not follow redirects."""
    return build_opener(_NoRedirects)


def server_url(url: str) -> str:
    """Returns the URL of a server, which may be given without a scheme, without a slash at the end.

    Raises:
        ValueError: `url` is not an HTTP URL.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{url!r} is not the URL of a server; an example is http://127.0.0.1:8080")
    return parts.geturl().rstrip("/")


def unreachable_message(url: str, error: Exception) -> str:
    """Returns the message for a server that does not respond."""
    reason = getattr(error, "reason", None) or error
    return f"{url} does not respond: {reason or type(error).__name__}"


def status_message(url: str, status: int, reason: str) -> str:
    """Returns the message for an error response."""
    if status == 401:
        return f"{url} requires an API key; set it with --api-key or LLAMA_API_KEY"
    return f"{url} responded with {status}: {reason}"
