"""Conversion of engine events to Ollama's responses. No I/O here."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

import msgspec

from weft import Event, Finished, MixedPrompt, Token
from weft._native import TokenIds
from weft.chat.answer.parts import CallArguments, CallStart, Content, Part, Reasoning
from weft.server.errors import ErrorObject, describe, errors_with, message_with_param
from weft.server.inference.chat import drop_stop_string
from weft.server.inference.generation import Generation, end_reason, stop_string, token_logprobs
from weft.server.memory_budget import TOKEN_BYTES
from weft.server.ollama.schemas import AssistantMessage, Call, CallFunction, ChatAnswer, GenerateAnswer, OllamaError
from weft.server.request_fields.chat import ChatFields
from weft.server.response_fields.probabilities import TokenProbability, token_probability
from weft.server.service import Service
from weft.server.streaming import ndjson
from weft.server.streaming.encoder import Encoder
from weft.server.streaming.json_chunks import GAP, filled, json_list

DONE_REASONS = {"end": "stop", "stop": "stop", "length": "length", "context_full": "length", "cancelled": "stop"}

NS_PER_MS = 1_000_000

_encode = msgspec.json.Encoder().encode


def now() -> str:
    """Returns the current time in Ollama's format."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class RequestTimer:
    """Durations of a request. Created when the engine has received it.

    Args:
        at_ns: Arrival time, on the clock of `time.monotonic_ns`.
    """

    def __init__(self, at_ns: int) -> None:
        self._at = at_ns
        self.load_ns = time.monotonic_ns() - at_ns
        """Time from arrival until the engine received the request, in nanoseconds."""

    @property
    def total_ns(self) -> int:
        """Time since arrival, in nanoseconds."""
        return time.monotonic_ns() - self._at


class Delta(msgspec.Struct):
    """Content of one line."""

    content: str = ""
    reasoning: str = ""
    calls: Sequence[Call] = ()
    logprobs: Sequence[TokenProbability] = ()


EMPTY = Delta()

Answer = Callable[[str, Delta, Mapping[str, Any]], GenerateAnswer | ChatAnswer]
"""Makes a line or a complete response of one route."""


def _common(model: str, delta: Delta, ending: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": model,
        "created_at": now(),
        "done": bool(ending),
        "logprobs": list(delta.logprobs) or msgspec.UNSET,
        **ending,
    }


def generate_answer(model: str, delta: Delta, ending: Mapping[str, Any]) -> GenerateAnswer:
    """Returns a line or the complete response of `/api/generate`; `ending` has the fields of the final one."""
    return GenerateAnswer(response=delta.content, thinking=delta.reasoning or msgspec.UNSET, **_common(model, delta, ending))


def chat_answer(model: str, delta: Delta, ending: Mapping[str, Any]) -> ChatAnswer:
    """Returns a line or the complete response of `/api/chat`; `ending` has the fields of the final one."""
    message = AssistantMessage("assistant", delta.content, delta.reasoning or msgspec.UNSET, list(delta.calls) or msgspec.UNSET)
    return ChatAnswer(message=message, **_common(model, delta, ending))


class AnswerEncoder(Encoder):
    """Encodes an answer: a line for each token that adds content, and one with `"done": true` at the end; or one object."""

    headers = ndjson.HEADERS
    ping = None

    def __init__(
        self,
        data: ChatFields,
        generation: Generation,
        service: Service,
        answer: Answer,
        timer: RequestTimer,
        *,
        includes_context: bool = False,
    ) -> None:
        """Prepares to encode an answer.

        Args:
            data: The chat.
            generation: The completion.
            service: The service.
            answer: Makes the lines of the route.
            timer: Durations of the request.
            includes_context: Whether the answer includes the tokens of the prompt and the completion.
        """
        self._answer = partial(answer, service.model_name)
        self._generation = generation
        self._timer = timer
        self._with_top = bool(data.top_logprobs)
        prompt = generation.requests[0].prompt
        # A prompt with images is not a list of tokens.
        is_of_tokens = includes_context and not isinstance(prompt, MixedPrompt)
        self._context = list(cast("Sequence[int]", prompt)) if is_of_tokens else None
        """Tokens of the prompt and the completion, if the response includes them."""
        self._n_prompt = len(self._context or ())
        self._service = service
        self._call: CallStart | None = None
        """The open tool call; `_arguments` are its arguments so far."""
        self._arguments: list[str] = []
        self._whole: list[Delta] = []
        """Deltas of a complete response, without logprobs."""
        self._logprobs: list[bytes] = []
        """Encoded incrementally, because encoding a million entries at the end would block the event loop."""
        self._ended: dict[str, Any] = {}

    def frames(self, prompt: int, event: Event) -> list[bytes]:  # noqa: ARG002 (there is one)
        """Returns the lines of the next event."""
        if not isinstance(event, Token | Finished):
            return []
        delta = self._read(event)
        answers = [] if delta == EMPTY else [self._answer(delta, {})]
        if isinstance(event, Finished):
            answers.append(self._answer(EMPTY, self._ending(event)))
        return [ndjson.line(answer) for answer in answers]

    def failure(self, error: Exception) -> bytes:
        """Returns the last line of a failed stream."""
        return ndjson.line(shape(describe(error)))

    def add(self, prompt: int, event: Event) -> int:  # noqa: ARG002 (there is one)
        """Adds the next event. Returns the number of bytes by which memory use grew."""
        if not isinstance(event, Token | Finished):
            return 0
        delta = self._read(event)
        logprobs, delta.logprobs = [bytes(cast("msgspec.Raw", one)) for one in delta.logprobs], ()
        self._logprobs += logprobs
        self._whole.append(delta)
        if isinstance(event, Finished):
            self._ended = self._ending(event)
        return TOKEN_BYTES + len(event.text) + sum(map(len, logprobs))

    def body(self) -> list[bytes]:
        """Returns the JSON in chunks, once the branch has finished."""
        whole = Delta(
            "".join([delta.content for delta in self._whole]),
            "".join([delta.reasoning for delta in self._whole]),
            [call for delta in self._whole for call in delta.calls],
            [cast("TokenProbability", GAP)] if self._logprobs else [],
        )
        # The gap is the list's only entry.
        return filled(_encode(self._answer(whole, self._ended)), json_list(self._logprobs)[1:-1])

    def _read(self, event: Token | Finished) -> Delta:
        """Returns the content that an event adds."""
        delta = Delta()
        for part in self._generation.parsers.read(event):
            self._take(part, delta)
        if isinstance(event, Token):
            if (logprobs := token_logprobs(event)) is not None:
                delta.logprobs = [token_probability(logprobs, with_top=self._with_top)]
            if self._context is not None:
                self._context.append(event.token)
        else:
            is_cut = self._generation.parsers.is_cut(event.index)
            self._end_call(delta, is_cut=is_cut and end_reason(event) != "end", is_truncated=event.finish_reason != "stop")
        return delta

    def _take(self, part: Part, delta: Delta) -> None:
        if isinstance(part, CallArguments):
            self._arguments.append(part.text)
            return
        self._end_call(delta)
        match part:
            case CallStart():
                self._call = part
            case Content():
                delta.content += part.text
            case Reasoning():
                delta.reasoning += part.text

    def _end_call(self, delta: Delta, *, is_cut: bool = False, is_truncated: bool = False) -> None:
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
        delta.calls = [*delta.calls, Call(call.id, CallFunction(call.call, call.name, arguments))]

    def _ending(self, finished: Finished) -> dict[str, Any]:
        usage = finished.usage
        total_ns = self._timer.total_ns
        prompt_ns, predicted_ns = round(usage.prompt_ms * NS_PER_MS), round(usage.predicted_ms * NS_PER_MS)
        ending: dict[str, Any] = {
            "done_reason": DONE_REASONS[end_reason(finished)],
            "total_duration": total_ns,
            # The engine may compute before the event loop runs again.
            "load_duration": max(min(self._timer.load_ns, total_ns - prompt_ns - predicted_ns), 0),
            "prompt_eval_count": usage.n_prompt,
            "prompt_eval_duration": prompt_ns,
            "eval_count": usage.n_predicted,
            "eval_duration": predicted_ns,
            "cache_explanation": self._generation.explanation(0, finished),
        }
        if self._context is not None:
            if (stop := stop_string(finished)) is not None:
                drop_stop_string(self._service, self._context, self._n_prompt, stop)
            ending["context"] = msgspec.Raw(TokenIds(self._context).json())
        return ending


ERRORS = errors_with(OllamaError)
"""Errors that any route may return, for the OpenAPI document."""


def shape(described: ErrorObject) -> Mapping[str, Any]:
    """Returns the fields of an error body."""
    return {"error": message_with_param(described)}
