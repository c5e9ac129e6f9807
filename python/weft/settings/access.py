"""Access settings: API keys, TLS, host names and CORS."""

import re
from dataclasses import dataclass
from ipaddress import ip_address

from weft.settings.flags import flag
from weft.settings.values import file, items, together

__all__ = ["ANY_HOST", "AccessSettings", "browser_origin"]

ANY_HOST = "*"
"""Value of `--allowed-hosts` that matches every host."""

_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*|\*")
_ORIGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>\[[0-9a-f:.]+\]|[^\s\[\]:/?#@,]+)(?::(?P<port>[0-9]{1,5}))?/?")
_ORIGIN_WORDS = ("*", "localhost")
_DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_PORT = 65_535


def _keys(text: str) -> tuple[str, ...]:
    keys = items(text)
    if not keys:
        # An empty shell variable must not open a server that is meant to be protected.
        raise ValueError("it holds no key; leave it out for a server without keys")
    return keys


def _hosts(text: str) -> tuple[str, ...]:
    hosts = tuple(host.lower().rstrip(".") for host in items(text))
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise ValueError(f"{host!r} is not a host name, as chat.example: leave out the scheme, the port and the path")
    return hosts


def _origins(text: str) -> tuple[str, ...]:
    return tuple(map(browser_origin, items(text)))


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


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class AccessSettings:
    """Settings of access to the server."""

    api_keys: tuple[str, ...] = flag(
        (),
        "--api-key KEY",
        parse=_keys,
        join=together,
        env="LLAMA_API_KEY",
        help="comma-separated API keys, one of which every request must have; may be given several times (default: none)",
    )
    api_key_file: str | None = flag(
        None,
        "--api-key-file FNAME",
        parse=file,
        env="LLAMA_ARG_API_KEY_FILE",
        help="file of more API keys, one per line; lines that begin with # are comments",
    )
    ssl_key_file: str | None = flag(
        None,
        "--ssl-key-file FNAME",
        parse=file,
        env="LLAMA_ARG_SSL_KEY_FILE",
        help="PEM file of the private key; with --ssl-cert-file, the server uses TLS",
    )
    ssl_cert_file: str | None = flag(
        None, "--ssl-cert-file FNAME", parse=file, env="LLAMA_ARG_SSL_CERT_FILE", help="PEM file of the certificate"
    )
    allowed_hosts: tuple[str, ...] = flag(
        (),
        "--allowed-hosts HOSTS",
        parse=_hosts,
        join=together,
        separator=",",
        env="LLAMA_ARG_ALLOWED_HOSTS",
        help="comma-separated host names that requests may use, in addition to IP addresses and localhost; '*' is any (default:"
        " none on a loopback address, else any)",
    )
    cors_origins: tuple[str, ...] = flag(
        ("*",),
        "--cors-origins ORIGINS",
        parse=_origins,
        separator=",",
        env="LLAMA_ARG_CORS_ORIGINS",
        help="origins whose pages may use the server; 'localhost' is any on this machine; '*' is any, for routes that neither"
        " read nor change data of other clients (default: *)",
    )
    cors_methods: str = flag(
        "GET, POST, DELETE, OPTIONS",
        "--cors-methods METHODS",
        env="LLAMA_ARG_CORS_METHODS",
        help="HTTP methods that pages of other origins may use (default: GET, POST, DELETE, OPTIONS)",
    )
    cors_headers: str = flag(
        "*",
        "--cors-headers HEADERS",
        env="LLAMA_ARG_CORS_HEADERS",
        help="request headers that pages of other origins may send (default: *)",
    )
    cors_credentials: bool = flag(
        True,
        constants={"--cors-credentials": True, "--no-cors-credentials": False},
        env="LLAMA_ARG_CORS_CREDENTIALS",
        help="allow pages of the listed origins to send credentials (default: yes)",
    )
