"""OpenAI's chats: conversion of events to chunks and messages. No I/O here."""

from typing import cast

import msgspec

from weft import Finished, InvalidRequestError, Token
from weft._native import CompactLogprobs
from weft.chat.answer.parsed_message import ParsedMessage
from weft.chat.answer.parts import CallArguments, CallStart, Content, Part, Reasoning
from weft.server.inference.generation import Generation
from weft.server.memory_budget import TOKEN_BYTES
from weft.server.openai import schemas
from weft.server.openai.answer import NOT_VERBOSE, ChoiceEncoder
from weft.server.request_fields import requests, unsupported
from weft.server.response_fields.probabilities import TokenProbability
from weft.server.response_fields.result import branch_score
from weft.server.service import Service
from weft.server.streaming import sse
from weft.server.streaming.json_chunks import GAP, filled, json_list


def check(data: schemas.CreateChatCompletion) -> None:
    """Refuses unsupported fields and contradictions, before the template is rendered.

    Raises:
        InvalidRequestError: A field is unsupported or contradicts another.
    """
    unsupported.refuse_unsupported(data)
    requests.check_top_logprobs(data.top_logprobs)
    if data.top_logprobs and not data.logprobs:
        raise InvalidRequestError("top_logprobs", "top_logprobs requires logprobs to be true")


class ChatEncoder(ChoiceEncoder):
    """Encodes the answers to a chat. A stream has a chunk with the role before a branch's first text."""

    names = "chatcmpl", "chat.completion.chunk", "chat.completion"

    def __init__(self, data: schemas.CreateChatCompletion, generation: Generation, service: Service) -> None:
        # Only the sampled token, unless alternatives are requested, by either name.
        with_top = bool(data.top_logprobs if data.logprobs else data.n_probs)
        super().__init__(data, generation, service, with_top=with_top)
        generation.accepts_forks = True
        self._uses_function_call = bool(data.functions)
        """True if calls use the deprecated `function_call` instead of `tool_calls`."""
        self._messages: dict[int, ParsedMessage] = {}
        self._logprobs: dict[int, list[bytes]] = {}
        """Encoded logprobs of each branch. Encoding all of them at the end would block the event loop."""
        self._choices: list[schemas.ChatChoice] = []
        self._gaps: dict[int, list[bytes]] = {}
        """Contents of the choices' gaps."""
        self._verbose = NOT_VERBOSE
        """Result of the first branch."""

    def _opening(self, prompt: int, index: int) -> list[bytes]:  # noqa: ARG002 (there is one)
        return [sse.frame(self._chunk(self._empty(index)))]

    def _empty(self, index: int, finished: Finished | None = None) -> schemas.ChunkChoice:
        if finished is None:
            return schemas.ChunkChoice(index, schemas.Delta(role="assistant", content=None), None, None)
        return schemas.ChunkChoice(index, schemas.Delta(), None, self._finish_reason(finished), branch_score(finished))

    def _pieces(
        self,
        prompt: int,  # noqa: ARG002 (there is one)
        index: int,
        event: Token | Finished,
        logprobs: CompactLogprobs | None,
    ) -> list[schemas.ChunkChoice]:
        """Returns a choice for each part that an event adds, the first with the token's logprobs."""
        deltas = [self._delta(part) for part in self._generation.parsers.read(event)]
        if logprobs is None:
            return [schemas.ChunkChoice(index, delta, None, None) for delta in deltas]
        # Without a part, the token's text is withheld, or it is a control token.
        first, *rest = deltas or [schemas.Delta(content="")]
        with_logprobs = schemas.ChunkChoice(index, first, schemas.ChatLogprobs([self._token(index, logprobs)]), None)
        return [with_logprobs, *(schemas.ChunkChoice(index, delta, None, None) for delta in rest)]

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

    def _take(self, prompt: int, index: int, token: Token, logprobs: CompactLogprobs | None) -> int:
        self._add_parts(index, token)
        n_bytes = TOKEN_BYTES + len(token.text)
        if index == 0:
            n_bytes += self._add_verbose(prompt, token)
        if logprobs is not None:
            encoded = msgspec.json.encode(self._token(index, logprobs))
            self._logprobs.setdefault(index, []).append(encoded)
            n_bytes += len(encoded)
        return n_bytes

    def _add_parts(self, index: int, event: Token | Finished) -> ParsedMessage:
        message = self._messages.setdefault(index, ParsedMessage())
        for part in self._generation.parsers.read(event):
            message.add(part)
        return message

    def _finish(self, prompt: int, index: int, finished: Finished) -> int:
        message = self._message(self._add_parts(index, finished))
        del self._messages[index]
        logprobs = None
        if encoded := self._logprobs.pop(index, []):
            logprobs = schemas.ChatLogprobs(cast("list[TokenProbability]", GAP))
            self._gaps[index] = json_list(encoded)
        reason = self._finish_reason(finished)
        self._choices.append(schemas.ChatChoice(index, message, logprobs, reason, branch_score(finished)))
        if index == 0:
            self._verbose = self._verbose_of(prompt, finished)
        return len(finished.text)

    def _message(self, written: ParsedMessage) -> schemas.Message:
        message = schemas.Message("assistant", written.content or (None if written.calls else ""))
        if written.reasoning:
            message.reasoning_content = written.reasoning
        functions = [schemas.CalledFunction(name=call.name, arguments=call.arguments) for call in written.calls]
        if functions and self._uses_function_call:
            message.function_call = functions[0]
        elif functions:
            pairs = zip(written.calls, functions, strict=True)
            message.tool_calls = [schemas.ToolCall(id=call.id, type="function", function=called) for call, called in pairs]
        return message

    def body(self) -> list[bytes]:
        """Returns the JSON in chunks, once every branch has finished."""
        choices = sorted(self._choices, key=lambda choice: choice.index)
        verbose, probabilities = self._verbose
        frame = self._whole(choices, verbose)
        return filled(frame, *(self._gaps[index] for index in sorted(self._gaps)), probabilities)

    def _finish_reason(self, finished: Finished) -> str:
        reason = self._generation.parsers.finish_reason(finished)
        return "function_call" if reason == "tool_calls" and self._uses_function_call else reason
