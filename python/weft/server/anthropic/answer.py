"""Conversion of engine events to Anthropic's events and messages. No I/O here."""

import uuid
from typing import Any

import msgspec

from weft import Event, Finished, Progress, PromptLogprobs, Token
from weft.chat.answer.parts import CallArguments, CallStart, Content, Part, Reasoning
from weft.server.anthropic import schemas
from weft.server.inference.end_reason import end_reason, stop_string
from weft.server.inference.generation import Generation
from weft.server.memory_budget import TOKEN_BYTES
from weft.server.service import Service
from weft.server.streaming import sse
from weft.server.streaming.responses import StreamEncoder

STOP_REASONS = {
    "end": "end_turn",
    "stop": "stop_sequence",
    "length": "max_tokens",
    "context_full": "model_context_window_exceeded",
    "cancelled": "end_turn",
}

INVALID_JSON = "INVALID_JSON"
"""Key for arguments that are not a JSON object, as in Anthropic's API."""

Block = schemas.TextBlock | schemas.ThinkingBlock | schemas.ToolUseBlock

StreamEvent = (
    schemas.BlockStart
    | schemas.BlockDelta
    | schemas.BlockStop
    | schemas.MessageStart
    | schemas.MessageDelta
    | schemas.MessageStop
)
"""An event of a stream."""


def _frame(event: StreamEvent | schemas.Ping) -> bytes:
    return sse.named_frame(str(event.__struct_config__.tag), event)


PING = _frame(schemas.Ping())
"""Sent during silence."""


class MessageEncoder(StreamEncoder):
    """Encodes a message: as a stream of its start, its content block by block, and its end; or complete.

    The number of cached prompt tokens is reported at the start, if known by then, and at the end.
    """

    def __init__(self, data: schemas.CreateMessage, generation: Generation, service: Service) -> None:
        self._model = service.model_name
        self._generation = generation
        self._n_prompt = generation.streams[0].n_prompt
        self._shows_reasoning = data.thinking is None or data.thinking.display != "omitted"
        self._stops = frozenset(data.stop_sequences or ())
        self._is_begun = False
        self._block = -1
        """Index of the latest block."""
        self._open: type[Part] | None = None
        """Kind of part that extends the open block, or None."""
        self._message: schemas.MessageObject | None = None
        """The complete message, built from the events of the stream as a client does."""
        self._texts: list[list[str]] = []
        """Pieces of each of its blocks' text or arguments."""

    def frames(self, prompt: int, event: Event) -> list[bytes]:  # noqa: ARG002 (there is one)
        """Returns the frames of the next event."""
        return [_frame(sent) for sent in self._events(event)]

    def _events(self, event: Event) -> list[StreamEvent]:
        """Returns the stream's events that an engine event causes."""
        match event:
            case PromptLogprobs():
                return []
            case Progress():
                return self._start(event.n_cached)
            case Token():
                return [*self._start(0), *self._parts(event)]
            case Finished():
                said = [*self._start(event.usage.n_cached), *self._parts(event), *self._close()]
                last = schemas.MessageDelta(*self._stop_and_usage(event), self._generation.explanation(0, event))
                return [*said, last, schemas.MessageStop()]

    def _start(self, n_cached: int) -> list[StreamEvent]:
        if self._is_begun:
            return []
        self._is_begun = True
        message_id, usage = f"msg_{uuid.uuid4().hex}", self._usage(n_cached, 0)
        return [schemas.MessageStart(schemas.MessageObject(id=message_id, model=self._model, content=[], usage=usage))]

    def _parts(self, event: Token | Finished) -> list[StreamEvent]:
        return [sent for part in self._generation.parts(event) for sent in self._part_events(part)]

    def _part_events(self, part: Part) -> list[StreamEvent]:
        match part:
            case Content():
                return [
                    *self._block_of(part, schemas.TextBlock("")),
                    schemas.BlockDelta(self._block, schemas.TextDelta(part.text)),
                ]
            case Reasoning():
                opened = self._block_of(part, schemas.ThinkingBlock(""))
                return (
                    [*opened, schemas.BlockDelta(self._block, schemas.ThinkingDelta(part.text))]
                    if self._shows_reasoning
                    else opened
                )
            case CallStart():
                return self._open_block(CallArguments, schemas.ToolUseBlock(part.id, part.name, {}))
            case CallArguments():
                return [schemas.BlockDelta(self._block, schemas.InputDelta(part.text))]

    def _block_of(self, part: Part, empty: Block) -> list[StreamEvent]:
        """Starts a block, unless the open one has this kind of part."""
        return [] if self._open is type(part) else self._open_block(type(part), empty)

    def _open_block(self, kind: type[Part], empty: Block) -> list[StreamEvent]:
        closed = self._close()
        self._block, self._open = self._block + 1, kind
        return [*closed, schemas.BlockStart(self._block, empty)]

    def _close(self) -> list[StreamEvent]:
        if self._open is None:
            return []
        signed: list[StreamEvent] = (
            [schemas.BlockDelta(self._block, schemas.SignatureDelta(""))] if self._open is Reasoning else []
        )
        self._open = None
        return [*signed, schemas.BlockStop(self._block)]

    def _stop_and_usage(self, finished: Finished) -> tuple[schemas.MessageEnd, schemas.Usage]:
        """Returns the stop reason and the usage, after the parts were read."""
        used, reason = finished.usage, STOP_REASONS[end_reason(finished)]
        stop = stop_string(finished)
        if stop is not None and stop not in self._stops:
            # Stop string of the chat template.
            reason, stop = "end_turn", None
        if reason == "end_turn" and self._generation.finish_reason(finished) == "tool_calls":
            reason = "tool_use"
        return schemas.MessageEnd(reason, stop), self._usage(used.n_cached, used.n_predicted)

    def _usage(self, n_cached: int, n_predicted: int) -> schemas.Usage:
        return schemas.Usage(input_tokens=self._n_prompt - n_cached, cache_read_input_tokens=n_cached, output_tokens=n_predicted)

    def add(self, prompt: int, event: Event) -> int:  # noqa: ARG002 (there is one)
        """Adds the next event. Returns the number of bytes by which memory use grew."""
        return TOKEN_BYTES + sum(map(self._take, self._events(event)))

    def _take(self, event: StreamEvent) -> int:
        match event:
            case schemas.MessageStart(message):
                self._message = message
            case schemas.BlockStart(_, block):
                self._started.content.append(block)
                self._texts.append([])
            case schemas.BlockDelta(index, schemas.TextDelta(text) | schemas.ThinkingDelta(text) | schemas.InputDelta(text)):
                self._texts[index].append(text)
                return len(text)
            case schemas.MessageDelta(end, usage, explanation):
                message = self._started
                message.stop_reason, message.stop_sequence, message.usage = end.stop_reason, end.stop_sequence, usage
                message.cache_explanation = explanation
        return 0

    @property
    def _started(self) -> schemas.MessageObject:
        assert self._message is not None, "the first event starts the message"
        return self._message

    def body(self) -> list[bytes]:
        """Returns the JSON, once the branch has finished."""
        for block, texts in zip(self._started.content, self._texts, strict=True):
            _fill(block, "".join(texts))
        return [msgspec.json.encode(self._message)]


def _fill(block: Block, text: str) -> None:
    match block:
        case schemas.TextBlock():
            block.text = text
        case schemas.ThinkingBlock():
            block.thinking = text
        case schemas.ToolUseBlock():
            block.input = _arguments(text)


def _arguments(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any]) if text else {}
    except msgspec.DecodeError:
        return {INVALID_JSON: text}
