"""One place to listen at, as Granian is told of it."""

from pathlib import Path
from typing import Any

import msgspec
from granian.constants import HTTPModes, SSLProtocols
from granian.http import HTTP1Settings, HTTP2Settings
from granian.log import LogLevels

from weft.serving.listening import Address
from weft.settings import Settings

__all__ = ["Place", "head_s"]

HEAD_S = 10
"""Most seconds that the head of a request may take, and that a connection may be idle between two requests; a shorter `--timeout`
makes it less."""

HEAD_BYTES = 64 * 1024
"""Most bytes of a request's head. A client sends what it likes there before anyone can look at it, and on every connection."""

N_STREAMS = 200
"""Most requests of one connection at once, where HTTP/2 is spoken. A client hears of it, and lets further ones wait. Each may
have a body, so that a bound on connections is none on requests."""


def head_s(settings: Settings) -> int:
    """How long the head of a request may take, in seconds."""
    return min(HEAD_S, settings.timeout_s)


class Place(msgspec.Struct, frozen=True):
    """One place to listen at, as Granian is told of it."""

    address: Address
    certificate: tuple[Path, Path] | None
    """The files of the key and the certificate."""
    n_connections: int
    """Connections that it holds at most."""
    prefix: str = ""
    """What every path there begins with."""

    @property
    def url(self) -> str:
        """How a client is told of it."""
        return self.address.url(is_tls=self.certificate is not None, prefix=self.prefix)

    def granian(self, settings: Settings, config: dict[str, Any]) -> dict[str, Any]:
        """The arguments of either of Granian's servers."""
        key, certificate = self.certificate or (None, None)
        # On TCP, `Connections` is to be first: it counts what it gives up.
        slack = 3 if self.address.path is None else 1
        return {
            "address": self.address.host,
            "port": self.address.port,
            "uds": self.address.path,
            "websockets": False,
            "runtime_threads": settings.threads_http or 1,
            # At this many Granian hears no new ones, and those that wait hear nothing.
            "backpressure": self.n_connections,
            # What is silent on a unix socket is given up by Granian alone, which does so where it need not first find out which
            # version of HTTP is spoken.
            "http": HTTPModes.auto if self.address.path is None else HTTPModes.http1,
            "http1_settings": HTTP1Settings(header_read_timeout=head_s(settings) * 1000 * slack, max_buffer_size=HEAD_BYTES),
            "http2_settings": HTTP2Settings(max_concurrent_streams=N_STREAMS, max_headers_size=HEAD_BYTES),
            "ssl_key": key,
            "ssl_cert": certificate,
            # As llama-server, whose clients may be older than 1.3.
            "ssl_protocol_min": SSLProtocols.tls12,
            "log_dictconfig": config,
            "log_level": LogLevels.debug if settings.verbosity >= 5 else LogLevels.error,
        }
