"""Events of a response's stream. Each has a `sequence_number` (from 0) after its type, as in OpenAI's."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from weft.server.response_fields import PromptProgress
from weft.server.responses.items import Call, Message, Part, Thought, ThoughtText
from weft.server.responses.schemas import Response
from weft.server.streaming.json_chunks import filled

__all__ = [
    "ArgumentsDelta",
    "ArgumentsDone",
    "Completed",
    "Created",
    "Event",
    "Failed",
    "InProgress",
    "Incomplete",
    "ItemAdded",
    "ItemDone",
    "PartAdded",
    "PartDone",
    "PendingEvent",
    "Queued",
    "TextDelta",
    "TextDone",
    "ThoughtDelta",
    "ThoughtDone",
    "frame",
]


class Event(msgspec.Struct, tag_field="type"):
    """Fields of all events."""

    sequence_number: int


class _OfResponse(Event):
    response: Response


class Created(_OfResponse, tag="response.created"):
    """The response was created."""


class Queued(_OfResponse, tag="response.queued"):
    """The response is queued."""


class InProgress(_OfResponse, tag="response.in_progress"):
    """The response is being generated."""

    prompt_progress: PromptProgress | msgspec.UnsetType = msgspec.UNSET
    """llama-server's extension: progress of the prompt."""


class Completed(_OfResponse, tag="response.completed"):
    """The response has completed."""


class Incomplete(_OfResponse, tag="response.incomplete"):
    """The response ended early."""


class Failed(_OfResponse, tag="response.failed"):
    """The response failed."""


class _OfItem(Event):
    output_index: int
    item: Message | Thought | Call


class ItemAdded(_OfItem, tag="response.output_item.added"):
    """An output item begins."""


class ItemDone(_OfItem, tag="response.output_item.done"):
    """An output item is complete."""


class _InItem(Event):
    item_id: str
    output_index: int


class _InPart(_InItem):
    content_index: int
    """Always 0, since each item has one part."""


class _OfPart(_InPart):
    part: Part | ThoughtText


class PartAdded(_OfPart, tag="response.content_part.added"):
    """A part of an item begins."""


class PartDone(_OfPart, tag="response.content_part.done"):
    """A part of an item is complete."""


class TextDelta(_InPart, tag="response.output_text.delta"):
    """A piece of a message's text."""

    delta: str
    logprobs: list[msgspec.Raw]


class TextDone(_InPart, tag="response.output_text.done"):
    """The complete text of a message."""

    text: str
    logprobs: list[msgspec.Raw]


class ThoughtDelta(_InPart, tag="response.reasoning_text.delta"):
    """A piece of reasoning."""

    delta: str


class ThoughtDone(_InPart, tag="response.reasoning_text.done"):
    """The complete reasoning."""

    text: str


class ArgumentsDelta(_InItem, tag="response.function_call_arguments.delta"):
    """A piece of a function call's arguments."""

    delta: str


class ArgumentsDone(_InItem, tag="response.function_call_arguments.done"):
    """The complete arguments of a function call."""

    name: str
    arguments: str


_encode = msgspec.json.Encoder().encode


class PendingEvent(NamedTuple):
    """An event and the contents of its gaps, in order. Long contents are encoded once for all events that include them."""

    event: Event
    fillings: Sequence[Sequence[bytes]] = ()


def frame(pending: PendingEvent) -> list[bytes]:
    """Returns a server-sent event in chunks, with its type as event name."""
    tag = str(pending.event.__struct_config__.tag)
    return filled(b"event: " + tag.encode() + b"\ndata: " + _encode(pending.event) + b"\n\n", *pending.fillings)
