"""OpenAI's chats: conversion of events to chunks and messages. No I/O here."""

from typing import cast

import msgspec

from weft import Event, Finished, InvalidRequestError, Progress, PromptLogprobs, Token
from weft.chat.answer.parsed_message import ParsedMessage
from weft.chat.answer.parts import CallArguments, CallStart, Content, Part, Reasoning
from weft.server.inference.generation import Generation, token_logprobs
from weft.server.memory_budget import TOKEN_BYTES
from weft.server.openai import schemas
from weft.server.openai.answer import NOT_VERBOSE, Format, ResponseContext
from weft.server.request_fields import neutral, requests
from weft.server.response_fields.probabilities import TokenProbability
from weft.server.response_fields.result import branch_score
from weft.server.service import Service
from weft.server.streaming import sse
from weft.server.streaming.json_chunks import GAP, filled, json_list
from weft.server.streaming.responses import StreamEncoder

_FORMAT = Format("chatcmpl", "chat.completion.chunk", "chat.completion")


def check(data: schemas.CreateChatCompletion) -> None:
    """Refuses unsupported fields and contradictions, before the template is rendered.

    Raises:
        InvalidRequestError: A field is unsupported or contradicts another.
    """
    neutral.refuse_unsupported(data)
    requests.check_top_logprobs(data.top_logprobs)
    if data.top_logprobs and not data.logprobs:
        raise InvalidRequestError("top_logprobs", "top_logprobs needs logprobs to be true")


class ChatEncoder(StreamEncoder):
    """Encodes the answers to a chat: in chunks, or as one object.

    A stream has a chunk with the role before a branch's first text, one per token, one at its end, and `[DONE]` last. Text that
    is withheld until a branch's end has its own chunk before the end.
    """

    def __init__(self, data: schemas.CreateChatCompletion, generation: Generation, service: Service) -> None:
        # Only the sampled token, unless alternatives are requested, by either name.
        with_top = bool(data.top_logprobs if data.logprobs else data.n_probs)
        self._context = ResponseContext(_FORMAT, data, generation, service, with_top=with_top)
        self._generation = generation
        generation.accepts_forks = True
        self._uses_function_call = bool(data.functions)
        """True if calls use the deprecated `function_call` instead of `tool_calls`."""
        self._started: set[int] = set()
        """Branches of a stream that have begun."""
        self._messages: dict[int, ParsedMessage] = {}
        self._logprobs: dict[int, list[bytes]] = {}
        """Encoded logprobs of each branch. Encoding all of them at the end would block the event loop."""
        self._choices: list[schemas.ChatChoice] = []
        self._gaps: dict[int, list[bytes]] = {}
        """Contents of the choices' gaps."""
        self._verbose = NOT_VERBOSE
        """Result of the first branch."""

    def frames(self, prompt: int, event: Event) -> list[bytes]:
        """Returns the frames of the next event."""
        return list(map(sse.frame, self._chunks(prompt, event)))

    def _chunks(self, prompt: int, event: Event) -> list[schemas.Chunk]:
        match event:
            case Progress():
                return self._context.progress(prompt, event, _role)
            case PromptLogprobs():
                return []
        index = self._context.index(prompt, event)
        chunks = [] if index in self._started else [self._context.chunk(_role(index))]
        self._started.add(index)
        chunks += self._part_chunks(prompt, index, event)
        if isinstance(event, Finished):
            choice = schemas.ChunkChoice(index, schemas.Delta(), None, self._finish_reason(event), branch_score(event))
            chunks.append(self._context.ending(prompt, event, choice))
        return chunks

    def _part_chunks(self, prompt: int, index: int, event: Token | Finished) -> list[schemas.Chunk]:
        """Returns a chunk for each part that an event adds, the first with the token's logprobs."""
        sampled = token_logprobs(event) if isinstance(event, Token) else None
        n_predicted = event.n_predicted if isinstance(event, Token) else event.usage.n_predicted
        deltas = [self._delta(part) for part in self._generation.parts(event)]
        if not deltas and sampled is not None:
            # Its text is withheld, or it is a control token.
            deltas = [schemas.Delta(content="")]
        chunks = []
        for nth, delta in enumerate(deltas):
            logprobs = None if sampled is None or nth else schemas.ChatLogprobs([self._context.token(index, sampled)])
            chunk = self._context.chunk(schemas.ChunkChoice(index, delta, logprobs, None))
            chunk.timings = self._context.timings(prompt, event.index, n_predicted)
            chunks.append(chunk)
        return chunks

    def _delta(self, part: Part) -> schemas.Delta:
        match part:
            case Content(text):
                return schemas.Delta(content=text)
            case Reasoning(text):
                return schemas.Delta(reasoning_content=text)
            case CallStart(call, call_id, name):
                function = schemas.CalledFunction(name=name, arguments="")
                tool_call = schemas.ToolCall(index=call, id=call_id, type="function", function=function)
            case CallArguments(call, text):
                function = schemas.CalledFunction(arguments=text)
                tool_call = schemas.ToolCall(index=call, function=function)
        return schemas.Delta(function_call=function) if self._uses_function_call else schemas.Delta(tool_calls=[tool_call])

    def end(self) -> bytes:
        """Returns the usage if requested, and `[DONE]`."""
        return self._context.end()

    def add(self, prompt: int, event: Event) -> int:
        """Adds the next event. Returns the number of bytes by which memory use grew."""
        match event:
            case Progress() | PromptLogprobs():
                return 0
            case Finished():
                return self._finish(prompt, event)
            case _:
                return self._take(prompt, event)

    def _take(self, prompt: int, token: Token) -> int:
        index = self._context.index(prompt, token)
        self._add_parts(index, token)
        n_bytes = TOKEN_BYTES + len(token.text)
        if index == 0:
            n_bytes += self._context.add_verbose(prompt, token)
        if (logprobs := token_logprobs(token)) is not None:
            encoded = msgspec.json.encode(self._context.token(index, logprobs))
            self._logprobs.setdefault(index, []).append(encoded)
            n_bytes += len(encoded)
        return n_bytes

    def _add_parts(self, index: int, event: Token | Finished) -> None:
        message = self._messages.setdefault(index, ParsedMessage())
        for part in self._generation.parts(event):
            message.add(part)

    def _finish(self, prompt: int, finished: Finished) -> int:
        self._context.finish(prompt, finished)
        index = self._context.index(prompt, finished)
        self._add_parts(index, finished)
        message = self._message(self._messages.pop(index))
        logprobs = None
        if encoded := self._logprobs.pop(index, []):
            logprobs = schemas.ChatLogprobs(cast("list[TokenProbability]", GAP))
            self._gaps[index] = json_list(encoded)
        self._choices.append(schemas.ChatChoice(index, message, logprobs, self._finish_reason(finished), branch_score(finished)))
        if index == 0:
            self._verbose = self._context.verbose(prompt, finished)
        return len(finished.text)

    def _message(self, written: ParsedMessage) -> schemas.Message:
        message = schemas.Message("assistant", written.content or (None if written.calls else ""))
        if written.thought:
            message.reasoning_content = written.thought
        if written.calls and self._uses_function_call:
            call = written.calls[0]
            message.function_call = schemas.CalledFunction(name=call.name, arguments=call.arguments)
        elif written.calls:
            message.tool_calls = [
                schemas.ToolCall(
                    id=call.id, type="function", function=schemas.CalledFunction(name=call.name, arguments=call.arguments)
                )
                for call in written.calls
            ]
        return message

    def body(self) -> list[bytes]:
        """Returns the JSON in chunks, once every branch has finished."""
        choices = sorted(self._choices, key=lambda choice: choice.index)
        verbose, probabilities = self._verbose
        frame = self._context.whole(choices, verbose)
        return filled(frame, *(self._gaps[index] for index in sorted(self._gaps)), probabilities)

    def _finish_reason(self, finished: Finished) -> str:
        reason = self._generation.finish_reason(finished)
        return "function_call" if reason == "tool_calls" and self._uses_function_call else reason


def _role(index: int) -> schemas.ChunkChoice:
    """Returns the beginning of a branch."""
    return schemas.ChunkChoice(index, schemas.Delta(role="assistant", content=None), None, None)
