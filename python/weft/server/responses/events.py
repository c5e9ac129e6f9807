"""Events of a response's stream. Each has a `sequence_number` (from 0) after its type, as in OpenAI's."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from weft import InvalidRequestError
from weft.server.response_fields.progress import PromptProgress
from weft.server.responses.items import Call, Message, Part, Thought, ThoughtText
from weft.server.responses.schemas import Response
from weft.server.streaming.json_chunks import filled
from weft.server.streaming.recording import Recording


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


_BEFORE = b"\n\nevent: "

_NUMBERED = re.compile(_BEFORE + rb'[^\n]*\ndata: \{"type":"[^"]*","sequence_number":([0-9]+)')

_encode = msgspec.json.Encoder().encode


class PendingEvent(NamedTuple):
    """An event and the contents of its gaps, in order. Long contents are encoded once for all events that include them."""

    event: Event
    fillings: Sequence[Sequence[bytes]] = ()


def frame(pending: PendingEvent) -> list[bytes]:
    """Returns a server-sent event in chunks, with its type as event name."""
    tag = str(pending.event.__struct_config__.tag)
    return filled(b"event: " + tag.encode() + b"\ndata: " + _encode(pending.event) + b"\n\n", *pending.fillings)


def offset_after(recording: Recording, number: int) -> int:
    """Returns the byte offset of the first event after the one with this number.

    Raises:
        InvalidRequestError: Some of these events are no longer buffered.
    """
    kept = b"\n\n" + recording.kept()
    first = _next_number(kept, 0, len(kept))
    if recording.n_dropped and (first is None or first[1] > number + 1):
        message = f"starting_after is {number}; the events after that one are no longer all kept"
        raise InvalidRequestError("starting_after", message)
    # Invariant: events that begin before `low` have at most this number; those at `high` or later have a larger one.
    low, high = 0, len(kept)
    while low < high:
        middle = (low + high) // 2
        found = _next_number(kept, middle, high)
        if found is None or found[1] > number:
            high = middle
        else:
            low = found[0] + 1
    # The prepended two bytes cancel out with the two newlines before the event.
    offset = kept.find(_BEFORE, low)
    return recording.n_bytes if offset < 0 else recording.n_dropped + offset


def _next_number(kept: bytes, begin: int, end: int) -> tuple[int, int] | None:
    """Returns the position of the empty line before the first event that begins in this range, and the event's number."""
    offset = kept.find(_BEFORE, begin, end + len(_BEFORE) - 1)
    if offset < 0 or (found := _NUMBERED.match(kept, offset)) is None:
        return None
    return offset, int(found[1])
