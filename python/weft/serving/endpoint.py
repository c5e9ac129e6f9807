"""Listening address with its options for Granian."""

from pathlib import Path
from typing import Any, NamedTuple

from granian.constants import HTTPModes, SSLProtocols
from granian.http import HTTP1Settings, HTTP2Settings
from granian.log import LogLevels

from weft.installed.platform import raise_open_files
from weft.serving.listening import Address
from weft.settings import Settings

HEAD_S = 10
"""Maximum seconds for the head of a request, and for an idle connection between two requests; a shorter `--timeout` lowers it."""

HEAD_BYTES = 64 * 1024
"""Maximum bytes of a request's head. It is buffered per connection, before any check of the request."""

N_STREAMS = 200
"""Maximum concurrent requests of one HTTP/2 connection. The limit is announced to clients, which queue further requests. Without
it, a limit of connections would not limit requests, each of which may have a body."""

MAX_CONNECTIONS = 8192
"""Maximum open connections of all addresses together, unless the queue is longer."""

N_OTHERS = 128
"""File handles reserved for everything else: models, logs, served files, and the event loop."""

N_HANDSHAKES = 65_536
"""File handles reserved for incomplete TLS handshakes, which Granian does not count as connections. Excess ones are closed within
a second."""

BESIDE_QUEUE = 1024
"""Connections in addition to queued requests, so that requests beyond a full queue are answered with 429."""


def head_s(settings: Settings) -> int:
    """Returns the time limit for the head of a request, in seconds."""
    return min(HEAD_S, settings.timeout_s)


def connection_limit(n_places: int, max_queue: int) -> int:
    """Returns the maximum number of connections per listening address, such that the process cannot run out of file handles.

    Without a free handle, Granian would retry accepting a connection in a busy loop. The limit of handles (`ulimit -n`) is raised
    as far as necessary and permitted.
    """
    n_wanted = max(MAX_CONNECTIONS, max_queue + BESIDE_QUEUE)
    n_handles = raise_open_files(n_places * n_wanted + N_OTHERS + N_HANDSHAKES)
    return max(1, min(n_wanted, (n_handles - N_OTHERS) // n_places))


class Endpoint(NamedTuple):
    """A listening address with its options for Granian."""

    address: Address
    url: str
    """URL for clients."""
    n_connections: int
    """Maximum number of connections."""
    arguments: dict[str, Any]
    """The arguments of both of Granian's server classes."""

    @classmethod
    def create(
        cls, address: Address, settings: Settings, certificate: tuple[Path, Path] | None, n_connections: int, log: dict[str, Any]
    ) -> "Endpoint":
        """Returns the endpoint for a key and a certificate, by their paths, and a configuration of logging."""
        key, certificate_path = certificate or (None, None)
        # On TCP, `Connections` closes idle connections first, and counts them.
        slack = 3 if address.path is None else 1
        arguments = {
            "address": address.host,
            "port": address.port,
            "uds": address.path,
            "websockets": False,
            "runtime_threads": settings.threads_http or 1,
            # At this number, Granian accepts no further connections; they wait without an answer.
            "backpressure": n_connections,
            # On a unix socket, only Granian closes silent connections, and only without detection of the HTTP version.
            "http": HTTPModes.auto if address.path is None else HTTPModes.http1,
            "http1_settings": HTTP1Settings(header_read_timeout=head_s(settings) * 1000 * slack, max_buffer_size=HEAD_BYTES),
            "http2_settings": HTTP2Settings(max_concurrent_streams=N_STREAMS, max_headers_size=HEAD_BYTES),
            "ssl_key": key,
            "ssl_cert": certificate_path,
            # Same minimum as llama-server, for clients older than TLS 1.3.
            "ssl_protocol_min": SSLProtocols.tls12,
            "log_dictconfig": log,
            "log_level": LogLevels.debug if settings.verbosity >= 5 else LogLevels.error,
        }
        url = address.url(is_tls=certificate is not None, prefix=settings.api_prefix)
        return cls(address, url, n_connections, arguments)
