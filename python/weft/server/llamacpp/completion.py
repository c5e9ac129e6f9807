"""`/completion` and `/infill`: conversion of events to llama-server's stream and results. No I/O here."""

from collections.abc import Sequence

import msgspec

from weft import Finished, InvalidRequestError, Progress, PromptLogprobs, Request, Token
from weft.server import request_fields
from weft.server.llamacpp.schemas import CompletionBody, CompletionEvent, InfillBody
from weft.server.memory_budget import TOKEN_BYTES
from weft.server.response_fields import (
    Branches,
    CompletionProbability,
    PromptProgress,
    RunningTimings,
    completion_probability,
    projected,
)
from weft.server.run.generation import Event, Generation, token_logprobs
from weft.server.run.service import Service
from weft.server.run.submission import Gap, Submission
from weft.server.streaming import sse
from weft.server.streaming.json_chunks import GAP, filled, json_list, list_of_pieces
from weft.server.streaming.responses import StreamEncoder
from weft.settings import Settings
from weft.settings.system_prompt import SystemPrompt

__all__ = ["ChunkEncoder", "ResponseBuilder", "infill", "submission", "system_prompt", "with_system_prompt"]


COMPLETION_ONLY = frozenset({"system_prompt", "anti_prompt", "assistant_name", "image_data"})
"""Fields that only `/completion` accepts."""


def submission(data: CompletionBody, settings: Settings) -> Submission:
    """Returns the submission of a body, without the common system prompt."""
    request_fields.refuse_unsupported(data, but=COMPLETION_ONLY)
    request_fields.refuse_unmarked_reasoning(data)
    if data.assistant_name and not isinstance(data.system_prompt, str):
        raise InvalidRequestError(
            "assistant_name", "assistant_name stands beside a system_prompt that is a text; give both, or none"
        )
    if data.prompt is None and data.system_prompt is not None:
        data = msgspec.structs.replace(data, prompt="")
    if isinstance(data.system_prompt, str) and isinstance(data.anti_prompt, list):
        raise InvalidRequestError("anti_prompt", "anti_prompt is a list; beside a system_prompt it must be one text")
    words = [data.anti_prompt] if isinstance(data.anti_prompt, str) else data.anti_prompt or ()
    parsed = _with_stop(_submission(data, settings), words)
    if not data.image_data:
        return parsed
    return msgspec.structs.replace(parsed, prompts=[request_fields.with_images(data.prompt, data.image_data)])


def system_prompt(data: CompletionBody) -> SystemPrompt | None:
    """Returns the system prompt that a body sets for all clients, or None."""
    if isinstance(data.system_prompt, str):
        anti_prompt = data.anti_prompt if isinstance(data.anti_prompt, str) else ""
        return SystemPrompt(data.system_prompt, anti_prompt, data.assistant_name or "")
    return data.system_prompt


def with_system_prompt(parsed: Submission, common: SystemPrompt, tokens: Sequence[int]) -> Submission:
    """Returns the submission with the system prompt, given its tokens, before every prompt."""
    return _with_stop(msgspec.structs.replace(parsed, after=tokens), [common.anti_prompt])


def _with_stop(parsed: Submission, words: Sequence[str]) -> Submission:
    """Returns the submission with additional stop strings."""

    def with_them(template: Request) -> Request:
        more = [word for word in words if word and word not in template.stop]
        return msgspec.structs.replace(template, stop=[*template.stop, *more]) if more else template

    branches = [msgspec.structs.replace(branch, template=with_them(branch.template)) for branch in parsed.branches]
    return msgspec.structs.replace(parsed, template=with_them(parsed.template), branches=branches)


def _submission(data: CompletionBody | InfillBody, settings: Settings) -> Submission:
    return request_fields.submission(data, settings, n_probs=request_fields.first_given(data, "n_probs", "logprobs"))


def infill(data: InfillBody, settings: Settings) -> Submission:
    """Returns the submission of an infill body."""
    request_fields.refuse_unsupported(data)
    request_fields.refuse_unmarked_reasoning(data)
    if data.input_prefix is None and data.input_suffix is None:
        raise InvalidRequestError("input_prefix", "input_prefix must be given, or input_suffix")
    gap = Gap(
        suffix=request_fields.pieces(data.input_suffix or ""),
        middle=request_fields.pieces(data.prompt or ""),
        snippets=data.input_extra or (),
        suffix_first=settings.spm_infill,
    )
    parsed = _submission(msgspec.structs.replace(data, prompt=""), settings)
    return msgspec.structs.replace(parsed, prompts=[request_fields.pieces(data.input_prefix or "")], gap=gap)


class ChunkEncoder(StreamEncoder):
    """Encodes progress of the prompt, one event per token, and one with `"stop": true` at the end of each branch.

    Text that is withheld until a branch's end has its own event before the end.
    """

    def __init__(self, data: CompletionBody | InfillBody, generation: Generation, service: Service) -> None:
        generation.accepts_forks = len(generation.streams) == 1
        self._branches = Branches(generation, service.engine, service.model_name)
        self._post_sampling = data.post_sampling_probs is True
        self._running = RunningTimings(generation) if data.timings_per_token else None
        self._with_progress = data.return_progress is True
        self._id: str | msgspec.UnsetType = generation.id

    def frames(self, prompt: int, event: Event) -> list[bytes]:
        """Returns the frames of the next event. The stream's first one has the request's id."""
        return list(map(sse.frame, self._payloads(prompt, event)))

    def _payloads(self, prompt: int, event: Event) -> Sequence[object]:
        match event:
            case Token():
                logprobs = token_logprobs(event)
                probabilities = [] if logprobs is None else [completion_probability(logprobs, post_sampling=self._post_sampling)]
                return (self._text(prompt, event, event.n_predicted, tokens=[event.token], probabilities=probabilities),)
            case Finished():
                rest = [self._text(prompt, event, event.usage.n_predicted)] if event.text else []
                return [*rest, projected(self._branches.result(prompt, event), self._branches.generation)]
            case Progress():
                return self._progress(prompt, event)
            case PromptLogprobs():
                return ()

    def _text(
        self,
        prompt: int,
        event: Token | Finished,
        n_predicted: int,
        *,
        tokens: Sequence[int] = (),
        probabilities: Sequence[CompletionProbability] = (),
    ) -> CompletionEvent:
        timings = msgspec.UNSET if self._running is None else self._running.timings(prompt, event.index, n_predicted)
        return CompletionEvent(
            index=self._branches.index(prompt, event),
            content=event.text,
            tokens=tokens,
            id_slot=-1 if event.slot is None else event.slot,
            tokens_predicted=n_predicted,
            tokens_evaluated=self._branches.n_prompt[prompt],
            completion_probabilities=probabilities or msgspec.UNSET,
            timings=timings,
            id=self._take_id(),
        )

    def _progress(self, prompt: int, progress: Progress) -> list[CompletionEvent]:
        if self._running is not None:
            self._running.watch(prompt, progress)
        if not self._with_progress:
            return []
        event = CompletionEvent(
            index=prompt * self._branches.n,
            id_slot=self._branches.slot(prompt),
            tokens_evaluated=self._branches.n_prompt[prompt],
            timings=msgspec.UNSET if self._running is None else RunningTimings.prompt_timings(progress),
            prompt_progress=PromptProgress.of(progress),
            id=self._take_id(),
        )
        return [event]

    def _take_id(self) -> str | msgspec.UnsetType:
        """Returns the request's id for the stream's first event, and UNSET for later ones."""
        request_id, self._id = self._id, msgspec.UNSET
        return request_id


class ResponseBuilder:
    """Builds the complete response: one object, or a list in order of `index`."""

    def __init__(self, data: CompletionBody | InfillBody, generation: Generation, service: Service) -> None:
        generation.accepts_forks = len(generation.streams) == 1
        self._branches = Branches(generation, service.engine, service.model_name)
        self._post_sampling = data.post_sampling_probs is True
        self._with_tokens = data.return_tokens is True
        self._texts: dict[int, list[str]] = {}
        self._tokens: dict[int, list[int]] = {}
        self._probabilities: dict[int, list[bytes]] = {}
        self._results: dict[int, list[bytes]] = {}
        """Encoded results of branches, in chunks."""

    def add(self, prompt: int, event: Event) -> int:
        """Adds the next event. Returns the number of bytes by which memory use grew."""
        match event:
            case Finished():
                return self._finish(prompt, event)
            case Progress() | PromptLogprobs():
                return 0
            case _:
                return self._token(self._branches.index(prompt, event), event)

    def _token(self, index: int, token: Token) -> int:
        self._texts.setdefault(index, []).append(token.text)
        if self._with_tokens:
            self._tokens.setdefault(index, []).append(token.token)
        n_bytes = TOKEN_BYTES + len(token.text)
        if (logprobs := token_logprobs(token)) is not None:
            # Encoded now, because encoding a million entries at the end would block the event loop.
            encoded = logprobs.completion_json(self._post_sampling)
            self._probabilities.setdefault(index, []).append(encoded)
            n_bytes += len(encoded)
        return n_bytes

    def _finish(self, prompt: int, finished: Finished) -> int:
        index = self._branches.index(prompt, finished)
        probabilities = self._probabilities.pop(index, None)
        result = self._branches.result(
            prompt,
            finished,
            content="".join([*self._texts.pop(index, []), finished.text]),
            tokens=self._tokens.pop(index, []),
            probabilities=msgspec.UNSET if probabilities is None else GAP,
        )
        frame = msgspec.json.encode(projected(result, self._branches.generation))
        self._results[index] = filled(frame, json_list(probabilities or ()))
        return len(frame)

    def body(self) -> list[bytes]:
        """Returns the JSON in chunks, once every branch has finished."""
        results = [self._results[index] for index in sorted(self._results)]
        return results[0] if len(results) == 1 else list_of_pieces(results)
