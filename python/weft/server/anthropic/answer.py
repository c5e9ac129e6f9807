"""Conversion of engine events to Anthropic's events and messages. No I/O here."""

import uuid
from typing import Any

import msgspec

from weft import Event, Finished, Progress, PromptLogprobs, Token
from weft.chat.answer.parts import CallArguments, CallStart, Content, Part, Reasoning
from weft.server.anthropic.errors import shape
from weft.server.anthropic.schemas import CreateMessage, MessageObject, TextBlock, ThinkingBlock, ToolUseBlock, Usage
from weft.server.errors import describe
from weft.server.inference.generation import Generation, end_reason, stop_string
from weft.server.memory_budget import TOKEN_BYTES
from weft.server.service import Service
from weft.server.streaming import sse
from weft.server.streaming.encoder import Encoder

STOP_REASONS = {
    "end": "end_turn",
    "stop": "stop_sequence",
    "length": "max_tokens",
    "context_full": "model_context_window_exceeded",
    "cancelled": "end_turn",
}

INVALID_JSON = "INVALID_JSON"
"""Key for arguments that are not a JSON object, as in Anthropic's API."""

Block = TextBlock | ThinkingBlock | ToolUseBlock

StreamEvent = dict[str, Any]
"""An event of a stream. Its `type` is also its name."""


def frame(event: StreamEvent) -> bytes:
    """Returns an event as a frame."""
    return sse.named_frame(event["type"], event)


class MessageEncoder(Encoder):
    """Encodes a message: as a stream of its start, its content block by block, and its end; or complete.

    The number of cached prompt tokens is reported at the start, if known by then, and at the end.
    """

    ping = frame({"type": "ping"})

    def __init__(self, data: CreateMessage, generation: Generation, service: Service) -> None:
        self._generation = generation
        self._n_prompt = generation.streams[0].n_prompt
        self._shows_reasoning = data.thinking is None or data.thinking.display != "omitted"
        self._stops = frozenset(data.stop_sequences or ())
        self._is_begun = False
        self._block = -1
        """Index of the latest block."""
        self._open: type[Part] | None = None
        """Kind of part that extends the open block, or None."""
        self._message = MessageObject(id=f"msg_{uuid.uuid4().hex}", model=service.model_name, content=[], usage=self._usage(0, 0))
        """The complete message, built from the events of the stream as a client does."""
        self._texts: list[list[str]] = []
        """Pieces of each of its blocks' text or arguments."""

    def frames(self, prompt: int, event: Event) -> list[bytes]:  # noqa: ARG002 (there is one)
        """Returns the frames of the next event."""
        return list(map(frame, self._events(event)))

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
                events = [*self._start(event.usage.n_cached), *self._parts(event), *self._close(), self._end(event)]
                return [*events, {"type": "message_stop"}]

    def _start(self, n_cached: int) -> list[StreamEvent]:
        if self._is_begun:
            return []
        self._is_begun = True
        self._message.usage = self._usage(n_cached, 0)
        return [{"type": "message_start", "message": self._message}]

    def _parts(self, event: Token | Finished) -> list[StreamEvent]:
        return [sent for part in self._generation.parsers.read(event) for sent in self._part_events(part)]

    def _part_events(self, part: Part) -> list[StreamEvent]:
        match part:
            case Content(text):
                return [*self._block_of(part, TextBlock("")), self._delta("text_delta", text=text)]
            case Reasoning(text):
                opened = self._block_of(part, ThinkingBlock(""))
                return [*opened, self._delta("thinking_delta", thinking=text)] if self._shows_reasoning else opened
            case CallStart():
                return self._open_block(CallArguments, ToolUseBlock(part.id, part.name, {}))
            case CallArguments():
                return [self._delta("input_json_delta", partial_json=part.text)]

    def _delta(self, kind: str, **text: str) -> StreamEvent:
        """Returns an addition to the open block."""
        return {"type": "content_block_delta", "index": self._block, "delta": {"type": kind, **text}}

    def _block_of(self, part: Part, empty: Block) -> list[StreamEvent]:
        """Starts a block, unless the open one has this kind of part."""
        return [] if self._open is type(part) else self._open_block(type(part), empty)

    def _open_block(self, kind: type[Part], empty: Block) -> list[StreamEvent]:
        closed = self._close()
        self._block, self._open = self._block + 1, kind
        return [*closed, {"type": "content_block_start", "index": self._block, "content_block": empty}]

    def _close(self) -> list[StreamEvent]:
        if self._open is None:
            return []
        signed = [self._delta("signature_delta", signature="")] if self._open is Reasoning else []
        self._open = None
        return [*signed, {"type": "content_block_stop", "index": self._block}]

    def _end(self, finished: Finished) -> StreamEvent:
        """Returns the event with the stop reason and the usage, after the parts were read."""
        reason, stop = STOP_REASONS[end_reason(finished)], stop_string(finished)
        if stop is not None and stop not in self._stops:
            # Stop string of the chat template.
            reason, stop = "end_turn", None
        if reason == "end_turn" and self._generation.parsers.finish_reason(finished) == "tool_calls":
            reason = "tool_use"
        event = {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": stop},
            "usage": self._usage(finished.usage.n_cached, finished.usage.n_predicted),
        }
        explanation = self._generation.explanation(0, finished)
        return event if explanation is msgspec.UNSET else event | {"cache_explanation": explanation}

    def _usage(self, n_cached: int, n_predicted: int) -> Usage:
        return Usage(input_tokens=self._n_prompt - n_cached, cache_read_input_tokens=n_cached, output_tokens=n_predicted)

    def failure(self, error: Exception) -> bytes:
        """Returns the last event of a failed stream."""
        return frame(dict(shape(describe(error))))

    def add(self, prompt: int, event: Event) -> int:  # noqa: ARG002 (there is one)
        """Adds the next event. Returns the number of bytes by which memory use grew."""
        return TOKEN_BYTES + sum(map(self._take, self._events(event)))

    def _take(self, event: StreamEvent) -> int:
        match event:
            case {"content_block": block}:
                self._message.content.append(block)
                self._texts.append([])
            case {"index": index, "delta": {"text": text} | {"thinking": text} | {"partial_json": text}}:
                self._texts[index].append(text)
                return len(text)
            case {"type": "message_delta", "delta": end, **more}:
                for name, value in {**end, **more}.items():
                    setattr(self._message, name, value)
        return 0

    def body(self) -> list[bytes]:
        """Returns the JSON, once the branch has finished."""
        for block, texts in zip(self._message.content, self._texts, strict=True):
            _fill(block, "".join(texts))
        return [msgspec.json.encode(self._message)]


def _fill(block: Block, text: str) -> None:
    match block:
        case TextBlock():
            block.text = text
        case ThinkingBlock():
            block.thinking = text
        case ToolUseBlock():
            block.input = _arguments(text)


def _arguments(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any]) if text else {}
    except msgspec.DecodeError:
        return {INVALID_JSON: text}
