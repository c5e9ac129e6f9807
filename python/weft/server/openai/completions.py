"""OpenAI's completions: a body becomes requests, events become chunks and choices. No I/O here."""

import codecs
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from weft import Finished, InvalidRequest, Token
from weft import Logprobs as DrawnLogprobs
from weft.server import body, sse
from weft.server.generation import Generation
from weft.server.openai.answer import FINISH_REASONS, About
from weft.server.openai.schemas import Choice, CompletionChunk, CompletionObject, CreateCompletion, Logprobs
from weft.server.report import timings, token_logprobs
from weft.server.submission import Submission
from weft.settings import Settings

__all__ = ["Stream", "Whole", "submission"]

_NEUTRAL: dict[str, Callable[[Any], bool]] = {"echo": lambda value: value is False, "suffix": lambda value: value == ""}


def submission(data: CreateCompletion, settings: Settings) -> Submission:
    """What a body asks for."""
    body.refuse_unsupported(data, _NEUTRAL)
    # The engine tells of a drawn token only beside the likely ones.
    n_probs = ("logprobs", 1) if data.logprobs == 0 else body.first_given(data, "logprobs", "n_probs")
    submission = body.submission(data, settings, n_probs=n_probs)
    if data.best_of is not None and data.best_of > submission.template.n:
        raise InvalidRequest("best_of", f"best_of is {data.best_of}, more than n, which is not supported; leave it out")
    return submission


class _Offsets:
    """Where the tokens of one branch begin in its text, in characters.

    Counted over the tokens' own bytes, because what is shown with a token may be another's text, held back until then. A
    token that begins within a character begins where that character does.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n = 0

    def next(self, drawn: DrawnLogprobs) -> int:
        """The offset of the next token."""
        offset = self._n
        self._n += len(self._decoder.decode(drawn.chosen.bytes))
        return offset


class Stream:
    """One chunk per token that brings text or probabilities, one at the end of each branch, `[DONE]` at the very end."""

    def __init__(self, data: CreateCompletion, generation: Generation, model: str, build: str) -> None:
        self._about = About("cmpl", generation, model, build)
        # 0 asks for the drawn token alone.
        self._with_top = data.logprobs != 0
        self._include_usage = data.stream_options is not None and data.stream_options.include_usage is True
        self._offsets: dict[int, _Offsets] = {}

    def frames(self, prompt: int, events: Sequence[Token | Finished]) -> bytes:
        """The frames of events of one prompt, in order."""
        return b"".join([self._frame(prompt, event) for event in events])

    def _frame(self, prompt: int, event: Token | Finished) -> bytes:
        index = self._about.index(prompt, event)
        if isinstance(event, Finished):
            self._about.finish(prompt, event)
            chunk = self._chunk([Choice("", index, None, FINISH_REASONS[event.reason])])
            chunk.timings = timings([event.usage])
            return sse.frame(chunk)
        logprobs = None
        if event.logprobs is not None:
            offsets = self._offsets.setdefault(index, _Offsets())
            logprobs = _logprobs([event.logprobs], offsets, with_top=self._with_top)
        elif not event.text:
            return b""
        return sse.frame(self._chunk([Choice(event.text, index, logprobs, None)]))

    def _chunk(self, choices: list[Choice]) -> CompletionChunk:
        about = self._about
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
        last.usage = self._about.usage()
        last.timings = timings(self._about.usages)
        return sse.frame(last) + sse.DONE


class Whole:
    """The whole answer."""

    def __init__(self, data: CreateCompletion, generation: Generation, model: str, build: str) -> None:
        self._about = About("cmpl", generation, model, build)
        # 0 asks for the drawn token alone.
        self._with_top = data.logprobs != 0
        self._texts: dict[int, list[str]] = {}
        self._logprobs: dict[int, list[DrawnLogprobs]] = {}
        self._choices: list[Choice] = []

    def add(self, prompt: int, events: Sequence[Token | Finished]) -> None:
        """Takes events of one prompt, in order."""
        for event in events:
            index = self._about.index(prompt, event)
            if isinstance(event, Finished):
                self._about.finish(prompt, event)
                self._choices.append(self._choice(index, event))
                continue
            self._texts.setdefault(index, []).append(event.text)
            if event.logprobs is not None:
                self._logprobs.setdefault(index, []).append(event.logprobs)

    def _choice(self, index: int, finished: Finished) -> Choice:
        text = "".join(self._texts.pop(index, []))
        drawn = self._logprobs.pop(index, None)
        logprobs = _logprobs(drawn, _Offsets(), with_top=self._with_top) if drawn else None
        return Choice(text, index, logprobs, FINISH_REASONS[finished.reason])

    def body(self) -> bytes:
        """The JSON, once every branch has finished."""
        about = self._about
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


def _logprobs(drawn: Sequence[DrawnLogprobs], offsets: _Offsets, *, with_top: bool) -> Logprobs:
    content = [token_logprobs(logprobs, with_top=with_top) for logprobs in drawn]
    return Logprobs(
        tokens=[token.token for token in content],
        token_logprobs=[token.logprob for token in content],
        # Two tokens may be spelt alike where their bytes are no whole characters; OpenAI's object keeps the likelier.
        top_logprobs=[{top.token: top.logprob for top in reversed(token.top_logprobs)} for token in content],
        text_offset=[offsets.next(logprobs) for logprobs in drawn],
        content=content,
    )
