"""Reasons of failed downloads, in one sentence."""

from pathlib import Path


class Unavailable(Exception):  # noqa: N818 (the text is a reason)
    """The reason why a model is not available, phrased to follow `cannot load the model …:`."""


def not_cached(folder: Path) -> str:
    """Returns the reason that a model is unavailable offline."""
    return f"it is not cached in {folder}, and --offline prevents its download"


TOKEN = "-hft/--hf-token or HF_TOKEN"


def size_text(n_bytes: int) -> str:
    """Formats a number of bytes with a unit."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes} bytes"


def words(error: Exception) -> str:
    """Returns the message of an error, or its class name if it has none."""
    return str(error) or type(error).__name__


def is_out_of_reach(error: Exception) -> bool:
    """Returns True if a server is unreachable or temporarily unavailable, so that cached files may be used instead."""
    from httpx2 import HTTPStatusError, TransportError  # noqa: PLC0415
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled  # noqa: PLC0415

    if isinstance(error, HfHubHTTPError | HTTPStatusError):
        return error.response.status_code >= 500 or error.response.status_code == 429
    return isinstance(error, TransportError | OfflineModeIsEnabled)


def reason(error: Exception, *, where: str, has_token: bool = False) -> str:
    """Returns the reason of a failure for the user who named the model.

    Args:
        error: Exception of the hub's library, of HTTP, or of the system.
        where: URL of the server, or of the repository's page.
        has_token: True if a token was sent.
    """
    from httpx2 import TransportError  # noqa: PLC0415
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError  # noqa: PLC0415

    if isinstance(error, Unavailable):
        return str(error)
    if isinstance(error, GatedRepoError):
        then = "and use a token of a user who has" if has_token else f"then pass a token with {TOKEN}"
        return f"access requires its owners' terms to be accepted at {where}; {then}"
    if isinstance(error, HfHubHTTPError):
        response = error.response
        status = f"{response.status_code} {response.reason_phrase}".strip()
        if response.status_code == 401 and has_token and "invalid" in response.headers.get("X-Error-Message", "").lower():
            return f"{where} rejects the token of {TOKEN}"
        if isinstance(error, RepositoryNotFoundError) or (response.status_code == 401 and not has_token):
            then = f"the token of {TOKEN} has no access to it" if has_token else f"it requires a token ({TOKEN})"
            return f"{where} does not exist, or {then} ({status})"
        if response.status_code in (401, 403):
            then = f"the token of {TOKEN} has no access to it" if has_token else f"it may require a token ({TOKEN})"
            return f"{where} returned {status}: {then}"
        return f"{where} returned {status}"
    if isinstance(error, TransportError):
        return f"{where} cannot be reached: {words(error)}"
    if isinstance(error, OSError) and error.errno is not None:
        return f"cannot write {error.filename or 'it'}: {error.strerror}"
    return f"{where}: {' '.join(str(error).split())}"
