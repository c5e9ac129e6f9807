"""The interface of an API's encoder, which turns events of a generation into a stream or a complete response."""

from collections.abc import Mapping, Sequence

from weft import Event
from weft.server.streaming import sse


class Encoder:
    """Encodes one response in one API's format. An API that only streams needs no `add` and `body`."""

    headers: Mapping[str, str] = sse.HEADERS
    """Headers of a stream."""
    ping: bytes | None = sse.PING
    """Bytes sent during silence; None if the format has no comments."""

    def opening(self) -> bytes:
        """Returns the bytes of a stream that are sent immediately, before any event."""
        return b""

    def frames(self, prompt: int, event: Event) -> Sequence[bytes]:
        """Returns the frames of a stream for the next event of a prompt, as chunks; a frame may have several."""
        raise NotImplementedError

    def end(self) -> bytes:
        """Returns the bytes of a stream after the last event of the last branch."""
        return b""

    def failure(self, error: Exception) -> bytes:
        """Returns the bytes that end a stream prematurely. Also called if a complete response fails before it has started."""
        return sse.error_frame(error)

    def add(self, prompt: int, event: Event) -> int:
        """Adds the next event of a prompt to a complete response. Returns the number of bytes by which memory use grew."""
        raise NotImplementedError

    def body(self) -> Sequence[bytes]:
        """Returns the JSON of a complete response in chunks, once every branch has finished."""
        raise NotImplementedError
