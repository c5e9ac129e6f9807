"""Texts of access settings: API keys, host names and origins."""

import re
from ipaddress import ip_address
from urllib.parse import urlsplit

from weft.settings.values import items

ANY_HOST = "*"
"""Value of `--allowed-hosts` that matches every host."""

_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*|\*")
_ORIGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>\[[0-9a-f:.]+\]|[^\s\[\]:/?#@,]+)(?::(?P<port>[0-9]{1,5}))?/?")
_ORIGIN_WORDS = ("*", "localhost")
_DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_PORT = 65_535


def key_list(text: str) -> tuple[str, ...]:
    """Parses comma-separated keys."""
    keys = items(text)
    if not keys:
        # An empty shell variable must not open a server that is meant to be protected.
        raise ValueError("it has no key; omit it for a server without keys")
    return keys


def host_names(text: str) -> tuple[str, ...]:
    """Parses comma-separated host names without ports."""
    hosts = tuple(host.lower().rstrip(".") for host in items(text))
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise ValueError(f"{host!r} is not a host name such as chat.example: leave out the scheme, the port and the path")
    return hosts


def origins(text: str) -> tuple[str, ...]:
    """Parses comma-separated origins."""
    return tuple(map(browser_origin, items(text)))


def media_host(name: str) -> str:
    """Parses a host with an optional port."""
    if name == "*":
        return name
    try:
        parts = urlsplit(f"//{name}")
        is_host = parts.netloc == name and parts.hostname is not None and "@" not in name and (parts.port or 1) > 0
    except ValueError:
        is_host = False
    if not is_host:
        raise ValueError(f"{name!r} is not a host such as example.org or 10.0.0.7:8000")
    return name.lower()


def browser_origin(text: str) -> str:
    """Returns an origin as browsers serialize it (RFC 6454, section 6.2): in lower case, without a default port.

    Raises:
        ValueError: The text is not an origin that browsers send.
    """
    word = text.lower()
    if word in _ORIGIN_WORDS:
        return word
    match = _ORIGIN.fullmatch(word)
    host = None if match is None else _browser_host(match["host"])
    port = 0 if match is None or match["port"] is None else int(match["port"])
    if match is None or match["scheme"] == "file" or host is None or port > MAX_PORT:
        hint = "; every page can have the origin 'null'" if word == "null" else ""
        raise ValueError(
            f"must be an origin such as https://chat.example or http://10.0.0.2:3000, 'localhost' or '*' (got {text!r}){hint}"
        )
    is_default = port == _DEFAULT_PORTS.get(match["scheme"], 0)
    return f"{match['scheme']}://{host}" if is_default or not port else f"{match['scheme']}://{host}:{port}"


def _browser_host(host: str) -> str | None:
    """Returns a host as browsers write it, or None if it is not one."""
    try:
        if host.startswith("["):
            return f"[{ip_address(host[1:-1]).compressed}]"
        return name if _HOST.fullmatch(name := host.encode("idna").decode("ascii")) and name != ANY_HOST else None
    except ValueError:
        return None
