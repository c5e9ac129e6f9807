"""The client of a request, as owner of streams and stored items."""

from dataclasses import dataclass
from typing import Any, cast

from weft import InvalidRequestError
from weft.server.inference.generation import Generation
from weft.server.request_fields import requests
from weft.server.request_fields.fields import CompletionFields
from weft.server.service import Service
from weft.server.streaming.recording import GRACE_S, MAX_NAME, Owner, RecordingResponse, Recordings
from weft.server.streaming.responses import Answer, BodyBuilder, CollectedResponse, StreamedResponse, StreamEncoder

CONVERSATION = "x-conversation-id"
"""llama-server's header: name under which the stream can be resumed."""


@dataclass(frozen=True)
class Caller:
    """The client of one request."""

    owner: Owner
    """Digest of the API key. Stored items are visible to their owner only."""
    conversation: str | None
    """Name under which the client wants to resume the stream, or None."""
    recordings: Recordings

    async def respond(
        self, data: CompletionFields, generation: Generation, encoder: StreamEncoder | BodyBuilder, service: Service
    ) -> Answer[Any]:
        """Returns the response of a generation: a stream or a complete response, as the body requests.

        If the client named the stream, it is generated and recorded while the client is disconnected.

        Raises:
            InvalidRequestError: The name is too long.
            StreamsFullError: There are too many recorded streams.
        """
        if not data.stream:
            return Answer(CollectedResponse(generation, cast("BodyBuilder", encoder), service.collected))
        stream = StreamedResponse(generation, cast("StreamEncoder", encoder), requests.ping_s(data, service.settings))
        if self.conversation is None:
            return Answer(stream)
        return Answer(await self.recorded(stream, self.conversation, grace_s=GRACE_S))

    async def recorded(self, answer: StreamedResponse, name: str, *, grace_s: float | None) -> RecordingResponse:
        """Records the stream under a name.

        Args:
            answer: The stream.
            name: Name under which the owner can resume it.
            grace_s: Seconds that it continues without a reader; None is unlimited.

        Raises:
            InvalidRequestError: The name is too long.
            StreamsFullError: There are too many recorded streams.
        """
        if len(name) > MAX_NAME:
            answer.close()
            message = f"X-Conversation-Id has {len(name)} characters; at most {MAX_NAME} are taken"
            raise InvalidRequestError("X-Conversation-Id", message)
        return RecordingResponse(await self.recordings.begin(self.owner, name, answer, grace_s=grace_s))
