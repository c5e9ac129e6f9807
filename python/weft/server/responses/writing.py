"""Builds a response: converts message parts to items and events."""

import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import cast

import msgspec

from weft import ContextOverflowError, Event, Finished, InvalidRequestError, Progress, Token
from weft.chat.answer.parts import CallArguments, CallStart, Content, Part
from weft.chat.answer.parts import Reasoning as ReasoningPart
from weft.server.errors import describe
from weft.server.inference.generation import Generation, stop_string, token_logprobs
from weft.server.memory_budget import TOKEN_BYTES, Reservation
from weft.server.response_fields.progress import PromptProgress
from weft.server.responses import events, schemas
from weft.server.responses.events import PendingEvent
from weft.server.responses.items import BELOW, REASONING, Call, Message, ReasoningItem, ReasoningText, new_id, packed
from weft.server.responses.items import Part as ContentPart
from weft.server.streaming.encoder import Encoder
from weft.server.streaming.json_chunks import GAP, filled, json_list, json_text, list_of_pieces

OPAQUE = "reasoning.encrypted_content"
"""Entry of `include` that requests reasoning as opaque text too."""

CHUNK_BYTES = 64 * 1024
"""Bytes of logprobs per chunk."""

_TEXT_GAP = cast("str", GAP)
_LIST_GAP = cast("list[msgspec.Raw]", GAP)


class _OpenItem:
    """The item that is being generated."""

    def __init__(self, item: Message | ReasoningItem | Call, index: int) -> None:
        self.item = item
        self.index = index
        self.pieces: list[str] = []
        self._logprobs: list[bytes] = []
        """Encoded logprobs of tokens so far, each entry for many tokens."""
        self._new: list[msgspec.Raw] = []
        self._n_new = 0

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def add_logprobs(self, json: Sequence[msgspec.Raw]) -> None:
        """Adds logprobs of tokens. They are joined incrementally, as they may amount to many megabytes."""
        self._new += json
        self._n_new += sum(map(len, json))
        if self._n_new >= CHUNK_BYTES:
            self._join()

    def logprobs(self) -> list[bytes]:
        """Returns all logprobs of the item as JSON in chunks."""
        self._join()
        return json_list(self._logprobs)

    def _join(self) -> None:
        if self._new:
            self._logprobs.append(b",".join(self._new))
            self._new, self._n_new = [], 0


class ResponseWriter(Encoder):
    """A response with its items and events. Content stays in memory until the end, whose events repeat it.

    Args:
        response: The initial response object.
        generation: Its generation.
        data: The body.
        collected: Memory of the response, if it is streamed.
        on_end: Called once, when the response has ended.
    """

    def __init__(
        self,
        response: schemas.Response,
        generation: Generation,
        data: schemas.CreateResponse,
        *,
        collected: Reservation,
        on_end: "Callable[[ResponseWriter], None]",
    ) -> None:
        self.response = response
        self.items: list[Message | ReasoningItem | Call] = []
        """Completed items."""
        self.output: list[Sequence[bytes]] = []
        """Their JSON in chunks, encoded once."""
        response.output = _LIST_GAP
        self._generation = generation
        self._namespaces = {tool["name"] for tool in response.tools if tool.get("type") == "namespace"}
        self._collected = collected
        self._n_uncounted = 0
        self._data = data
        self._on_end = on_end
        self._open: _OpenItem | None = None
        self._n_events = 0
        self._n_reasoning = 0
        self._n_pending = 0
        """Tokens whose text is not yet assigned to a part."""
        self._pending_logprobs: list[msgspec.Raw] = []
        """Their logprobs."""

    @property
    def is_ended(self) -> bool:
        """True if the response has ended."""
        return self.response.status not in ("queued", "in_progress")

    def take(self, event: Event) -> tuple[list[PendingEvent], int]:
        """Returns the events that an engine event causes, and the number of bytes by which memory use grew."""
        made: list[PendingEvent] = []
        if self.response.status == "queued":
            self.response.status = "in_progress"
            made.append(self._response_event("in_progress"))
        if isinstance(event, Progress) and self._data.return_progress:
            made.append(self._response_event("in_progress", prompt_progress=PromptProgress.of(event)))
        if not isinstance(event, Token | Finished):
            return made, 0
        n_bytes = len(event.text)
        if isinstance(event, Token):
            n_bytes += TOKEN_BYTES + self._take_logprobs(event)
            self._n_pending += 1
        for part in self._generation.parsers.read(event):
            made += self._part(part)
        if isinstance(event, Finished):
            made += self._finish(event)
        return made, n_bytes

    def opening(self) -> bytes:
        """Returns the events of a stream before any content."""
        return b"".join(_frames([self._response_event("created"), self._response_event(self.response.status)]))

    def frames(self, prompt: int, event: Event) -> list[bytes]:  # noqa: ARG002 (there is one)
        """Returns the frames of the next event, as chunks.

        Raises:
            AnswerTooLargeError: The response exceeds its memory limit.
            AnswersTooLargeError: All responses together exceed their memory limit.
        """
        # Counted after the previous event's frames were returned, so that an error follows them.
        self._collected.grow(self._n_uncounted)
        made, self._n_uncounted = self.take(event)
        return _frames(made)

    def add(self, prompt: int, event: Event) -> int:  # noqa: ARG002 (there is one)
        """Adds the next event to a response that is not streamed. Returns the number of bytes by which memory use grew."""
        return self.take(event)[1]

    def failure(self, error: Exception) -> bytes:
        """Ends the response with an error, and returns the events of its stream. Returns nothing if it has ended already."""
        if self.is_ended:
            return b""
        made = list(self._close("incomplete"))
        described = describe(error)
        code = "invalid_prompt" if isinstance(error, InvalidRequestError | ContextOverflowError) else "server_error"
        self.response.error = schemas.Failure("rate_limit_exceeded" if described.code == 429 else code, described.message)
        return b"".join(_frames([*made, *self._end("failed")]))

    def cancel(self) -> None:
        """Ends the response as cancelled, unless it has ended already."""
        if not self.is_ended:
            list(self._close("incomplete"))
            self.response.status = "cancelled"
            self._on_end(self)

    def frame(self) -> bytes:
        """Returns the current response as JSON with a gap for its output."""
        return msgspec.json.encode(self.response)

    def body(self) -> list[bytes]:
        """Returns the current response as JSON in chunks."""
        return filled(self.frame(), list_of_pieces(self.output))

    def _take_logprobs(self, token: Token) -> int:
        if (json := token_logprobs(token)) is None:
            return 0
        self._pending_logprobs.append(msgspec.Raw(json.token_json(bool(self._data.top_logprobs), False)))
        return len(self._pending_logprobs[-1])

    def _part(self, part: Part) -> Iterator[PendingEvent]:
        match part:
            case Content(text):
                yield from self._open_item(Message)
                self._opened.add_logprobs(self._pending_logprobs)
                self._opened.pieces.append(text)
                yield self._in_part("output_text.delta", delta=text, logprobs=self._pending_logprobs)
            case ReasoningPart(text):
                yield from self._open_item(ReasoningItem)
                self._opened.pieces.append(text)
                yield self._in_part("reasoning_text.delta", delta=text)
                self._n_reasoning += self._n_pending
            case CallStart(_, call_id, name):
                yield from self._close("completed")
                called = Call(id=new_id("fc"), call_id=call_id, name=name, arguments="", status="in_progress")
                namespace, below, inner = name.partition(BELOW)
                if below and namespace in self._namespaces:
                    called.name, called.namespace = inner, namespace
                yield from self._add(called)
            case CallArguments(_, text):
                self._opened.pieces.append(text)
                yield self._in_item("function_call_arguments.delta", delta=text)
        self._n_pending, self._pending_logprobs = 0, []

    def _open_item(self, kind: type[Message] | type[ReasoningItem]) -> Iterator[PendingEvent]:
        """Opens an item of this kind, unless one is open."""
        if self._open is not None and isinstance(self._open.item, kind):
            return
        yield from self._close("completed")
        if kind is Message:
            yield from self._add(Message(id=new_id("msg"), role="assistant", status="in_progress", content=[]))
            yield self._in_part("content_part.added", part=_text_part("", []))
        else:
            yield from self._add(ReasoningItem(id=new_id("rs"), content=[], status="in_progress"))
            yield self._in_part("content_part.added", part=ReasoningText(""))

    def _add(self, item: Message | ReasoningItem | Call) -> Iterator[PendingEvent]:
        self._open = _OpenItem(item, len(self.items))
        yield self._event("output_item.added", output_index=self._open.index, item=copy(item))

    def _close(self, status: str) -> Iterator[PendingEvent]:
        """Completes the open item, if any."""
        if (opened := self._open) is None:
            return
        item, text = opened.item, opened.text
        item.status = status
        fillings = [json_text(text)]
        match item:
            case Message():
                fillings.append(opened.logprobs())
                part = _text_part(_TEXT_GAP, _LIST_GAP)
                yield self._in_part("output_text.done", fillings, text=_TEXT_GAP, logprobs=_LIST_GAP)
                yield self._in_part("content_part.done", fillings, part=part)
                item.content = [part]
            case ReasoningItem():
                yield self._in_part("reasoning_text.done", fillings, text=_TEXT_GAP)
                yield self._in_part("content_part.done", fillings, part=ReasoningText(_TEXT_GAP))
                item.content = [ReasoningText(_TEXT_GAP)]
                item.encrypted_content = packed(REASONING, text) if OPAQUE in (self._data.include or ()) else None
            case Call():
                yield self._in_item("function_call_arguments.done", fillings, name=item.name, arguments=_TEXT_GAP)
                item.arguments = _TEXT_GAP
        self.items.append(item)
        self.output.append(filled(msgspec.json.encode(item), *fillings))
        yield self._event("output_item.done", fillings, output_index=opened.index, item=item)
        self._open = None

    def _finish(self, finished: Finished) -> Iterator[PendingEvent]:
        is_whole = finished.finish_reason == "stop"
        if self._open is None and not self.items:
            yield from self._open_item(Message)
        is_cut = not is_whole or (stop_string(finished) is not None and self._generation.parsers.is_cut(finished.index))
        yield from self._close("incomplete" if is_cut else "completed")
        self.response.cache_explanation = self._generation.explanation(0, finished)
        self.response.usage = usage(self._generation.streams[0].n_prompt, finished, n_reasoning=self._n_reasoning)
        if is_whole:
            yield from self._end("completed")
        else:
            self.response.incomplete_details = schemas.IncompleteDetails("max_output_tokens")
            yield from self._end("incomplete")

    def _end(self, status: str) -> list[PendingEvent]:
        self.response.status = status
        if status == "completed":
            self.response.completed_at = int(time.time())
        self._on_end(self)
        return [self._response_event(status)]

    @property
    def _opened(self) -> _OpenItem:
        assert self._open is not None, "an item was turned to"
        return self._open

    def _event(self, kind: str, fillings: Sequence[Sequence[bytes]] = (), **fields: object) -> PendingEvent:
        self._n_events += 1
        return PendingEvent({"type": f"response.{kind}", "sequence_number": self._n_events - 1, **fields}, fillings)

    def _response_event(self, kind: str, **more: object) -> PendingEvent:
        # Copied, because events are encoded later.
        return self._event(kind, [list_of_pieces(self.output)], response=copy(self.response), **more)

    def _in_item(self, kind: str, fillings: Sequence[Sequence[bytes]] = (), **more: object) -> PendingEvent:
        return self._event(kind, fillings, item_id=self._opened.item.id, output_index=self._opened.index, **more)

    def _in_part(self, kind: str, fillings: Sequence[Sequence[bytes]] = (), **more: object) -> PendingEvent:
        return self._in_item(kind, fillings, content_index=0, **more)


def _frames(made: Sequence[PendingEvent]) -> list[bytes]:
    return [piece for pending in made for piece in events.frame(pending)]


def _text_part(text: str, logprobs: list[msgspec.Raw]) -> ContentPart:
    return ContentPart(type="output_text", text=text, annotations=[], logprobs=logprobs)


def usage(n_prompt: int, finished: Finished, *, n_reasoning: int = 0) -> schemas.Usage:
    """Returns the token usage of a branch."""
    n_computed, n_predicted = min(finished.usage.n_computed, n_prompt), finished.usage.n_predicted
    return schemas.Usage(
        input_tokens=n_prompt,
        input_tokens_details=schemas.InputTokensDetails(cached_tokens=n_prompt - n_computed, cache_write_tokens=n_computed),
        output_tokens=n_predicted,
        output_tokens_details=schemas.OutputTokensDetails(reasoning_tokens=n_reasoning),
        total_tokens=n_prompt + n_predicted,
    )
