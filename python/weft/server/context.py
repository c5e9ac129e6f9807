"""What routes receive: the services of the application, and the client of the request."""

from dataclasses import dataclass
from typing import Any

from litestar import Request
from litestar.di import NamedDependency
from litestar.params import SkipValidation

from weft import InvalidRequestError
from weft.server.auth import current_owner
from weft.server.inference.generation import Generation
from weft.server.request_fields import requests
from weft.server.request_fields.fields import CompletionFields
from weft.server.service import Service
from weft.server.streaming.encoder import Encoder
from weft.server.streaming.event_formats import EventFormats
from weft.server.streaming.recording import GRACE_S, MAX_NAME, Owner, RecordingResponse
from weft.server.streaming.responses import Answer, CollectedResponse, StreamedResponse
from weft.server.web_policy import require_trusted_sender

ServiceDependency = NamedDependency[SkipValidation[Service]]
CONVERSATION = "x-conversation-id"
"""llama-server's header: name under which the stream can be resumed."""


def response_of(
    data: CompletionFields, generation: Generation, encoder: Encoder, service: Service
) -> StreamedResponse | CollectedResponse:
    """Returns the response of a generation: a stream or a complete response, as the body requests."""
    if data.stream:
        return StreamedResponse(generation, encoder, requests.ping_s(data, service.settings))
    return CollectedResponse(generation, encoder, service.collected)


@dataclass(frozen=True)
class Caller:
    """The client of one request."""

    service: Service
    owner: Owner
    """Digest of the API key. Stored items are visible to their owner only."""
    conversation: str | None
    """Name under which the client wants to resume the stream, or None."""

    async def respond(self, data: CompletionFields, generation: Generation, encoder: Encoder) -> Answer[Any]:
        """Returns the response of a generation. If the client named the stream, it is recorded while the client is disconnected.

        Raises:
            InvalidRequestError: The name is too long.
            StreamsFullError: There are too many recorded streams.
        """
        response = response_of(data, generation, encoder, self.service)
        if self.conversation is not None and isinstance(response, StreamedResponse):
            return Answer(await self.recorded(response, self.conversation, grace_s=GRACE_S))
        return Answer(response)

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
            message = f"X-Conversation-Id has {len(name)} characters; at most {MAX_NAME} are allowed"
            raise InvalidRequestError("X-Conversation-Id", message)
        return RecordingResponse(await self.service.recordings.begin(self.owner, name, answer, grace_s=grace_s))


def caller(request: Request[Any, Any, Any], service: ServiceDependency) -> Caller:
    """Returns the client of a request.

    Raises:
        CrossOriginError: A page of another origin names a conversation, whose earlier stream the new one would cancel.
    """
    conversation = request.headers.get(CONVERSATION) or None
    if conversation is not None:
        require_trusted_sender("X-Conversation-Id")
    return Caller(service, current_owner(), conversation)


CallerDependency = NamedDependency[SkipValidation[Caller]]
FormatsDependency = NamedDependency[SkipValidation[EventFormats]]
