"""Events of llama.cpp's first multi-user server: text only. No I/O here."""

import msgspec

from weft import Event, Finished, Token
from weft.server.inference.generation import Generation
from weft.server.request_fields import unsupported
from weft.server.request_fields.fields import CompletionFields
from weft.server.streaming import sse
from weft.server.streaming.encoder import Encoder
from weft.settings import Settings

_NEUTRAL: dict[str, unsupported.Accepts] = {
    "explain_cache": unsupported.TEXT_ONLY["explain_cache"],
    "n": lambda value: value == 1,
    "n_cmpl": lambda value: value == 1,
    "logprobs": lambda value: value == 0,
    **unsupported.TEXT_ONLY,
}
"""Values of fields that the events cannot represent otherwise, nor which completion they belong to."""


def prepared(data: CompletionFields, _: Settings) -> CompletionFields:
    """Returns the body as a streamed request for one completion, the only kind supported."""
    unsupported.refuse(data, _NEUTRAL)
    return msgspec.structs.replace(data, stream=True, n=1)


class ChunkEncoder(Encoder):
    """Encodes one event for each token that adds text. Closing the connection ends the stream."""

    def __init__(self, _: Generation) -> None:
        pass

    def frames(self, prompt: int, event: Event) -> list[bytes]:  # noqa: ARG002 (there is one)
        """Returns the frame of the next event, if it adds text."""
        return [sse.frame({"content": event.text})] if isinstance(event, Token | Finished) and event.text else []
