"""One place to listen at, as Granian is told of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from granian.constants import SSLProtocols
from granian.http import HTTP1Settings
from granian.log import LogLevels

from weft.serving.listening import Address
from weft.settings import Settings

__all__ = ["Place"]

HEADER_S = 30
"""Most seconds that the head of a request may take, and that a connection may be idle between two requests of HTTP/1.1; a shorter
`--timeout` makes it less. (Granian leaves a connection open on which nothing was ever sent.)"""


@dataclass(frozen=True)
class Place:
    """One place to listen at, as Granian is told of it."""

    address: Address
    certificate: tuple[Path, Path] | None
    """The files of the key and the certificate."""
    prefix: str = ""
    """What every path there begins with."""

    @property
    def url(self) -> str:
        """How a client is told of it."""
        return self.address.url(is_tls=self.certificate is not None, prefix=self.prefix)

    def granian(self, settings: Settings, config: dict[str, Any]) -> dict[str, Any]:
        """The arguments of either of Granian's servers."""
        key, certificate = self.certificate or (None, None)
        return {
            "address": self.address.host,
            "port": self.address.port,
            "uds": self.address.path,
            "websockets": False,
            # Granian stops reading new requests at this many; a full queue is to be answered 429 before that.
            "backpressure": settings.engine.max_queue + 1024,
            "http1_settings": HTTP1Settings(header_read_timeout=min(HEADER_S, settings.timeout_s) * 1000),
            "ssl_key": key,
            "ssl_cert": certificate,
            # As llama-server, whose clients may be older than 1.3.
            "ssl_protocol_min": SSLProtocols.tls12,
            "log_dictconfig": config,
            "log_level": LogLevels.debug if settings.verbosity >= 5 else LogLevels.error,
        }
