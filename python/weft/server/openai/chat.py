"""OpenAI's chats: a body becomes a request, events become chunks and messages. No I/O here."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from weft import Finished, InvalidRequest, Progress, PromptLogprobs, Token
from weft.server import request_fields
from weft.server.openai.answer import FINISH_REASONS, Answered, wants_usage
from weft.server.openai.chat_schemas import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChunkChoice,
    CreateChatCompletion,
    Delta,
    Message,
)
from weft.server.response_fields import CompletionResult, TokenProbability, timings
from weft.server.run import sse
from weft.server.run.collected import TOKEN_BYTES
from weft.server.run.generation import Event, Generation, drawn
from weft.server.run.pieces import GAP, filled, json_list
from weft.server.run.service import Service

__all__ = ["Stream", "Whole", "check"]

MAX_TOP_LOGPROBS = 20
"""As many likely tokens as OpenAI reports."""

_NEUTRAL: dict[str, Callable[[Any], bool]] = {
    "audio": lambda value: not value,
    "function_call": lambda value: value in ("none", "auto"),
    "functions": lambda value: not value,
    "modalities": lambda value: value in ([], ["text"]),
    "prediction": lambda value: not value,
    # Without tools there is nothing to choose; "required" cannot be fulfilled.
    "tool_choice": lambda value: value in ("none", "auto"),
    "web_search_options": lambda value: value is None,
}


def check(data: CreateChatCompletion) -> None:
    """Refuses what is not there, before the template is rendered.

    Raises:
        InvalidRequest: a field asks for it, or contradicts another.
    """
    request_fields.refuse_unsupported(data, _NEUTRAL)
    if data.top_logprobs is None:
        return
    if not 0 <= data.top_logprobs <= MAX_TOP_LOGPROBS:
        raise InvalidRequest("top_logprobs", f"top_logprobs is {data.top_logprobs}; it must be 0 to {MAX_TOP_LOGPROBS}")
    if data.top_logprobs and not data.logprobs:
        raise InvalidRequest("top_logprobs", "top_logprobs needs logprobs to be true")


class _Form:
    """What a stream and a whole answer have in common."""

    def __init__(self, data: CreateChatCompletion, generation: Generation, service: Service) -> None:
        # The drawn token alone, unless likely ones were asked for too, by either name.
        with_top = bool(data.top_logprobs if data.logprobs else data.n_probs)
        self._about = Answered("chatcmpl", data, generation, service, with_top=with_top)


class Stream(_Form):
    """A chunk with the role before a branch's first text, one per token, one at its end, and `[DONE]` at the very end.

    Text that was held back until a branch's end, and that no token shows, has a chunk of its own before it.
    """

    def __init__(self, data: CreateChatCompletion, generation: Generation, service: Service) -> None:
        super().__init__(data, generation, service)
        self._include_usage = wants_usage(data.stream_options)
        self._begun: set[int] = set()

    def frames(self, prompt: int, events: Sequence[Event]) -> list[bytes]:
        """The frames of events of one prompt, in order."""
        return [sse.frame(chunk) for event in events for chunk in self._chunks(prompt, event)]

    def _chunks(self, prompt: int, event: Event) -> list[ChatChunk]:
        match event:
            case Progress():
                return self._progress(prompt, event)
            case PromptLogprobs():
                return []
            case Finished():
                return [*self._opening(prompt, event), *self._rest(prompt, event), self._ending(prompt, event)]
            case _:
                return [*self._opening(prompt, event), *self._token(prompt, event)]

    def _progress(self, prompt: int, event: Progress) -> list[ChatChunk]:
        progress = self._about.progress(prompt, event)
        if progress is None:
            return []
        chunk = self._role(self._about.first_index(prompt))
        chunk.prompt_progress = progress
        return [chunk]

    def _opening(self, prompt: int, event: Token | Finished) -> list[ChatChunk]:
        index = self._about.index(prompt, event)
        if index in self._begun:
            return []
        self._begun.add(index)
        return [self._role(index)]

    def _role(self, index: int) -> ChatChunk:
        return self._chunk([ChunkChoice(index, Delta(role="assistant", content=None), None, None)])

    def _token(self, prompt: int, token: Token) -> list[ChatChunk]:
        told = drawn(token)
        if not token.text and told is None:
            return []
        logprobs = None if told is None else ChatLogprobs([self._about.token(told)])
        chunk = self._chunk([ChunkChoice(self._about.index(prompt, token), Delta(content=token.text), logprobs, None)])
        chunk.timings = self._about.timings(prompt, token.index, token.n_predicted)
        return [chunk]

    def _rest(self, prompt: int, finished: Finished) -> list[ChatChunk]:
        if not finished.text:
            return []
        chunk = self._chunk([ChunkChoice(self._about.index(prompt, finished), Delta(content=finished.text), None, None)])
        chunk.timings = self._about.timings(prompt, finished.index, finished.usage.n_predicted)
        return [chunk]

    def _ending(self, prompt: int, finished: Finished) -> ChatChunk:
        self._about.finish(prompt, finished)
        index = self._about.index(prompt, finished)
        chunk = self._chunk([ChunkChoice(index, Delta(), None, FINISH_REASONS[finished.reason])])
        chunk.timings = timings([finished.usage])
        chunk.verbose = self._about.verbose(prompt, finished)
        chunk.cache_explanation = self._about.explanation(prompt, finished)
        return chunk

    def _chunk(self, choices: list[ChunkChoice]) -> ChatChunk:
        about = self._about
        return ChatChunk(
            id=about.id,
            object="chat.completion.chunk",
            created=about.created,
            model=about.model,
            system_fingerprint=about.build,
            choices=choices,
            usage=None if self._include_usage else msgspec.UNSET,
        )

    def end(self) -> bytes:
        """The usage, where it was asked for, and `[DONE]`."""
        if not self._include_usage:
            return sse.DONE
        last = self._chunk([])
        last.usage = self._about.usage()
        last.timings = timings(self._about.usages)
        return sse.frame(last) + sse.DONE


class Whole(_Form):
    """The whole answer."""

    def __init__(self, data: CreateChatCompletion, generation: Generation, service: Service) -> None:
        super().__init__(data, generation, service)
        self._texts: dict[int, list[str]] = {}
        self._tokens: dict[int, list[int]] = {}
        self._told: dict[int, list[bytes]] = {}
        """What was drawn in each branch, as JSON: to write all of it at the end would hold everybody up."""
        self._told_first: list[bytes] = []
        """Of the first branch, as llama-server's own answer tells it."""
        self._choices: list[ChatChoice] = []
        self._gaps: dict[int, list[bytes]] = {}
        """What the choices leave a gap for."""
        self._verbose: CompletionResult | msgspec.UnsetType = msgspec.UNSET

    def add(self, prompt: int, events: Sequence[Event]) -> int:
        """Takes events of one prompt, in order; returns how many bytes more are held by then."""
        return sum(self._add(prompt, event) for event in events)

    def _add(self, prompt: int, event: Event) -> int:
        match event:
            case Progress() | PromptLogprobs():
                return 0
            case Finished():
                return self._finish(prompt, event)
            case _:
                return self._take(self._about.index(prompt, event), event)

    def _take(self, index: int, token: Token) -> int:
        self._texts.setdefault(index, []).append(token.text)
        self._tokens.setdefault(index, []).append(token.token)
        n_bytes = TOKEN_BYTES + len(token.text)
        if (logprobs := drawn(token)) is not None:
            told = msgspec.json.encode(self._about.token(logprobs))
            self._told.setdefault(index, []).append(told)
            n_bytes += len(told)
            if index == 0 and (verbose := self._about.verbose_probability(logprobs)) is not None:
                self._told_first.append(verbose)
                n_bytes += len(verbose)
        return n_bytes

    def _finish(self, prompt: int, finished: Finished) -> int:
        self._about.finish(prompt, finished)
        index = self._about.index(prompt, finished)
        text, tokens = "".join([*self._texts.pop(index, []), finished.text]), self._tokens.pop(index, [])
        message = Message("assistant", text)
        logprobs = None
        if told := self._told.pop(index, []):
            logprobs = ChatLogprobs(cast("list[TokenProbability]", GAP))
            self._gaps[index] = json_list(told)
        self._choices.append(ChatChoice(index, message, logprobs, FINISH_REASONS[finished.reason]))
        if index == 0:
            has_probabilities = bool(self._told_first)
            self._verbose = self._about.verbose(
                prompt, finished, content=text, tokens=tokens, has_probabilities=has_probabilities
            )
        return len(finished.text)

    def body(self) -> list[bytes]:
        """The JSON in pieces, once every branch has finished."""
        about = self._about
        frame = msgspec.json.encode(
            ChatCompletion(
                id=about.id,
                object="chat.completion",
                created=about.created,
                model=about.model,
                system_fingerprint=about.build,
                choices=sorted(self._choices, key=lambda choice: choice.index),
                usage=about.usage(),
                timings=timings(about.usages),
                verbose=self._verbose,
                cache_explanation=about.explanations(),
            )
        )
        return filled(frame, *(self._gaps[index] for index in sorted(self._gaps)), json_list(self._told_first))
