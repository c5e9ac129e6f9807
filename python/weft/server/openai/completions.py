"""OpenAI's completions: conversion of bodies to requests, and of events to chunks and choices. No I/O here."""

from collections.abc import Sequence

import msgspec

from weft import Finished, InvalidRequestError, PromptLogprobs, Token
from weft._native import CompactLogprobs
from weft.server.inference.generation import Generation
from weft.server.inference.submission import Gap, Submission
from weft.server.memory_budget import TOKEN_BYTES
from weft.server.openai.answer import ChoiceEncoder, Verbose
from weft.server.openai.best_of import BestOf
from weft.server.openai.echo import Echo
from weft.server.openai.logprob_lists import LogprobLists, Offsets
from weft.server.openai.schemas import Choice, CreateCompletion, Logprobs
from weft.server.request_fields import reasoning, requests, unsupported
from weft.server.response_fields.probabilities import top_logprobs_by_text
from weft.server.response_fields.result import branch_score
from weft.server.service import Service
from weft.server.streaming import sse
from weft.server.streaming.json_chunks import filled
from weft.settings import Settings


def submission(data: CreateCompletion, settings: Settings) -> Submission:
    """Returns the submission of a body."""
    unsupported.refuse_unsupported(data)
    reasoning.refuse_unmarked_reasoning(data)
    # The engine reports the logprob of the sampled token only together with top logprobs.
    n_probs = ("logprobs", 1) if data.logprobs == 0 else requests.first_given(data, "logprobs", "n_probs")
    parsed = requests.submission(data, settings, n_probs=n_probs)
    parsed = _with_best_of(data, parsed)
    if data.echo and (parsed.suffix or any(branch.suffix for branch in parsed.branches)):
        raise InvalidRequestError("echo", "echo is not supported with suffix_prompt; leave one of them out")
    if data.suffix:
        if data.echo:
            raise InvalidRequestError("echo", "echo is not supported with suffix; leave one of them out")
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
        raise InvalidRequestError("best_of", "best_of cannot be combined with branches; leave one of them out")
    if parsed.template.beam_width is not None or parsed.template.diverse == "beam":
        raise InvalidRequestError("best_of", "best_of cannot be combined with beam search; leave one of them out")
    if data.best_of < parsed.template.n:
        raise InvalidRequestError("best_of", f"best_of is {data.best_of}; it must be at least n, {parsed.template.n}")
    if parsed.stream:
        message = "best_of above n cannot be streamed, because the best are known only at the end; leave out stream or best_of"
        raise InvalidRequestError("best_of", message)
    template = msgspec.structs.replace(parsed.template, n=data.best_of, logprobs=max(parsed.template.logprobs or 0, 1))
    return msgspec.structs.replace(parsed, template=template, sent_as=parsed.sent_as | {"n": "best_of"})


class CompletionEncoder(ChoiceEncoder):
    """Encodes completions. A stream has a chunk per token that adds text or logprobs; with `echo`, the prompt comes first."""

    names = "cmpl", "text_completion", "text_completion"

    def __init__(self, data: CreateCompletion, generation: Generation, service: Service) -> None:
        # 0 requests the sampled token only.
        with_top = data.logprobs != 0
        super().__init__(data, generation, service, with_top=with_top)
        self._echo = Echo(generation, service.engine, with_top=with_top) if data.echo else None
        self._offsets: dict[int, Offsets] = {}
        n_selected = len(data.branches or ()) or requests.n_completions(data, service.settings)
        self._best = BestOf(n_selected, generation.requests[0].n)
        # With `best_of`, tokens have logprobs even if the client did not request them.
        self._includes_logprobs = data.logprobs is not None or bool(data.n_probs or data.branches)
        # Logprobs of forks are always included, since only forks that request them have any.
        self._n_requested = generation.requests[0].n
        self._n_firsts = self._n_requested if self._best.chooses else 1
        generation.accepts_forks = len(generation.streams) == 1 and self._echo is None and not self._best.chooses
        self._texts: dict[int, list[str]] = {}
        self._logprobs: dict[int, LogprobLists] = {}
        self._gaps: dict[int, list[list[bytes]]] = {}
        """Contents of the choices' gaps."""
        self._choices: list[Choice] = []
        self._verbose: dict[int, Verbose] = {}
        """Results of branches that may come first."""

    def _empty(self, index: int, finished: Finished | None = None) -> Choice:
        if finished is None:
            return Choice("", index, None, None)
        return Choice("", index, None, finished.finish_reason, branch_score(finished))

    def _opening(self, prompt: int, index: int) -> list[bytes]:
        """Returns the prompt, if it is echoed; the frame is in chunks."""
        if self._echo is None:
            return []
        text, logprobs = self._echoed(prompt)
        if logprobs is None:
            return [sse.frame(self._chunk(Choice(text, index, None, None)))]
        return filled(sse.frame(self._chunk(Choice(text, index, logprobs.gaps, None))), *logprobs.fillings())

    def _pieces(self, prompt: int, index: int, event: Token | Finished, logprobs: CompactLogprobs | None) -> Sequence[Choice]:
        if logprobs is None:
            return [Choice(event.text, index, None, None)] if event.text else ()
        return [Choice(event.text, index, self._token_lists(prompt, index, logprobs), None)]

    def _take(self, prompt: int, index: int, token: Token, logprobs: CompactLogprobs | None) -> int:
        self._texts.setdefault(index, []).append(token.text)
        n_bytes = TOKEN_BYTES + len(token.text)
        if logprobs is not None and self._best.chooses:
            self._best.take(index, logprobs.chosen.logprob)
        includes_logprobs = self._includes_logprobs or index >= self._n_requested
        if logprobs is not None and includes_logprobs:
            n_bytes += self._logprobs.setdefault(index, LogprobLists()).add(self._token_lists(prompt, index, logprobs))
        if self._may_be_first(index):
            n_bytes += self._add_verbose(prompt, token, with_probability=includes_logprobs)
        return n_bytes

    def _may_be_first(self, index: int) -> bool:
        """Returns whether `__verbose` may describe this branch."""
        return index < self._n_firsts

    def _finish(self, prompt: int, index: int, finished: Finished) -> int:
        text, logprobs = self._echoed(prompt)
        written = "".join([*self._texts.pop(index, []), finished.text])
        if (token_logprobs := self._logprobs.pop(index, None)) is not None:
            logprobs = token_logprobs if logprobs is None else logprobs.followed_by(token_logprobs)
        if logprobs is not None:
            self._gaps[index] = logprobs.fillings()
        gaps = None if logprobs is None else logprobs.gaps
        self._choices.append(Choice(text + written, index, gaps, finished.finish_reason, branch_score(finished)))
        if self._may_be_first(index):
            self._verbose[index] = self._verbose_of(prompt, finished)
        return len(text) + len(finished.text)

    def body(self) -> list[bytes]:
        """Returns the JSON in chunks, once every branch has finished."""
        selected = self._best.select(self._choices)
        verbose, probabilities = self._verbose[selected[0][0]]
        frame = self._whole([choice for _, choice in selected], verbose)
        return filled(frame, *(one for index, _ in selected for one in self._gaps.get(index, ())), probabilities)

    def _echoed(self, prompt: int) -> tuple[str, LogprobLists | None]:
        """Returns the beginning of each branch's text."""
        return ("", None) if self._echo is None else (self._echo.text(prompt), self._echo.logprobs(prompt))

    def _take_prompt_logprobs(self, prompt: int, event: PromptLogprobs) -> int:
        return 0 if self._echo is None else self._echo.take(prompt, event)

    def _token_lists(self, prompt: int, index: int, token: CompactLogprobs) -> Logprobs:
        """Returns the lists for one sampled token."""
        offsets = self._offsets.setdefault(index, Offsets(len(self._echoed(prompt)[0])))
        chosen = token.chosen
        return Logprobs(
            tokens=[chosen.text],
            token_logprobs=[chosen.logprob],
            top_logprobs=[top_logprobs_by_text(token) if self._includes_top(index) else {}],
            text_offset=[offsets.next(chosen.bytes)],
            content=[self._token(index, token)],
        )
