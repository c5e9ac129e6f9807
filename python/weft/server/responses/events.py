"""The events of a response's stream, in OpenAI's order. All have a `sequence_number`, from 0, right after their type."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from weft.server.response_fields import PromptProgress
from weft.server.responses.items import Call, Message, Part, Thought, ThoughtText
from weft.server.responses.schemas import Response
from weft.server.run.pieces import filled

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
    "Queued",
    "TextDelta",
    "TextDone",
    "ThoughtDelta",
    "ThoughtDone",
    "Told",
    "frame",
]


class Event(msgspec.Struct, tag_field="type"):
    """What all have."""

    sequence_number: int


class _OfResponse(Event):
    response: Response


class Created(_OfResponse, tag="response.created"):
    """There is a response."""


class Queued(_OfResponse, tag="response.queued"):
    """It waits."""


class InProgress(_OfResponse, tag="response.in_progress"):
    """It is written."""

    prompt_progress: PromptProgress | msgspec.UnsetType = msgspec.UNSET
    """llama-server's extension: how far the prompt is."""


class Completed(_OfResponse, tag="response.completed"):
    """It has ended by itself."""


class Incomplete(_OfResponse, tag="response.incomplete"):
    """It was ended early."""


class Failed(_OfResponse, tag="response.failed"):
    """It could not be written to its end."""


class _OfItem(Event):
    output_index: int
    item: Message | Thought | Call


class ItemAdded(_OfItem, tag="response.output_item.added"):
    """An item begins."""


class ItemDone(_OfItem, tag="response.output_item.done"):
    """An item is whole."""


class _InItem(Event):
    item_id: str
    output_index: int


class _InPart(_InItem):
    content_index: int
    """Each item has one part, and so this is 0."""


class _OfPart(_InPart):
    part: Part | ThoughtText


class PartAdded(_OfPart, tag="response.content_part.added"):
    """A part of an item begins."""


class PartDone(_OfPart, tag="response.content_part.done"):
    """A part of an item is whole."""


class TextDelta(_InPart, tag="response.output_text.delta"):
    """A stretch of a message."""

    delta: str
    logprobs: list[msgspec.Raw]


class TextDone(_InPart, tag="response.output_text.done"):
    """All of a message."""

    text: str
    logprobs: list[msgspec.Raw]


class ThoughtDelta(_InPart, tag="response.reasoning_text.delta"):
    """A stretch of a thought."""

    delta: str


class ThoughtDone(_InPart, tag="response.reasoning_text.done"):
    """All of a thought."""

    text: str


class ArgumentsDelta(_InItem, tag="response.function_call_arguments.delta"):
    """A stretch of a call's arguments."""

    delta: str


class ArgumentsDone(_InItem, tag="response.function_call_arguments.done"):
    """All of a call's arguments."""

    name: str
    arguments: str


_encode = msgspec.json.Encoder().encode


class Told(NamedTuple):
    """An event, and what its gaps are filled with, in order: what is long is written once for all events that tell it."""

    event: Event
    fillings: Sequence[Sequence[bytes]] = ()


def frame(told: Told) -> list[bytes]:
    """One server-sent event in pieces, with its type before it."""
    tag = str(told.event.__struct_config__.tag)
    return filled(b"event: " + tag.encode() + b"\ndata: " + _encode(told.event) + b"\n\n", *told.fillings)
