"""HTTP/2 by hand: httpx keeps silent about a request that it gives up, where browsers and proxies send RST_STREAM."""

import asyncio
from typing import Self

import h2.connection
import h2.errors
import h2.events
import msgspec


class Http2Client:
    """One connection; requests on it can be cancelled one by one."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection = h2.connection.H2Connection()

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._connection.initiate_connection()
        await self._flush()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    @property
    def most_at_once(self) -> int:
        """Most requests that the server takes at once, as far as it has said by now."""
        return self._connection.remote_settings.max_concurrent_streams

    async def request(self, method: str, path: str, body: object = None, *, authority: str = "localhost") -> int:
        """Sends a request; returns the id of its stream."""
        stream = self._connection.get_next_available_stream_id()
        headers = [(":method", method), (":path", path), (":scheme", "http"), (":authority", authority)]
        self._connection.send_headers(stream, headers, end_stream=body is None)
        if body is not None:
            self._connection.send_data(stream, msgspec.json.encode(body), end_stream=True)
        await self._flush()
        return stream

    async def reset(self, stream: int) -> None:
        """Cancels one request. The connection stays open."""
        self._connection.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
        await self._flush()

    async def status(self, stream: int) -> int:
        """The status of an answer. Its body is dropped."""
        while True:
            for event in self._connection.receive_data(await self._reader.read(65_536)):
                if isinstance(event, h2.events.ResponseReceived) and event.stream_id == stream:
                    return int(dict(event.headers)[b":status"])
            await self._flush()

    async def first_data(self, stream: int) -> bytes:
        """The first bytes of an answer's body."""
        while True:
            for event in self._connection.receive_data(await self._reader.read(65_536)):
                if isinstance(event, h2.events.DataReceived):
                    assert event.flow_controlled_length is not None
                    self._connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    if event.stream_id == stream and event.data:
                        await self._flush()
                        return event.data
            await self._flush()

    async def _flush(self) -> None:
        self._writer.write(self._connection.data_to_send())
        await self._writer.drain()
