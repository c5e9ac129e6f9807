"""State of a server over HTTP, for `weft top`."""

import time
from http.client import HTTPException
from typing import TypeVar

import msgspec

from weft.cli.top.server_access import NoAnswerError, ServerAccess
from weft.cli.top.state import COUNTERS, Cache, Properties, ServerState, Slot, metrics

TIMEOUT_S = 10.0
"""Timeout of network operations, in seconds."""

MAX_BYTES = 32 * 1024 * 1024
"""Maximum bytes of a response."""

MAX_NODES = 1_000
"""Number of most recently used cache nodes to request, among which the busiest are selected."""

Response = TypeVar("Response")


class Server:
    """One server, by its address. Every method blocks.

    Args:
        url: URL of the server, including its path prefix.
        key: API key; None sends none.

    Raises:
        ValueError: `url` is not an HTTP URL.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self._access = ServerAccess(url, key, TIMEOUT_S)
        self.url = self._access.url
        """URL of the server, without a slash at the end."""
        self._cache: Cache | None = None
        self._counters_at_fetch: object = None

    def fetch_state(self) -> ServerState:
        """Returns the current state of the server.

        The cache is requested again only if the server has been active, because the request would keep an idle server from
        unloading its model.

        Raises:
            NoAnswerError: The server did not respond, or its response is invalid.
        """
        properties = self._decode("/props", self._read("/props"), Properties)
        response = self._read_optional("/metrics")
        values = None if response is None else metrics(response.decode(errors="replace"))
        slots = self._fetch("/slots", list[Slot])
        counters = [values.get(name) for name in COUNTERS] if values is not None else slots
        if properties.is_sleeping:
            self._cache = None
        elif self._cache is None or counters != self._counters_at_fetch or any(slot.is_processing for slot in slots or ()):
            self._cache = self._fetch(f"/cache?limit={MAX_NODES}", Cache)
        self._counters_at_fetch = counters
        return ServerState(time.monotonic(), properties, slots, values, self._cache)

    def _fetch(self, path: str, kind: type[Response]) -> Response | None:
        response = self._read_optional(path)
        return None if response is None else self._decode(path, response, kind)

    def _decode(self, path: str, response: bytes, kind: type[Response]) -> Response:
        try:
            return msgspec.json.decode(response, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise NoAnswerError(f"{self.url}{path} did not return a response of Weft: {error}") from None

    def _read_optional(self, path: str) -> bytes | None:
        """Returns a response body; None if the server does not provide it (404, 501) or not now (503)."""
        try:
            return self._read(path)
        except NoAnswerError as error:
            if error.status in {404, 501, 503}:
                return None
            raise

    def _read(self, path: str) -> bytes:
        with self._access.open(path) as response:
            try:
                body: bytes = response.read(MAX_BYTES + 1)
            except (HTTPException, OSError) as error:
                raise self._access.unreachable(error) from None
        if len(body) > MAX_BYTES:
            raise NoAnswerError(f"the response of {self.url}{path} exceeds {MAX_BYTES} bytes")
        return body
