"""How many connections the process may hold: as many as there are handles of files for, which it asks for first."""

from weft.installed.platform import raise_open_files

__all__ = ["n_connections"]

MAX_CONNECTIONS = 8192
"""Connections that may be open, all addresses together, where the queue is no longer."""

N_OTHERS = 128
"""Handles that are left for all else: models, logs, files that are served, the event loop's own."""

N_HANDSHAKES = 65_536
"""Handles for TLS handshakes that have not ended, which Granian does not count among its connections. Those that are too many are
given up within a second."""

BESIDE_QUEUE = 1024
"""Connections beside those of the requests that wait: a full queue is to be answered 429, not silence."""


def n_connections(n_places: int, max_queue: int) -> int:
    """How many connections each of some places may hold, so that the process never runs out of handles.

    Granian would ask for the next connection again and again, at full speed, where there is no handle for it. The limit of
    handles (`ulimit -n`) is raised as far as is wanted and allowed.
    """
    n_wanted = max(MAX_CONNECTIONS, max_queue + BESIDE_QUEUE)
    n_handles = raise_open_files(n_places * n_wanted + N_OTHERS + N_HANDSHAKES)
    return max(1, min(n_wanted, (n_handles - N_OTHERS) // n_places))
