"""Conversion of engine events to Ollama's responses. No I/O here."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, cast

import msgspec

from weft import Finished, MixedPrompt, Token
from weft._native import TokenIds
from weft.chat.answer.parts import CallArguments, CallStart, Content, Part, Reasoning
from weft.server.memory_budget import TOKEN_BYTES
from weft.server.ollama.schemas import AssistantMessage, Call, CallFunction, ChatAnswer, GenerateAnswer
from weft.server.request_fields.chat import ChatFields
from weft.server.response_fields import TokenProbability, token_probability
from weft.server.run.chat import drop_stop_string
from weft.server.run.end_reason import end_reason, stop_string
from weft.server.run.generation import Event, Generation, token_logprobs
from weft.server.run.service import Service
from weft.server.streaming.json_chunks import GAP, filled, json_list

__all__ = [
    "EMPTY",
    "HEADERS",
    "ChatResponseFormat",
    "ChunkEncoder",
    "GenerateResponseFormat",
    "RequestTimer",
    "ResponseBuilder",
    "ResponseFormat",
    "now",
]

HEADERS = {
    "content-type": "application/x-ndjson",
    "cache-control": "no-cache",
    # nginx buffers responses otherwise.
    "x-accel-buffering": "no",
}

DONE_REASONS = {"end": "stop", "stop": "stop", "length": "length", "context_full": "length", "cancelled": "stop"}

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000

_encode = msgspec.json.Encoder().encode


def now() -> str:
    """Returns the current time in Ollama's format."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class RequestTimer:
    """Durations of a request.

    Args:
        at_ns: Arrival time, on the clock of `time.monotonic_ns`.
    """

    def __init__(self, at_ns: int) -> None:
        self._at = at_ns
        self._had_at = time.monotonic_ns()

    def mark_submitted(self) -> None:
        """Records that the engine received the request."""
        self._had_at = time.monotonic_ns()

    @property
    def load_ns(self) -> int:
        """Time from arrival until the engine received the request, in nanoseconds."""
        return self._had_at - self._at

    @property
    def total_ns(self) -> int:
        """Time since arrival, in nanoseconds."""
        return time.monotonic_ns() - self._at


class _Delta(msgspec.Struct):
    """Content of one line."""

    content: str = ""
    thought: str = ""
    calls: Sequence[Call] = ()
    logprobs: Sequence[TokenProbability] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.content or self.thought or self.calls or self.logprobs)


EMPTY = _Delta()


class ResponseFormat(Protocol):
    """Encodes responses of one route."""

    def answer(self, delta: _Delta, ending: dict[str, Any]) -> object:
        """Returns a line or the complete response; `ending` has the fields of the final one."""


class GenerateResponseFormat:
    """Responses of `/api/generate`."""

    def __init__(self, model: str) -> None:
        self._model = model

    def answer(self, delta: _Delta, ending: dict[str, Any]) -> GenerateAnswer:
        """Returns a line or the complete response."""
        return GenerateAnswer(
            model=self._model,
            created_at=now(),
            response=delta.content,
            thinking=delta.thought or msgspec.UNSET,
            done=bool(ending),
            logprobs=list(delta.logprobs) or msgspec.UNSET,
            **ending,
        )


class ChatResponseFormat:
    """Responses of `/api/chat`."""

    def __init__(self, model: str) -> None:
        self._model = model

    def answer(self, delta: _Delta, ending: dict[str, Any]) -> ChatAnswer:
        """Returns a line or the complete response."""
        return ChatAnswer(
            model=self._model,
            created_at=now(),
            message=AssistantMessage(
                "assistant", delta.content, delta.thought or msgspec.UNSET, list(delta.calls) or msgspec.UNSET
            ),
            done=bool(ending),
            logprobs=list(delta.logprobs) or msgspec.UNSET,
            **ending,
        )


class _ResponseState:
    """State shared by streamed and complete responses: the parser of the one branch."""

    def __init__(
        self,
        data: ChatFields,
        generation: Generation,
        shape: ResponseFormat,
        timer: RequestTimer,
        *,
        service: Service | None = None,
    ) -> None:
        self._shape = shape
        self._generation = generation
        self._timer = timer
        self._with_top = bool(data.top_logprobs)
        prompt = generation.requests[0].prompt
        # A prompt with images is not a list of tokens.
        self._context = None if service is None or isinstance(prompt, MixedPrompt) else list(cast("Sequence[int]", prompt))
        """Tokens of the prompt and the completion, if the response includes them."""
        self._n_prompt = len(self._context or ())
        self._service = service
        self._call: CallStart | None = None
        """The open tool call; `_arguments` are its arguments so far."""
        self._arguments: list[str] = []

    def _read(self, event: Token | Finished) -> _Delta:
        """Returns the content that an event adds."""
        delta = _Delta()
        calls: list[Call] = []
        for part in self._generation.parts(event):
            self._take(part, delta, calls)
        if isinstance(event, Token):
            if (logprobs := token_logprobs(event)) is not None:
                delta.logprobs = [token_probability(logprobs, with_top=self._with_top)]
            if self._context is not None:
                self._context.append(event.token)
        else:
            is_cut = self._generation.is_cut(event)
            self._end_call(delta, calls, is_cut=is_cut and end_reason(event) != "end", is_truncated=event.finish_reason != "stop")
        delta.calls = calls
        return delta

    def _take(self, part: Part, delta: _Delta, calls: list[Call]) -> None:
        match part:
            case CallArguments():
                self._arguments.append(part.text)
                return
            case CallStart():
                self._end_call(delta, calls)
                self._call = part
            case Content():
                self._end_call(delta, calls)
                delta.content += part.text
            case Reasoning():
                self._end_call(delta, calls)
                delta.thought += part.text

    def _end_call(self, delta: _Delta, calls: list[Call], *, is_cut: bool = False, is_truncated: bool = False) -> None:
        """Completes the open tool call.

        Ollama's calls have an object as arguments, which cannot be partial. A call interrupted by a stop string is therefore
        returned as text, and a truncated one (as by `num_predict`) is dropped.
        """
        if (call := self._call) is None:
            return
        text = "".join(self._arguments)
        self._call, self._arguments = None, []
        try:
            arguments = None if is_cut else msgspec.json.decode(text, type=dict[str, Any]) if text else {}
        except msgspec.DecodeError:
            arguments = None
        if arguments is None and is_truncated:
            return
        if arguments is None:
            delta.content += f'{{"name":{_encode(call.name).decode()},"arguments":{text}'
            return
        calls.append(Call(call.id, CallFunction(call.call, call.name, arguments)))

    def _ending(self, finished: Finished) -> dict[str, Any]:
        usage = finished.usage
        ending: dict[str, Any] = {
            "done_reason": DONE_REASONS[end_reason(finished)],
            "total_duration": self._timer.total_ns,
            "load_duration": self._timer.load_ns,
            "prompt_eval_count": usage.n_prompt,
            "prompt_eval_duration": round(usage.prompt_ms * NS_PER_MS),
            "eval_count": usage.n_predicted,
            "eval_duration": round(usage.predicted_ms * NS_PER_MS),
            "cache_explanation": self._generation.explanation(0, finished),
        }
        if self._context is not None:
            if (stop := stop_string(finished)) is not None:
                assert self._service is not None, "there is a context"
                drop_stop_string(self._service, self._context, self._n_prompt, stop)
            ending["context"] = msgspec.Raw(TokenIds(self._context).json())
        return ending


class ChunkEncoder(_ResponseState):
    """Encodes a line for each token that adds content, and one with `"done": true` at the end."""

    def frames(self, prompt: int, events: Sequence[Event]) -> list[bytes]:  # noqa: ARG002 (there is one)
        """Returns the lines of events, in order."""
        return [line for event in events if isinstance(event, Token | Finished) for line in self._lines(event)]

    def _lines(self, event: Token | Finished) -> list[bytes]:
        delta = self._read(event)
        lines = [] if delta.is_empty else [self._line(delta, {})]
        if isinstance(event, Finished):
            lines.append(self._line(EMPTY, self._ending(event)))
        return lines

    def _line(self, delta: _Delta, ending: dict[str, Any]) -> bytes:
        return _encode(self._shape.answer(delta, ending)) + b"\n"

    def end(self) -> bytes:
        """Returns nothing; the last line of the branch ends the stream."""
        return b""


class ResponseBuilder(_ResponseState):
    """Builds the complete response."""

    def __init__(
        self,
        data: ChatFields,
        generation: Generation,
        shape: ResponseFormat,
        timer: RequestTimer,
        *,
        service: Service | None = None,
    ) -> None:
        super().__init__(data, generation, shape, timer, service=service)
        self._contents: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[Call] = []
        self._logprobs: list[bytes] = []
        """Encoded incrementally, because encoding a million entries at the end would block the event loop."""
        self._ended: dict[str, Any] = {}

    def add(self, prompt: int, events: Sequence[Event]) -> int:  # noqa: ARG002 (there is one)
        """Adds events in order. Returns the number of bytes by which memory use grew."""
        return sum(self._add(event) for event in events if isinstance(event, Token | Finished))

    def _add(self, event: Token | Finished) -> int:
        delta = self._read(event)
        self._contents.append(delta.content)
        self._thoughts.append(delta.thought)
        self._calls += delta.calls
        logprobs = [bytes(cast("msgspec.Raw", one)) for one in delta.logprobs]
        self._logprobs += logprobs
        if isinstance(event, Finished):
            self._ended = self._ending(event)
        return TOKEN_BYTES + len(event.text) + sum(map(len, logprobs))

    def body(self) -> list[bytes]:
        """Returns the JSON in chunks, once the branch has finished."""
        logprobs = [cast("TokenProbability", GAP)] if self._logprobs else []
        delta = _Delta("".join(self._contents), "".join(self._thoughts), self._calls, logprobs)
        frame = _encode(self._shape.answer(delta, self._ended))
        # The gap is the list's only entry.
        return filled(frame, json_list(self._logprobs)[1:-1])
