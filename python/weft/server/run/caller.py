"""Who asks, as far as it matters to what is kept for him."""

from litestar.response.base import ASGIResponse

from weft import InvalidRequest
from weft.server.run.recording import GRACE_S, MAX_NAME, Owner, Recorded, Recordings
from weft.server.run.stream import StreamedAnswer

__all__ = ["CONVERSATION", "Caller"]

CONVERSATION = "x-conversation-id"
"""llama-server's header: the stream that answers is kept by this name, and can be resumed."""


class Caller:
    """One request's client."""

    def __init__(self, owner: Owner, conversation: str | None, recordings: Recordings) -> None:
        self.owner = owner
        """Whose key it showed; what is kept for one is never told another."""
        self.conversation = conversation or None
        """The name by which it wants to find its stream again, if it does."""
        self._recordings = recordings

    async def resumable(self, answer: StreamedAnswer) -> ASGIResponse:
        """The stream, written on while the client is away where it has named it.

        Raises:
            InvalidRequest: the name is too long.
            StreamsFullError: there are too many of them.
        """
        return answer if self.conversation is None else await self.recorded(answer, self.conversation, grace_s=GRACE_S)

    async def recorded(self, answer: StreamedAnswer, name: str, *, grace_s: float | None) -> Recorded:
        """The stream by this name, written while nobody reads it for so long; None has no limit.

        Raises:
            InvalidRequest: the name is too long.
            StreamsFullError: there are too many of them.
        """
        if len(name) > MAX_NAME:
            answer.close()
            message = f"X-Conversation-Id has {len(name)} characters; at most {MAX_NAME} are taken"
            raise InvalidRequest("X-Conversation-Id", message)
        return Recorded(await self._recordings.begin(self.owner, name, answer, grace_s=grace_s))
