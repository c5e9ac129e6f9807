"""Fetching media files over HTTP, protected against server-side request forgery."""

import ipaddress
import socket
import ssl
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

import httpcore

from weft.fields.excerpt import excerpt
from weft.server.executor import Executor, Purpose
from weft.server.media.files import UnreadableError

MAX_REDIRECTS = 3

_PORTS = {"http": 80, "https": 443}

_NOT_PUBLIC = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96", "fec0::/10")))
"""Networks that may lead to private IPv4 addresses or hosts: NAT64 prefixes (RFC 6052, RFC 8215), the deprecated IPv4-compatible
addresses, and the deprecated site-local addresses."""


async def fetched(address: str, hosts: Sequence[str], max_bytes: int, executor: Executor) -> bytes:
    """Returns the bytes at an http(s) address. Follows redirects to allowed hosts only.

    Args:
        address: URL of the file.
        hosts: Allowed hosts, optionally with a port; `*` allows any host whose addresses are all public.
        max_bytes: Maximum size of the file.
        executor: Worker threads for DNS lookups.

    Raises:
        UnreadableError: The host is not allowed, does not answer with a file, or the file is too large.
    """
    try:
        for _ in range(1 + MAX_REDIRECTS):
            found = await _request(address, hosts, max_bytes, executor)
            if isinstance(found, bytes):
                return found
            address = urljoin(address, found)
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, httpcore.UnsupportedProtocol) as error:
        raise UnreadableError(f"{excerpt(address)} cannot be fetched: {error}") from None
    except (ssl.SSLError, OSError) as error:
        raise UnreadableError(f"{excerpt(address)} cannot be fetched: {error.strerror or error}") from None
    raise UnreadableError(f"it was redirected more than {MAX_REDIRECTS} times")


async def _request(address: str, hosts: Sequence[str], max_bytes: int, executor: Executor) -> bytes | str:
    """Returns the file's bytes, or the location of a redirect."""
    parts = _parts(address)
    backend = _Backend(executor, is_named=_is_named(parts, hosts))
    headers: dict[str | bytes, str | bytes] = {
        "Accept": "image/*, audio/*, */*;q=0.1",
        "Accept-Encoding": "identity",
        "User-Agent": "weft",
    }
    # Fragments are not sent to servers.
    url = parts._replace(fragment="").geturl()
    async with (
        httpcore.AsyncConnectionPool(network_backend=backend, http2=False) as pool,
        pool.stream("GET", url, headers=headers) as response,
    ):
        if response.status in (301, 302, 303, 307, 308):
            return next((value.decode("latin-1") for name, value in response.headers if name.lower() == b"location"), "")
        if response.status != 200:
            raise UnreadableError(f"{excerpt(address)} returned the status {response.status}")
        data = bytearray()
        async for piece in response.aiter_stream():
            data += piece
            if len(data) > max_bytes:
                raise UnreadableError(f"{excerpt(address)} has more than {max_bytes} bytes")
        return bytes(data)


def _parts(address: str) -> SplitResult:
    try:
        parts = urlsplit(address)
        is_fine = parts.scheme in _PORTS and bool(parts.hostname) and parts.username is None and (parts.port or 1) > 0
    except ValueError:
        is_fine = False
    if not is_fine or not address.isascii() or not address.isprintable():
        raise UnreadableError(f"{excerpt(address)} is not an http(s) URL without a user name")
    return parts


def _is_named(parts: SplitResult, hosts: Sequence[str]) -> bool:
    """Returns whether a host is allowed by name, and may be in a private network; False for hosts that must be public.

    Raises:
        UnreadableError: The host is not allowed.
    """
    host = (parts.hostname or "").rstrip(".")
    name = f"[{host}]" if ":" in host else host
    if name in hosts or f"{name}:{parts.port or _PORTS[parts.scheme]}" in hosts:
        return True
    if "*" in hosts:
        return False
    raise UnreadableError(f"{excerpt(name)} is not an allowed host for files; --allow-media-urls lists the allowed hosts")


def is_public(address: str) -> bool:
    """Returns whether an IP address is on the public internet."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        elif ip.sixtofour is not None or ip.teredo is not None or any(ip in network for network in _NOT_PUBLIC):
            return False
    return ip.is_global and not ip.is_multicast


class _Backend(httpcore.AsyncNetworkBackend):
    """Connects to the addresses that were checked.

    A name therefore cannot resolve to another address in between (DNS rebinding).
    """

    def __init__(self, executor: Executor, *, is_named: bool) -> None:
        self._executor = executor
        self._is_named = is_named
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (httpcore's own signature)
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connects to the host's first address that accepts, provided that all of its addresses are allowed."""
        found = await self._executor.run_in_thread(Purpose.ADDRESS, 0, socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
        if not self._is_named and not all(map(is_public, addresses)):
            raise UnreadableError(f"{excerpt(host)} is in a private network; allow it with --allow-media-urls")
        failure: Exception = UnreadableError(f"{excerpt(host)} has no address")
        for address in addresses:
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except httpcore.ConnectError as error:
                failure = error
        raise failure

    async def sleep(self, seconds: float) -> None:
        """Sleeps."""
        await self._inner.sleep(seconds)
