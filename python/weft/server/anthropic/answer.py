"""Conversion of engine events to Anthropic's events and messages. No I/O here."""

import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from weft import Finished, Progress, PromptLogprobs, Token
from weft.chat.answer.parts import CallArguments, CallStart, Content, Part, Reasoning
from weft.server.anthropic.schemas import (
    BlockDelta,
    BlockStart,
    BlockStop,
    CreateMessage,
    InputDelta,
    MessageDelta,
    MessageEnd,
    MessageObject,
    MessageStart,
    MessageStop,
    Ping,
    SignatureDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
    Usage,
)
from weft.server.memory_budget import TOKEN_BYTES
from weft.server.run.end_reason import end_reason, stop_string
from weft.server.run.generation import Event, Generation
from weft.server.run.service import Service
from weft.server.streaming import sse

__all__ = ["PING", "ChunkEncoder", "ResponseBuilder"]

STOP_REASONS = {
    "end": "end_turn",
    "stop": "stop_sequence",
    "length": "max_tokens",
    "context_full": "model_context_window_exceeded",
    "cancelled": "end_turn",
}

INVALID_JSON = "INVALID_JSON"
"""Key for arguments that are not a JSON object, as in Anthropic's API."""

StreamEvent = BlockStart | BlockDelta | BlockStop | MessageStart | MessageDelta | MessageStop
"""An event of a stream."""

_PING = Ping()


def _frame(event: StreamEvent | Ping) -> bytes:
    return sse.named_frame(str(event.__struct_config__.tag), event)


PING = _frame(_PING)
"""Sent during silence."""


class _ResponseState:
    """State shared by streamed and complete responses."""

    def __init__(self, data: CreateMessage, generation: Generation, service: Service) -> None:
        self._id = f"msg_{uuid.uuid4().hex}"
        self._model = service.model_name
        self._generation = generation
        self._n_prompt = generation.streams[0].n_prompt
        self._shows_reasoning = data.thinking is None or data.thinking.display != "omitted"
        self._stops = frozenset(data.stop_sequences or ())

    def _stop_and_usage(self, finished: Finished) -> tuple[MessageEnd, Usage]:
        """Returns the stop reason and the usage."""
        used, reason = finished.usage, STOP_REASONS[end_reason(finished)]
        stop = stop_string(finished)
        if stop is not None and stop not in self._stops:
            # Stop string of the chat template.
            reason, stop = "end_turn", None
        if reason == "end_turn" and self._generation.finish_reason(finished) == "tool_calls":
            reason = "tool_use"
        return MessageEnd(reason, stop), self._usage(used.n_cached, used.n_predicted)

    def _usage(self, n_cached: int, n_predicted: int) -> Usage:
        return Usage(input_tokens=self._n_prompt - n_cached, cache_read_input_tokens=n_cached, output_tokens=n_predicted)


class ChunkEncoder(_ResponseState):
    """Encodes the start of a message, its content block by block, and its end.

    The number of cached prompt tokens is reported at the start, if known by then, and at the end.
    """

    def __init__(self, data: CreateMessage, generation: Generation, service: Service) -> None:
        super().__init__(data, generation, service)
        self._is_begun = False
        self._block = -1
        """Index of the latest block."""
        self._open: type[Part] | None = None
        """Kind of part that extends the open block, or None."""

    def frames(self, prompt: int, events: Sequence[Event]) -> list[bytes]:  # noqa: ARG002 (there is one)
        """Returns the frames of events, in order."""
        return [_frame(sent) for event in events for sent in self._events(event)]

    def _events(self, event: Event) -> list[StreamEvent]:
        match event:
            case PromptLogprobs():
                return []
            case Progress():
                return self._start(event.n_cached)
            case Finished():
                said = [sent for part in self._generation.parts(event) for sent in self._part_events(part)]
                end, usage = self._stop_and_usage(event)
                last = MessageDelta(end, usage, self._generation.explanation(0, event))
                return [*self._start(event.usage.n_cached), *said, *self._close(), last, MessageStop()]
            case _:
                return [*self._start(0), *(sent for part in self._generation.parts(event) for sent in self._part_events(part))]

    def _start(self, n_cached: int) -> list[StreamEvent]:
        if self._is_begun:
            return []
        self._is_begun = True
        return [MessageStart(MessageObject(id=self._id, model=self._model, content=[], usage=self._usage(n_cached, 0)))]

    def _part_events(self, part: Part) -> list[StreamEvent]:
        match part:
            case Content():
                return [*self._block_of(part, TextBlock("")), BlockDelta(self._block, TextDelta(part.text))]
            case Reasoning():
                opened = self._block_of(part, ThinkingBlock(""))
                return [*opened, BlockDelta(self._block, ThinkingDelta(part.text))] if self._shows_reasoning else opened
            case CallStart():
                closed = self._close()
                self._block, self._open = self._block + 1, CallArguments
                return [*closed, BlockStart(self._block, ToolUseBlock(part.id, part.name, {}))]
            case CallArguments():
                return [BlockDelta(self._block, InputDelta(part.text))]

    def _block_of(self, part: Part, empty: TextBlock | ThinkingBlock) -> list[StreamEvent]:
        """Starts a block, unless the open one has this kind of part."""
        if self._open is type(part):
            return []
        closed = self._close()
        self._block, self._open = self._block + 1, type(part)
        return [*closed, BlockStart(self._block, empty)]

    def _close(self) -> list[StreamEvent]:
        if self._open is None:
            return []
        signed: list[StreamEvent] = [BlockDelta(self._block, SignatureDelta(""))] if self._open is Reasoning else []
        self._open = None
        return [*signed, BlockStop(self._block)]

    def end(self) -> bytes:
        """Returns nothing; the last event of the branch ends the stream."""
        return b""


class ResponseBuilder(_ResponseState):
    """Builds the complete response."""

    def __init__(self, data: CreateMessage, generation: Generation, service: Service) -> None:
        super().__init__(data, generation, service)
        self._blocks: list[tuple[Part, list[str]]] = []
        """Blocks as their first part and their texts."""
        self._end: tuple[MessageEnd, Usage] | None = None

    def add(self, prompt: int, events: Sequence[Event]) -> int:  # noqa: ARG002 (there is one)
        """Adds events in order. Returns the number of bytes by which memory use grew."""
        return sum(self._add(event) for event in events if isinstance(event, Token | Finished))

    def _add(self, event: Token | Finished) -> int:
        parts = self._generation.parts(event)
        for part in parts:
            self._take(part)
        if isinstance(event, Finished):
            self._end = self._stop_and_usage(event)
        return TOKEN_BYTES + sum(len(part.name if isinstance(part, CallStart) else part.text) for part in parts)

    def _take(self, part: Part) -> None:
        if isinstance(part, CallStart):
            self._blocks.append((part, []))
            return
        text = "" if isinstance(part, Reasoning) and not self._shows_reasoning else part.text
        if not isinstance(part, CallArguments) and (not self._blocks or type(self._blocks[-1][0]) is not type(part)):
            self._blocks.append((part, [text]))
        else:
            self._blocks[-1][1].append(text)

    def body(self) -> list[bytes]:
        """Returns the JSON, once the branch has finished."""
        assert self._end is not None, "there is one branch, and it has finished"
        end, usage = self._end
        message = MessageObject(
            id=self._id,
            model=self._model,
            content=[_block(part, "".join(texts)) for part, texts in self._blocks],
            stop_reason=end.stop_reason,
            stop_sequence=end.stop_sequence,
            usage=usage,
            cache_explanation=self._generation.explanations.get(0, msgspec.UNSET),
        )
        return [msgspec.json.encode(message)]


def _block(part: Part, text: str) -> TextBlock | ThinkingBlock | ToolUseBlock:
    match part:
        case CallStart():
            return ToolUseBlock(part.id, part.name, _arguments(text))
        case Reasoning():
            return ThinkingBlock(text)
        case _:
            return TextBlock(text)


def _arguments(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return {INVALID_JSON: text}
