"""The dependency that routes receive."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from litestar.di import NamedDependency
from litestar.params import SkipValidation

from weft.server.auth import current_owner
from weft.server.inference.caller import Caller
from weft.server.service import Service
from weft.server.streaming.event_formats import EventFormats
from weft.server.web_policy import require_trusted_sender

if TYPE_CHECKING:
    from weft.server.responses.service import ResponseService


@dataclass(frozen=True)
class RequestContext:
    """The services of the application, and the client of one request."""

    service: Service
    response_service: "ResponseService"
    event_formats: EventFormats
    """Formats of OpenAI's completions."""
    completion_formats: EventFormats
    """Formats of llama.cpp's completions."""
    conversation: str | None
    """Name under which the client wants to resume the stream, or None."""

    @property
    def caller(self) -> Caller:
        """The client. Routes that use it do so before they start work, since it may be refused.

        Raises:
            CrossOriginError: A page of another origin names a conversation, whose earlier stream the new one would cancel.
        """
        if self.conversation:
            require_trusted_sender("X-Conversation-Id")
        return Caller(current_owner(), self.conversation or None, self.service.recordings)


ContextDependency = NamedDependency[SkipValidation[RequestContext]]
