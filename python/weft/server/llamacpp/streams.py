"""llama-server's routes for resumable streams, which requests with the header `X-Conversation-Id` create."""

import re
from typing import Annotated

from litestar.params import FromQuery, JSONBody, QueryParameter

from weft import InvalidRequestError
from weft.fields.excerpt import excerpt
from weft.server.api import Api
from weft.server.context import CallerDependency, ServiceDependency
from weft.server.errors import NOT_FOUND, NoSuchItemError, OffsetLostError
from weft.server.llamacpp.schemas import KeptStream, StreamsLookup
from weft.server.streaming.recording import MAX_STREAMS, RecordingResponse
from weft.server.streaming.responses import Answer

api = Api("llama.cpp")


@api.route("GET", "/v1/stream", summary="Resume a stream", errors=NOT_FOUND, needs_model=False)
async def read_stream(
    service: ServiceDependency,
    caller: CallerDependency,
    conv_id: FromQuery[str] = "",
    from_: Annotated[str, QueryParameter(name="from")] = "0",
) -> Answer[str]:
    """Returns the stream of a conversation from a byte offset to its end."""
    recording = service.recordings.find(caller.owner, _named(conv_id))
    if recording is None:
        raise NoSuchItemError("Stream not found or expired")
    if re.fullmatch("[0-9]{1,18}", from_) is None:
        raise InvalidRequestError("from", f"from is {excerpt(from_)}; it must be a number of bytes")
    if (offset := int(from_)) < recording.n_dropped:
        raise OffsetLostError(offset, recording.n_dropped)
    return Answer(RecordingResponse(recording, offset))


@api.route("POST", "/v1/streams/lookup", summary="Find resumable streams", needs_model=False)
async def lookup_streams(data: JSONBody[StreamsLookup], service: ServiceDependency, caller: CallerDependency) -> list[KeptStream]:
    """Returns the resumable streams of conversations; `ID` also finds `ID::MODEL`."""
    names = data.conversation_ids or []
    if len(names) > MAX_STREAMS:
        raise InvalidRequestError("conversation_ids", f"conversation_ids has {len(names)} ids; at most {MAX_STREAMS} are allowed")
    return [
        KeptStream(one.name, one.is_ended, one.n_bytes, one.started_s, one.ended_s or 0)
        for one in service.recordings.of_conversations(caller.owner, names)
    ]


@api.route("DELETE", "/v1/stream", summary="Delete a resumable stream", needs_model=False, status_code=204)
async def delete_stream(service: ServiceDependency, caller: CallerDependency, conv_id: FromQuery[str] = "") -> None:
    """Cancels and deletes the stream of a conversation, if there is one."""
    await service.recordings.end(caller.owner, _named(conv_id))


def _named(conv_id: str) -> str:
    if not conv_id:
        raise InvalidRequestError("conv_id", "conv_id must be given")
    return conv_id
