"""OpenAI's chats: a body becomes a request, events become chunks and messages. No I/O here."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from weft import Finished, InvalidRequest, Token
from weft import Logprobs as DrawnLogprobs
from weft.server import body, sse
from weft.server.chat.format import ChatPrompt
from weft.server.generation import Generation
from weft.server.openai.answer import FINISH_REASONS, About
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
from weft.server.report import timings, token_logprobs
from weft.server.submission import Submission
from weft.settings import Settings

__all__ = ["Stream", "Whole", "check", "submission"]

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
    body.refuse_unsupported(data, _NEUTRAL)
    if data.top_logprobs is None:
        return
    if not 0 <= data.top_logprobs <= MAX_TOP_LOGPROBS:
        raise InvalidRequest("top_logprobs", f"top_logprobs is {data.top_logprobs}; it must be 0 to {MAX_TOP_LOGPROBS}")
    if data.top_logprobs and not data.logprobs:
        raise InvalidRequest("top_logprobs", "top_logprobs needs logprobs to be true")


def submission(data: CreateChatCompletion, prompt: ChatPrompt, settings: Settings) -> Submission:
    """What a body asks for, its messages being this prompt."""
    # The engine tells of a drawn token only beside the likely ones.
    n_probs = ("top_logprobs", max(data.top_logprobs or 0, 1)) if data.logprobs else ("n_probs", data.n_probs)
    asked = body.submission(msgspec.structs.replace(data, prompt=prompt.tokens), settings, n_probs=n_probs)
    template = msgspec.structs.replace(asked.template, snapshots_at=prompt.turn_ends)
    return msgspec.structs.replace(asked, template=template)


class _Choices:
    """How the log-probabilities of a chat are shown."""

    def __init__(self, data: CreateChatCompletion) -> None:
        # The drawn token alone, unless likely ones were asked for too, by either name.
        self._with_top = bool(data.top_logprobs if data.logprobs else data.n_probs)

    def logprobs(self, drawn: Sequence[DrawnLogprobs]) -> ChatLogprobs | None:
        return ChatLogprobs([token_logprobs(one, with_top=self._with_top) for one in drawn]) if drawn else None


class Stream:
    """A chunk with the role before a branch's first text, one per token, one at its end, and `[DONE]` at the very end."""

    def __init__(self, data: CreateChatCompletion, generation: Generation, model: str, build: str) -> None:
        self._about = About("chatcmpl", generation, model, build)
        self._choices = _Choices(data)
        self._include_usage = data.stream_options is not None and data.stream_options.include_usage is True
        self._begun: set[int] = set()

    def frames(self, prompt: int, events: Sequence[Token | Finished]) -> bytes:
        """The frames of events of one prompt, in order."""
        return b"".join([sse.frame(chunk) for event in events for chunk in self._chunks(prompt, event)])

    def _chunks(self, prompt: int, event: Token | Finished) -> list[ChatChunk]:
        index = self._about.index(prompt, event)
        chunks = []
        if index not in self._begun:
            self._begun.add(index)
            chunks.append(self._chunk([ChunkChoice(index, Delta(role="assistant", content=None), None, None)]))
        if isinstance(event, Finished):
            self._about.finish(prompt, event)
            chunks.append(self._chunk([ChunkChoice(index, Delta(), None, FINISH_REASONS[event.reason])]))
            chunks[-1].timings = timings([event.usage])
        elif event.text or event.logprobs is not None:
            logprobs = self._choices.logprobs([] if event.logprobs is None else [event.logprobs])
            chunks.append(self._chunk([ChunkChoice(index, Delta(content=event.text), logprobs, None)]))
        return chunks

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


class Whole:
    """The whole answer."""

    def __init__(self, data: CreateChatCompletion, generation: Generation, model: str, build: str) -> None:
        self._about = About("chatcmpl", generation, model, build)
        self._choices = _Choices(data)
        self._texts: dict[int, list[str]] = {}
        self._logprobs: dict[int, list[DrawnLogprobs]] = {}
        self._finished: list[ChatChoice] = []

    def add(self, prompt: int, events: Sequence[Token | Finished]) -> None:
        """Takes events of one prompt, in order."""
        for event in events:
            index = self._about.index(prompt, event)
            if isinstance(event, Finished):
                self._about.finish(prompt, event)
                self._finished.append(self._choice(index, event))
                continue
            self._texts.setdefault(index, []).append(event.text)
            if event.logprobs is not None:
                self._logprobs.setdefault(index, []).append(event.logprobs)

    def _choice(self, index: int, finished: Finished) -> ChatChoice:
        message = Message("assistant", "".join(self._texts.pop(index, [])))
        logprobs = self._choices.logprobs(self._logprobs.pop(index, []))
        return ChatChoice(index, message, logprobs, FINISH_REASONS[finished.reason])

    def body(self) -> bytes:
        """The JSON, once every branch has finished."""
        about = self._about
        return msgspec.json.encode(
            ChatCompletion(
                id=about.id,
                object="chat.completion",
                created=about.created,
                model=about.model,
                system_fingerprint=about.build,
                choices=sorted(self._finished, key=lambda choice: choice.index),
                usage=about.usage(),
                timings=timings(about.usages),
            )
        )
