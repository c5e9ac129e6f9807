"""Conditions under which the server offers documents."""

from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from weft.settings import Settings


def documents_path(settings: Settings) -> Path:
    """Returns the file of the documents; by default in the user's data folder."""
    if settings.documents_path is not None:
        return Path(settings.documents_path)
    import platformdirs  # noqa: PLC0415 (a server without documents does not need it)

    return platformdirs.user_data_path("weft", appauthor=False) / "documents.sqlite"


def off_reason(settings: Settings, *, has_keys: bool) -> str | None:
    """Returns why the server offers no documents, or None if it does.

    Without keys everyone who reaches the server would read them, so it must then be reachable from its own machine only.
    """
    if not settings.documents:
        return "documents are off: the server was started with --no-documents"
    if not has_keys and not all(map(is_local, settings.hosts)):
        return "documents are off: other machines reach this server, and it has no API keys; start it with --api-key-file"
    return None


def is_local(host: str) -> bool:
    """Returns whether only this machine reaches an address of `--host`: loopback, or a unix socket."""
    address = _address(host)
    return host == "localhost" or host.endswith(".sock") if address is None else address.is_loopback


def is_public_address(host: str) -> bool:
    """Returns whether other machines reach the address at which a request arrived. A unix socket has none."""
    address = _address(host)
    return address is not None and not address.is_loopback


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host.strip("[]"))
    except ValueError:
        return None
