"""OpenAI's completions: conversion of bodies to requests, and of events to chunks and choices. No I/O here."""

import msgspec

from weft import Event, Finished, InvalidRequestError, Progress, PromptLogprobs, Token
from weft._native import CompactLogprobs
from weft.server.inference.generation import Generation, token_logprobs
from weft.server.inference.submission import Gap, Submission
from weft.server.memory_budget import TOKEN_BYTES
from weft.server.openai.answer import Format, ResponseContext, Verbose
from weft.server.openai.best_of import BestOf
from weft.server.openai.echo import Echo
from weft.server.openai.logprob_lists import LogprobLists
from weft.server.openai.offsets import Offsets
from weft.server.openai.schemas import Choice, Chunk, CreateCompletion, Logprobs
from weft.server.request_fields import neutral, reasoning, requests
from weft.server.response_fields.probabilities import top_logprobs_by_text
from weft.server.response_fields.result import branch_score
from weft.server.service import Service
from weft.server.streaming import sse
from weft.server.streaming.json_chunks import filled
from weft.server.streaming.responses import StreamEncoder
from weft.settings import Settings

_FORMAT = Format("cmpl", "text_completion", "text_completion")


def submission(data: CreateCompletion, settings: Settings) -> Submission:
    """Returns the submission of a body."""
    neutral.refuse_unsupported(data)
    reasoning.refuse_unmarked_reasoning(data)
    # The engine reports the logprob of the sampled token only together with top logprobs.
    n_probs = ("logprobs", 1) if data.logprobs == 0 else requests.first_given(data, "logprobs", "n_probs")
    parsed = requests.submission(data, settings, n_probs=n_probs)
    parsed = _with_best_of(data, parsed)
    if data.echo and (parsed.suffix or any(branch.suffix for branch in parsed.branches)):
        raise InvalidRequestError("echo", "echo is not supported beside suffix_prompt; leave one of them out")
    if data.suffix:
        if data.echo:
            raise InvalidRequestError("echo", "echo is not supported beside suffix; leave one of them out")
        gap = Gap(suffix=[data.suffix], suffix_first=settings.spm_infill)
        return msgspec.structs.replace(parsed, gap=gap)
    if not data.echo or data.logprobs is None:
        return parsed
    template = msgspec.structs.replace(parsed.template, prompt_logprobs=data.logprobs)
    return msgspec.structs.replace(parsed, template=template, sent_as=parsed.sent_as | {"prompt_logprobs": "logprobs"})


def _with_best_of(data: CreateCompletion, parsed: Submission) -> Submission:
    """Returns the submission with `best_of` completions and their logprobs."""
    if data.best_of in (None, 1, parsed.template.n):  # Clients send 1 as the default.
        return parsed
    if parsed.branches:
        raise InvalidRequestError("best_of", "best_of compares completions of one kind; leave it out, or the branches")
    if parsed.template.beam_width is not None or parsed.template.diverse == "beam":
        raise InvalidRequestError("best_of", "best_of compares what is drawn, and a search its beams; leave one of them out")
    if data.best_of < parsed.template.n:
        raise InvalidRequestError("best_of", f"best_of is {data.best_of}, less than n, which is {parsed.template.n}")
    if parsed.stream:
        raise InvalidRequestError(
            "best_of", "best_of above n cannot be streamed: which are best is known at the end; leave one of them out"
        )
    template = msgspec.structs.replace(parsed.template, n=data.best_of, logprobs=max(parsed.template.logprobs or 0, 1))
    return msgspec.structs.replace(parsed, template=template, sent_as=parsed.sent_as | {"n": "best_of"})


class CompletionEncoder(StreamEncoder):
    """Encodes completions: in chunks, or as one object.

    A stream has a chunk per token that adds text or logprobs, one at the end of each branch, and `[DONE]` last. Text that is
    withheld until a branch's end has its own chunk before the end. With `echo`, the prompt is the first chunk of each branch.
    """

    def __init__(self, data: CreateCompletion, generation: Generation, service: Service) -> None:
        # 0 requests the sampled token only.
        with_top = data.logprobs != 0
        self._context = ResponseContext(_FORMAT, data, generation, service, with_top=with_top)
        self._echo = Echo(generation, service.engine, with_top=with_top) if data.echo else None
        self._offsets: dict[int, Offsets] = {}
        self._started: set[int] = set()
        """Branches of a stream that have begun."""
        n_selected = len(data.branches or ()) or requests.n_completions(data, service.settings)
        self._best = BestOf(n_selected, generation.requests[0].n)
        # With `best_of`, tokens have logprobs even if the client did not request them.
        self._includes_logprobs = data.logprobs is not None or bool(data.n_probs or data.branches)
        # Logprobs of forks are always included, since only forks that request them have any.
        self._n_asked = generation.requests[0].n
        self._n_firsts = self._n_asked if self._best.chooses else 1
        generation.accepts_forks = len(generation.streams) == 1 and self._echo is None and not self._best.chooses
        self._texts: dict[int, list[str]] = {}
        self._logprobs: dict[int, LogprobLists] = {}
        self._gaps: dict[int, list[list[bytes]]] = {}
        """Contents of the choices' gaps."""
        self._choices: list[Choice] = []
        self._verbose: dict[int, Verbose] = {}
        """Results of branches that may come first."""

    def frames(self, prompt: int, event: Event) -> list[bytes]:
        """Returns the frames of the next event; the frame of the prompt itself is in chunks."""
        match event:
            case Progress():
                return list(map(sse.frame, self._context.progress(prompt, event, lambda index: Choice("", index, None, None))))
            case PromptLogprobs():
                self._add_prompt_logprobs(prompt, event)
                return []
        index = self._context.index(prompt, event)
        chunks = self._text(prompt, index, event)
        if isinstance(event, Finished):
            choice = Choice("", index, None, event.finish_reason, branch_score(event))
            chunks.append(self._context.ending(prompt, event, choice))
        return [*self._opening(prompt, index), *map(sse.frame, chunks)]

    def _opening(self, prompt: int, index: int) -> list[bytes]:
        if self._echo is None or index in self._started:
            return []
        self._started.add(index)
        text, logprobs = self._echoed(prompt)
        if logprobs is None:
            return [sse.frame(self._context.chunk(Choice(text, index, None, None)))]
        return filled(sse.frame(self._context.chunk(Choice(text, index, logprobs.gaps, None))), *logprobs.fillings())

    def _text(self, prompt: int, index: int, event: Token | Finished) -> list[Chunk]:
        sampled = token_logprobs(event) if isinstance(event, Token) else None
        if not event.text and sampled is None:
            return []
        logprobs = None if sampled is None else self._token_lists(prompt, index, sampled)
        chunk = self._context.chunk(Choice(event.text, index, logprobs, None))
        n_predicted = event.n_predicted if isinstance(event, Token) else event.usage.n_predicted
        chunk.timings = self._context.timings(prompt, event.index, n_predicted)
        return [chunk]

    def end(self) -> bytes:
        """Returns the usage if requested, and `[DONE]`."""
        return self._context.end()

    def add(self, prompt: int, event: Event) -> int:
        """Adds the next event. Returns the number of bytes by which memory use grew."""
        match event:
            case Progress():
                return 0
            case PromptLogprobs():
                return self._add_prompt_logprobs(prompt, event)
            case Finished():
                return self._finish(prompt, event)
            case _:
                return self._take(prompt, event)

    def _take(self, prompt: int, token: Token) -> int:
        index, sampled = self._context.index(prompt, token), token_logprobs(token)
        self._texts.setdefault(index, []).append(token.text)
        n_bytes = TOKEN_BYTES + len(token.text)
        if sampled is not None and self._best.chooses:
            self._best.take(index, sampled.chosen.logprob)
        includes_logprobs = self._includes_logprobs or index >= self._n_asked
        if sampled is not None and includes_logprobs:
            n_bytes += self._logprobs.setdefault(index, LogprobLists()).add(self._token_lists(prompt, index, sampled))
        if self._may_be_first(index):
            n_bytes += self._context.add_verbose(prompt, token, with_probability=includes_logprobs)
        return n_bytes

    def _may_be_first(self, index: int) -> bool:
        """Returns whether `__verbose` may describe this branch."""
        return index < self._n_firsts

    def _finish(self, prompt: int, finished: Finished) -> int:
        self._context.finish(prompt, finished)
        index = self._context.index(prompt, finished)
        text, logprobs = self._echoed(prompt)
        written = "".join([*self._texts.pop(index, []), finished.text])
        if (token_logprobs := self._logprobs.pop(index, None)) is not None:
            logprobs = token_logprobs if logprobs is None else logprobs.followed_by(token_logprobs)
        if logprobs is not None:
            self._gaps[index] = logprobs.fillings()
        gaps = None if logprobs is None else logprobs.gaps
        self._choices.append(Choice(text + written, index, gaps, finished.finish_reason, branch_score(finished)))
        if self._may_be_first(index):
            self._verbose[index] = self._context.verbose(prompt, finished)
        return len(text) + len(finished.text)

    def body(self) -> list[bytes]:
        """Returns the JSON in chunks, once every branch has finished."""
        selected = self._best.select(self._choices)
        verbose, probabilities = self._verbose[selected[0][0]]
        frame = self._context.whole([choice for _, choice in selected], verbose)
        return filled(frame, *(one for index, _ in selected for one in self._gaps.get(index, ())), probabilities)

    def _echoed(self, prompt: int) -> tuple[str, LogprobLists | None]:
        """Returns the beginning of each branch's text."""
        return ("", None) if self._echo is None else (self._echo.text(prompt), self._echo.logprobs(prompt))

    def _add_prompt_logprobs(self, prompt: int, event: PromptLogprobs) -> int:
        """Adds logprobs of a prompt's tokens. Returns the number of bytes by which memory use grew."""
        return 0 if self._echo is None else self._echo.take(prompt, event)

    def _token_lists(self, prompt: int, index: int, token: CompactLogprobs) -> Logprobs:
        """Returns the lists for one sampled token."""
        offsets = self._offsets.setdefault(index, Offsets(len(self._echoed(prompt)[0])))
        chosen = token.chosen
        return Logprobs(
            tokens=[chosen.text],
            token_logprobs=[chosen.logprob],
            top_logprobs=[top_logprobs_by_text(token) if self._context.with_top(index) else {}],
            text_offset=[offsets.next(chosen.bytes)],
            content=[self._context.token(index, token)],
        )
