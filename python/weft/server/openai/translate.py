"""OpenAI's dialect: a body becomes requests, events become chunks and completions. No I/O here."""

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from weft import Engine, Finished, InvalidRequest, Model, Request, Token
from weft import Logprobs as DrawnLogprobs
from weft import Usage as BranchUsage
from weft.server import body, sse
from weft.server.generation import Generation
from weft.server.openai.schemas import (
    Choice,
    CompletionChunk,
    CompletionObject,
    CreateCompletion,
    Logprobs,
    ModelCard,
    ModelList,
    ModelMeta,
    ModelName,
    PromptTokensDetails,
    Usage,
)
from weft.server.report import timings, token_logprobs
from weft.settings import Settings

__all__ = ["Stream", "Whole", "models", "template"]

FINISH_REASONS = {"end": "stop", "stop": "stop", "length": "length", "context_full": "length"}

_NEUTRAL: dict[str, Callable[[Any], bool]] = {"echo": lambda value: value is False, "suffix": lambda value: value == ""}


def template(data: CreateCompletion, settings: Settings, engine: Engine) -> Request:
    """The request that a body asks for, all but its prompt."""
    body.refuse_unsupported(data, _NEUTRAL)
    request = body.template(data, settings, engine, n_probs=body.first_given(data, "logprobs", "n_probs") or 0)
    if data.best_of is not None and data.best_of > request.n:
        raise InvalidRequest("best_of", f"best_of is {data.best_of}, more than n, which is not supported; leave it out")
    return request


class _Completion:
    """What all chunks and choices of one answer have in common."""

    def __init__(self, generation: Generation, model: str, build: str) -> None:
        self.id = f"cmpl-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.model = model
        self.build = build
        self._n = generation.requests[0].n
        self._n_prompt = [stream.n_prompt for stream in generation.streams]
        self._usages: list[list[BranchUsage]] = [[] for _ in generation.streams]

    def index(self, prompt: int, event: Token | Finished) -> int:
        """Counts the branches of all prompts."""
        return prompt * self._n + event.index

    def finish(self, prompt: int, finished: Finished) -> None:
        """Takes the end of a branch."""
        self._usages[prompt].append(finished.usage)

    @property
    def usages(self) -> list[BranchUsage]:
        """The usage of every branch that has finished."""
        return [usage for usages in self._usages for usage in usages]

    def usage(self) -> Usage:
        """The sums, once every branch has finished."""
        # What the branches of one prompt computed adds up to what was computed of it; the rest was there before.
        cached = sum(
            max(n_prompt - sum(usage.n_computed for usage in usages), 0)
            for n_prompt, usages in zip(self._n_prompt, self._usages, strict=True)
        )
        prompt_tokens = sum(self._n_prompt)
        completion_tokens = sum(usage.n_predicted for usage in self.usages)
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        )


class Stream:
    """One chunk per token that brings text or probabilities, one at the end of each branch, `[DONE]` at the very end."""

    def __init__(self, generation: Generation, model: str, build: str, *, include_usage: bool) -> None:
        self._completion = _Completion(generation, model, build)
        self._include_usage = include_usage
        self._offsets: dict[int, int] = {}

    def frames(self, prompt: int, events: Sequence[Token | Finished]) -> bytes:
        """The frames of events of one prompt, in order."""
        return b"".join([self._frame(prompt, event) for event in events])

    def _frame(self, prompt: int, event: Token | Finished) -> bytes:
        index = self._completion.index(prompt, event)
        if isinstance(event, Finished):
            self._completion.finish(prompt, event)
            chunk = self._chunk([Choice("", index, None, FINISH_REASONS[event.reason])])
            chunk.timings = timings([event.usage])
            return sse.frame(chunk)
        logprobs = None
        if event.logprobs is not None:
            offset = self._offsets.get(index, 0)
            self._offsets[index] = offset + len(event.text)
            logprobs = _logprobs([event.logprobs], [offset])
        elif not event.text:
            return b""
        return sse.frame(self._chunk([Choice(event.text, index, logprobs, None)]))

    def _chunk(self, choices: list[Choice]) -> CompletionChunk:
        about = self._completion
        return CompletionChunk(
            id=about.id,
            object="text_completion",
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
        last.usage = self._completion.usage()
        last.timings = timings(self._completion.usages)
        return sse.frame(last) + sse.DONE


class Whole:
    """The whole answer."""

    def __init__(self, generation: Generation, model: str, build: str) -> None:
        self._completion = _Completion(generation, model, build)
        self._texts: dict[int, list[str]] = {}
        self._logprobs: dict[int, list[DrawnLogprobs]] = {}
        self._choices: list[Choice] = []

    def add(self, prompt: int, events: Sequence[Token | Finished]) -> None:
        """Takes events of one prompt, in order."""
        for event in events:
            index = self._completion.index(prompt, event)
            if isinstance(event, Finished):
                self._completion.finish(prompt, event)
                self._choices.append(self._choice(index, event))
                continue
            self._texts.setdefault(index, []).append(event.text)
            if event.logprobs is not None:
                self._logprobs.setdefault(index, []).append(event.logprobs)

    def _choice(self, index: int, finished: Finished) -> Choice:
        texts = self._texts.pop(index, [])
        logprobs = None
        if drawn := self._logprobs.pop(index, None):
            offsets = [0]
            for text in texts:
                offsets.append(offsets[-1] + len(text))
            logprobs = _logprobs(drawn, offsets[:-1])
        return Choice("".join(texts), index, logprobs, FINISH_REASONS[finished.reason])

    def body(self) -> bytes:
        """The JSON, once every branch has finished."""
        about = self._completion
        return msgspec.json.encode(
            CompletionObject(
                id=about.id,
                object="text_completion",
                created=about.created,
                model=about.model,
                system_fingerprint=about.build,
                choices=sorted(self._choices, key=lambda choice: choice.index),
                usage=about.usage(),
                timings=timings(about.usages),
            )
        )


def _logprobs(drawn: Sequence[DrawnLogprobs], offsets: list[int]) -> Logprobs:
    content = [token_logprobs(logprobs) for logprobs in drawn]
    return Logprobs(
        tokens=[token.token for token in content],
        token_logprobs=[token.logprob for token in content],
        # Two tokens may be spelt alike where their bytes are no whole characters; OpenAI's object keeps the likelier.
        top_logprobs=[{top.token: top.logprob for top in reversed(token.top_logprobs)} for token in content],
        text_offset=offsets,
        content=content,
    )


def models(model: Model, name: str) -> ModelList:
    """The one model that is served, as OpenAI and as llama-server list it."""
    meta = ModelMeta(
        vocab_type=model.vocab_type,
        n_vocab=model.n_vocab,
        n_ctx_train=model.n_ctx_train,
        n_embd=model.n_embd,
        n_params=model.n_params,
        size=model.size_bytes,
    )
    return ModelList(
        object="list",
        data=[ModelCard(id=name, object="model", created=int(time.time()), owned_by="weft", meta=meta)],
        models=[ModelName(name=name, model=name, capabilities=["completion"], details={"format": "gguf"})],
    )
