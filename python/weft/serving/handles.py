"""Maximum number of connections, derived from the limit of file handles, which is raised first."""

from weft.installed.platform import raise_open_files

MAX_CONNECTIONS = 8192
"""Maximum open connections of all addresses together, unless the queue is longer."""

N_OTHERS = 128
"""File handles reserved for everything else: models, logs, served files, and the event loop."""

N_HANDSHAKES = 65_536
"""File handles reserved for incomplete TLS handshakes, which Granian does not count as connections. Excess ones are closed within
a second."""

BESIDE_QUEUE = 1024
"""Connections in addition to queued requests, so that requests beyond a full queue are answered with 429."""


def n_connections(n_places: int, max_queue: int) -> int:
    """Returns the maximum number of connections per listening address, such that the process cannot run out of file handles.

    Without a free handle, Granian would retry accepting a connection in a busy loop. The limit of handles (`ulimit -n`) is raised
    as far as necessary and permitted.
    """
    n_wanted = max(MAX_CONNECTIONS, max_queue + BESIDE_QUEUE)
    n_handles = raise_open_files(n_places * n_wanted + N_OTHERS + N_HANDSHAKES)
    return max(1, min(n_wanted, (n_handles - N_OTHERS) // n_places))
