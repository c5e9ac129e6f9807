"""Stream of the answers to a chat."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, Self, Unpack

import msgspec

from weft._native import Stream
from weft.chat.answer.branches import BranchParsers
from weft.chat.answer.parsed_message import ParsedMessage
from weft.chat.answer.parts import AnswerForm, CallArguments, CallStart, Content, Part, Reasoning
from weft.chat.branch_texts import BranchTexts
from weft.chat.completion import AssistantMessage, ChatChoice, ChatCompletion, ChoiceFinished
from weft.completion import MAX_BYTES, event_bytes
from weft.errors import AnswerTooLargeError
from weft.events import Event, Finished, Logprobs, Progress, PromptLogprobs, Token
from weft.fields.meta import described
from weft.request.sampling_options import SamplingOptions


@described
class ContentDelta(msgspec.Struct, frozen=True):
    """A piece of an answer's text, for the user."""

    index: Annotated[int, "index of the choice"]
    text: Annotated[str, "the next piece of the text"]


@described
class ReasoningDelta(msgspec.Struct, frozen=True):
    """Text of the model's reasoning."""

    index: Annotated[int, "index of the choice"]
    text: Annotated[str, "the next piece of the text"]


@described
class ToolCallStart(msgspec.Struct, frozen=True):
    """Beginning of a tool call."""

    index: Annotated[int, "index of the choice"]
    call: Annotated[int, "index of the call in the choice, from 0"]
    id: Annotated[str, "unique id of the call; the message with its result has it as `tool_call_id`"]
    name: Annotated[str, "name of the tool"]


@described
class ToolCallDelta(msgspec.Struct, frozen=True):
    """Piece of a tool call's arguments. All pieces together are the JSON of one object."""

    index: Annotated[int, "index of the choice"]
    call: Annotated[int, "index of the call in the choice"]
    arguments: Annotated[str, "the next piece of the arguments"]


ChatDelta = ContentDelta | ReasoningDelta | ToolCallStart | ToolCallDelta | ChoiceFinished | Progress | PromptLogprobs
"""An event of a chat's stream."""


class _Choice:
    """A choice so far."""

    def __init__(self) -> None:
        self.message = ParsedMessage()
        self.token_ids: list[int] = []
        self.logprobs: list[Logprobs] = []
        self.finished: ChoiceFinished | None = None

    def collected(self) -> ChatChoice:
        """Returns the finished choice."""
        message = AssistantMessage(
            content=self.message.content,
            reasoning_content=self.message.reasoning,
            tool_calls=tuple(self.message.calls),
        )
        return ChatChoice(
            **msgspec.structs.asdict(self.finished),  # type: ignore[arg-type]
            message=message,
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
        )


class ChatStream:
    """Stream of the answers to a chat, as typed deltas of content, reasoning and tool calls.

        stream = await engine.stream_chat(messages, n=2)
        async for delta in stream:
            match delta:
                case weft.ContentDelta(index, text): ...
                case weft.ToolCallStart(index, call, call_id, name): ...
        completion = await stream.collect()

    The stream keeps what it has read, so `collect` returns the complete messages at any time. One task reads a stream. A consumer
    that stops reading frees the slots: by dropping the stream, by `close()` or `aclose()`, or by cancelling the task.
    """

    def __init__(self, stream: Stream, n: int, form: AnswerForm, detokenize: Callable[[Sequence[int]], str]) -> None:
        """Creates a stream of chat deltas; `Engine.stream_chat` is its public constructor.

        Args:
            stream: The stream of the chat's request.
            n: Number of its choices.
            form: Format of the answers.
            detokenize: Returns the text of tokens.
        """
        self._stream = stream
        self._detokenize = detokenize
        self._texts = BranchTexts(n)
        # Neither refers to this object: a reference cycle would delay cancellation when the stream is dropped.
        self._parsers = BranchParsers(form, self._texts.before)
        self._choices = {index: _Choice() for index in range(n)}
        self._prompt_logprobs: list[Logprobs | None] = []
        self._n_bytes = 0
        self._events: list[Event] = []
        """Events that were read, and that await the registration of a fork."""
        self._deltas: deque[ChatDelta] = deque()
        """Deltas of a step that iteration has not yet returned."""

    @property
    def seed(self) -> int:
        """Seed of choice 0; choice `i` uses `seed + i` (modulo 2³²)."""
        return self._stream.seed

    @property
    def n_prompt(self) -> int:
        """Prompt length in tokens."""
        return self._stream.n_prompt

    @property
    def request_id(self) -> int:
        """Number of the request; equal to `Slot.request_id`."""
        return self._stream.request_id

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChatDelta:
        """Returns the next delta of any choice.

        Raises:
            StopAsyncIteration: Every choice has finished, or the stream was closed.
            WeftError: Any error of `Stream.next_batch`.
        """
        if not self._deltas:
            self._deltas.extend(await self.next_batch())
        if not self._deltas:
            raise StopAsyncIteration
        return self._deltas.popleft()

    async def next_batch(self) -> list[ChatDelta]:
        """Returns the deltas of the next step in order: at least one, or an empty list at the end.

        This is faster than single deltas: the task is woken once per step of the engine, whatever the number of choices.

        Raises:
            WeftError: Any error of `Stream.next_batch`.
        """
        if self._deltas:
            deltas, self._deltas = list(self._deltas), deque()
            return deltas
        while True:
            if not self._events:
                self._events = await self._stream.next_batch()
            if not self._events:
                return []
            await self._texts.wait_for_forks(self._events)
            events, self._events = self._events, []
            if deltas := [delta for event in events for delta in self._read(event)]:
                return deltas

    def cancel(self, index: int) -> None:
        """Cancels one choice: frees its slot before the next step and ends it with "cancelled". Others continue.

        Raises:
            InvalidRequestError: `index` is not a number of a choice.
        """
        self._stream.cancel(index)

    async def fork(
        self,
        index: int,
        *,
        n: int = 1,
        at: int | None = None,
        unit: Literal["token", "byte"] = "token",
        append: str | Sequence[int] | None = None,
        **options: Unpack[SamplingOptions],
    ) -> list[int]:
        """Forks a choice: adds `n` choices that continue its text up to a position, and an appended text.

        The deltas of a fork are those of its own text; a tool call that contains the position begins again. Cancelling the call
        does not remove the forks.

        Args:
            index: Index of the choice; it may have finished.
            n: Number of forks.
            at: Position in tokens or bytes of the choice's generated text; None is its end.
            unit: Unit of `at`.
            append: Text or tokens between that position and the forks' text.
            **options: Options of the forks; the defaults are the choice's.

        Returns:
            Indices of the forks in this stream.

        Raises:
            WeftError: Any error of `Stream.fork`.
        """
        arguments: dict[str, Any] = {"n": n, "at": at, "unit": unit, "append": append, **options}
        appended = append if isinstance(append, str) else self._detokenize(append) if append else ""
        return await asyncio.shield(asyncio.create_task(self._fork(index, appended, arguments)))

    async def _fork(self, index: int, appended: str, arguments: dict[str, Any]) -> list[int]:
        with self._texts.registering_forks():
            made: list[int] = await self._stream.fork(index, **arguments)
            self._texts.add_forks(self._stream, made, appended)
            self._choices.update((fork, _Choice()) for fork in made)
            return made

    async def collect(self, *, max_bytes: int = MAX_BYTES) -> ChatCompletion:
        """Reads the rest of the stream and returns the complete answers, including what was read before.

        Args:
            max_bytes: Maximum size of the answers in memory.

        Raises:
            AnswerTooLargeError: The answers exceed `max_bytes`; the stream is closed.
            WeftError: Any error of `next_batch`.
        """
        try:
            while self._n_bytes <= max_bytes and await self.next_batch():
                pass
            if self._n_bytes > max_bytes:
                raise AnswerTooLargeError(max_bytes)
        finally:
            self.close()
        finished = [choice for _, choice in sorted(self._choices.items()) if choice.finished is not None]
        return ChatCompletion(
            choices=tuple(choice.collected() for choice in finished),
            seed=self.seed,
            n_prompt=self.n_prompt,
            prompt_logprobs=tuple(self._prompt_logprobs),
        )

    def close(self) -> None:
        """Cancels all choices and ends the stream. Idempotent."""
        self._stream.close()

    async def aclose(self) -> None:
        """Does the same as `close`, for `contextlib.aclosing`."""
        self.close()

    def _read(self, event: Event) -> Iterator[ChatDelta]:
        """Records an event and yields its deltas."""
        self._n_bytes += event_bytes(event)
        if isinstance(event, Progress | PromptLogprobs):
            if isinstance(event, PromptLogprobs):
                self._prompt_logprobs += event.logprobs
            yield event
            return
        self._texts.add(event)
        choice = self._choices.setdefault(event.index, _Choice())
        if isinstance(event, Token):
            choice.token_ids.append(event.token)
            if event.logprobs is not None:
                choice.logprobs.append(event.logprobs)
        for part in self._parsers.read(event):
            choice.message.add(part)
            yield _DELTAS[type(part)](event.index, *msgspec.structs.astuple(part))
        if isinstance(event, Finished):
            fields: dict[str, Any] = {name: getattr(event, name) for name in ChoiceFinished.__struct_fields__}
            choice.finished = ChoiceFinished(**fields | {"finish_reason": self._parsers.finish_reason(event)})
            yield choice.finished


_DELTAS: dict[type[Part], Callable[..., ChatDelta]] = {
    Content: ContentDelta,
    Reasoning: ReasoningDelta,
    CallStart: ToolCallStart,
    CallArguments: ToolCallDelta,
}
"""Deltas by kind of part. Each has the part's fields after the index of the choice."""
