"""`/completion` and `/infill`: conversion of events to llama-server's stream and results. No I/O here."""

from collections.abc import Sequence

import msgspec

from weft import Event, Finished, InvalidRequestError, Progress, PromptLogprobs, Request, Token
from weft.server.inference.generation import Generation, token_logprobs
from weft.server.inference.submission import Gap, Submission
from weft.server.llamacpp.schemas import CompletionBody, CompletionEvent, InfillBody
from weft.server.request_fields import media, prompts, reasoning, requests, unsupported
from weft.server.response_fields.probabilities import CompletionProbability, completion_probability
from weft.server.response_fields.progress import RunningReports
from weft.server.response_fields.result import Branches, BranchResults, projected
from weft.server.service import Service
from weft.server.streaming import sse
from weft.server.streaming.encoder import Encoder
from weft.server.streaming.json_chunks import filled, list_of_pieces
from weft.settings import Settings
from weft.settings.system_prompt import SystemPrompt


def submission(data: CompletionBody, settings: Settings) -> Submission:
    """Returns the submission of a body, without the common system prompt."""
    unsupported.refuse_unsupported(data)
    reasoning.refuse_unmarked_reasoning(data)
    if data.assistant_name and not isinstance(data.system_prompt, str):
        message = "assistant_name requires a system_prompt that is a string; give both, or neither"
        raise InvalidRequestError("assistant_name", message)
    if data.prompt is None and data.system_prompt is not None:
        data = msgspec.structs.replace(data, prompt="")
    if isinstance(data.system_prompt, str) and isinstance(data.anti_prompt, list):
        raise InvalidRequestError("anti_prompt", "anti_prompt is a list; with a system_prompt it must be a string")
    words = [data.anti_prompt] if isinstance(data.anti_prompt, str) else data.anti_prompt or ()
    parsed = _with_stop(_submission(data, settings), words)
    if not data.image_data:
        return parsed
    return msgspec.structs.replace(parsed, prompts=[media.with_images(data.prompt, data.image_data)])


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
    return requests.submission(data, settings, n_probs=requests.first_given(data, "n_probs", "logprobs"))


def infill(data: InfillBody, settings: Settings) -> Submission:
    """Returns the submission of an infill body."""
    unsupported.refuse_unsupported(data)
    reasoning.refuse_unmarked_reasoning(data)
    if data.input_prefix is None and data.input_suffix is None:
        raise InvalidRequestError("input_prefix", "input_prefix or input_suffix must be given")
    gap = Gap(
        suffix=prompts.pieces(data.input_suffix or ""),
        middle=prompts.pieces(data.prompt or ""),
        snippets=data.input_extra or (),
        suffix_first=settings.spm_infill,
    )
    parsed = _submission(msgspec.structs.replace(data, prompt=""), settings)
    return msgspec.structs.replace(parsed, prompts=[prompts.pieces(data.input_prefix or "")], gap=gap)


class CompletionEncoder(Encoder):
    """Encodes completions: as a stream, or complete as one object, or as a list in order of `index`.

    A stream has progress of the prompt, one event per token, and one with `"stop": true` at the end of each branch. Text that is
    withheld until a branch's end has its own event before the end.
    """

    def __init__(self, data: CompletionBody | InfillBody, generation: Generation, service: Service) -> None:
        generation.accepts_forks = len(generation.streams) == 1
        self._branches = Branches(generation, service.engine, service.model_name)
        self._post_sampling = data.post_sampling_probs is True
        self._reports = RunningReports(data, generation)
        self._id: str | msgspec.UnsetType = generation.id
        self._unfinished = BranchResults(data, self._branches)
        self._results: dict[int, list[bytes]] = {}
        """Encoded results of branches, in chunks."""

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
        return CompletionEvent(
            index=self._branches.index(prompt, event),
            content=event.text,
            tokens=tokens,
            id_slot=-1 if event.slot is None else event.slot,
            tokens_predicted=n_predicted,
            tokens_evaluated=self._branches.n_prompt[prompt],
            completion_probabilities=probabilities or msgspec.UNSET,
            timings=self._reports.timings(prompt, event.index, n_predicted),
            id=self._take_id(),
        )

    def _progress(self, prompt: int, progress: Progress) -> list[CompletionEvent]:
        if (report := self._reports.progress(prompt, progress)) is None:
            return []
        prompt_progress, timings = report
        event = CompletionEvent(
            index=prompt * self._branches.n,
            id_slot=self._branches.slot(prompt),
            tokens_evaluated=self._branches.n_prompt[prompt],
            timings=timings,
            prompt_progress=prompt_progress,
            id=self._take_id(),
        )
        return [event]

    def _take_id(self) -> str | msgspec.UnsetType:
        """Returns the request's id for the stream's first event, and UNSET for later ones."""
        request_id, self._id = self._id, msgspec.UNSET
        return request_id

    def add(self, prompt: int, event: Event) -> int:
        """Adds the next event. Returns the number of bytes by which memory use grew."""
        match event:
            case Token():
                return self._unfinished.add(prompt, event)
            case Finished():
                result, probabilities = self._unfinished.finish(prompt, event)
                frame = msgspec.json.encode(result)
                self._results[self._branches.index(prompt, event)] = filled(frame, probabilities)
                return len(frame)
            case _:
                return 0

    def body(self) -> list[bytes]:
        """Returns the JSON in chunks, once every branch has finished."""
        results = [self._results[index] for index in sorted(self._results)]
        return results[0] if len(results) == 1 else list_of_pieces(results)
