"""What the encoders of both of OpenAI's formats have in common. No I/O here."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import msgspec

from weft import Event, Finished, Progress, PromptLogprobs, Token
from weft import Usage as BranchUsage
from weft._native import CompactLogprobs
from weft.server.inference.generation import Generation, token_logprobs
from weft.server.openai.schemas import (
    Chunk,
    Completion,
    CompletionTokensDetails,
    CreateChatCompletion,
    CreateCompletion,
    PromptTokensDetails,
    Usage,
)
from weft.server.response_fields.explanation import explanations_of
from weft.server.response_fields.probabilities import TokenProbability, token_probability
from weft.server.response_fields.progress import RunningReports
from weft.server.response_fields.result import Branches, BranchResults, CompletionResult, projected
from weft.server.response_fields.timings import timings
from weft.server.service import Service
from weft.server.streaming import sse
from weft.server.streaming.encoder import Encoder

Verbose = tuple[CompletionResult | msgspec.UnsetType, list[bytes]]
"""llama-server's result of a branch with a gap for its probabilities, and their chunks."""

NOT_VERBOSE: Verbose = msgspec.UNSET, []


class ChoiceEncoder(Encoder):
    """Encodes completions in chunks, or as one object. Subclasses make the choices of their format.

    A stream has chunks with what each token adds to its branch, one at a branch's end, and `[DONE]` last. Text that is withheld
    until a branch's end has its own chunk before the end.
    """

    names: ClassVar[tuple[str, str, str]]
    """Prefix of the ids, and values of `object` in chunks and in complete responses."""

    def __init__(
        self, data: CreateCompletion | CreateChatCompletion, generation: Generation, service: Service, *, with_top: bool
    ) -> None:
        """Collects what the whole response shares.

        Args:
            data: The body.
            generation: The completions.
            service: The service.
            with_top: Whether logprobs include alternatives.
        """
        prefix, self._chunk_object, self._whole_object = self.names
        self._about: dict[str, Any] = {
            "id": f"{prefix}-{generation.id}",
            "created": int(time.time()),
            "model": service.model_name,
            "system_fingerprint": service.build,
        }
        self._generation = generation
        self._branches = Branches(generation, service.engine, service.model_name)
        self._usages: list[list[BranchUsage]] = [[] for _ in generation.streams]
        self._with_top = with_top
        self._post_sampling = data.post_sampling_probs is True
        self._is_verbose = service.settings.is_verbose if data.verbose is None else data.verbose
        self._results = BranchResults(data, self._branches)
        self._reports = RunningReports(data, generation)
        self._has_prediction = generation.submission.template.prediction is not None
        self._include_usage = data.stream_options is not None and data.stream_options.include_usage is True
        self._started: set[int] = set()
        """Branches of a stream that have begun."""

    def _opening(self, prompt: int, index: int) -> list[bytes]:
        """Returns the frames before those of a branch's first event."""
        raise NotImplementedError

    def _pieces(self, prompt: int, index: int, event: Token | Finished, logprobs: CompactLogprobs | None) -> Sequence[Any]:
        """Returns the choices of the chunks with what an event adds."""
        raise NotImplementedError

    def _empty(self, index: int, finished: Finished | None = None) -> msgspec.Struct:
        """Returns a choice that adds nothing: at the end of a branch, or with the progress of its prompt."""
        raise NotImplementedError

    def _take(self, prompt: int, index: int, token: Token, logprobs: CompactLogprobs | None) -> int:
        """Adds a token to a complete response. Returns the number of bytes by which memory use grew."""
        raise NotImplementedError

    def _finish(self, prompt: int, index: int, finished: Finished) -> int:
        """Makes the choice of a branch that has ended. Returns the number of bytes by which memory use grew."""
        raise NotImplementedError

    def _take_prompt_logprobs(self, prompt: int, event: PromptLogprobs) -> int:  # noqa: ARG002 (for subclasses)
        """Adds logprobs of a prompt's tokens. Returns the number of bytes by which memory use grew."""
        return 0

    def frames(self, prompt: int, event: Event) -> list[bytes]:
        """Returns the frames of the next event."""
        match event:
            case Progress():
                return self._progress(prompt, event)
            case PromptLogprobs():
                self._take_prompt_logprobs(prompt, event)
                return []
        index = self._branches.index(prompt, event)
        opening = [] if index in self._started else self._opening(prompt, index)
        self._started.add(index)
        if isinstance(event, Token):
            logprobs, n_predicted = token_logprobs(event), event.n_predicted
        else:
            logprobs, n_predicted = None, event.usage.n_predicted
        chunks = [self._chunk(piece) for piece in self._pieces(prompt, index, event, logprobs)]
        for chunk in chunks:
            chunk.timings = self._reports.timings(prompt, event.index, n_predicted)
        if isinstance(event, Finished):
            chunks.append(self._ending(prompt, index, event))
        return [*opening, *map(sse.frame, chunks)]

    def add(self, prompt: int, event: Event) -> int:
        """Adds the next event. Returns the number of bytes by which memory use grew."""
        match event:
            case Token():
                return self._take(prompt, self._branches.index(prompt, event), event, token_logprobs(event))
            case Finished():
                self._usages[prompt].append(event.usage)
                return self._finish(prompt, self._branches.index(prompt, event), event)
            case PromptLogprobs():
                return self._take_prompt_logprobs(prompt, event)
            case Progress():
                return 0

    def _includes_top(self, index: int) -> bool:
        """Returns whether a branch's logprobs include alternatives, as requested by the body or the fork."""
        return self._with_top or self._generation.requests_top_logprobs(0, index)

    def _token(self, index: int, logprobs: CompactLogprobs) -> TokenProbability:
        """Returns a sampled token's logprobs as encoded JSON."""
        return token_probability(logprobs, with_top=self._includes_top(index), post_sampling=self._post_sampling)

    def _chunk(self, *choices: msgspec.Struct) -> Chunk:
        usage = None if self._include_usage else msgspec.UNSET
        return Chunk(object=self._chunk_object, choices=[*choices], usage=usage, **self._about)

    def _progress(self, prompt: int, progress: Progress) -> list[bytes]:
        """Returns a chunk with the progress of a prompt, if it is requested."""
        if (report := self._reports.progress(prompt, progress)) is None:
            return []
        chunk = self._chunk(self._empty(prompt * self._branches.n))
        chunk.prompt_progress, chunk.timings = report
        return [sse.frame(chunk)]

    def _ending(self, prompt: int, index: int, finished: Finished) -> Chunk:
        """Returns the last chunk of a branch."""
        self._usages[prompt].append(finished.usage)
        chunk = self._chunk(self._empty(index, finished))
        chunk.timings = timings([finished.usage])
        if self._is_verbose:
            chunk.verbose = projected(self._branches.result(prompt, finished), self._generation)
        chunk.cache_explanation = self._generation.explanation(prompt, finished)
        return chunk

    def end(self) -> bytes:
        """Returns the usage if requested, and `[DONE]`."""
        if not self._include_usage:
            return sse.DONE
        last = self._chunk()
        last.usage, last.timings = self._usage(), timings(self._all_usages)
        return sse.frame(last) + sse.DONE

    def _whole(self, choices: Iterable[msgspec.Struct], verbose: CompletionResult | msgspec.UnsetType) -> bytes:
        """Returns the complete response as JSON, once every branch has finished."""
        completion = Completion(
            object=self._whole_object,
            choices=[*choices],
            usage=self._usage(),
            timings=timings(self._all_usages),
            verbose=verbose,
            cache_explanation=explanations_of(self._generation.explanations),
            **self._about,
        )
        return msgspec.json.encode(completion)

    def _add_verbose(self, prompt: int, token: Token, *, with_probability: bool = True) -> int:
        """Adds a token to llama-server's result, if requested. Returns the number of bytes by which memory use grew."""
        return self._results.add(prompt, token, with_probability=with_probability) if self._is_verbose else 0

    def _verbose_of(self, prompt: int, finished: Finished) -> Verbose:
        """Returns llama-server's result of a branch whose tokens were added, or UNSET; and the contents of its gap."""
        return self._results.finish(prompt, finished) if self._is_verbose else NOT_VERBOSE

    @property
    def _all_usages(self) -> list[BranchUsage]:
        return [usage for usages in self._usages for usage in usages]

    def _usage(self) -> Usage:
        """Returns the total usage: prompts, and completions."""
        # The branches of a prompt together computed what was not cached.
        prompts = [
            (n_prompt + sum(max(usage.n_prompt - n_prompt, 0) for usage in usages), usages)
            for n_prompt, usages in zip(self._branches.n_prompt, self._usages, strict=True)
        ]
        cached = sum(max(n_prompt - sum(usage.n_computed for usage in usages), 0) for n_prompt, usages in prompts)
        prompt_tokens = sum(n_prompt for n_prompt, _ in prompts)
        completion_tokens = sum(usage.n_predicted for usage in self._all_usages)
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
            completion_tokens_details=self._prediction_usage() if self._has_prediction else msgspec.UNSET,
        )

    def _prediction_usage(self) -> CompletionTokensDetails:
        n_accepted = sum(usage.n_draft_accepted for usage in self._all_usages)
        n_drafted = sum(usage.n_drafted for usage in self._all_usages)
        return CompletionTokensDetails(n_accepted, n_drafted - n_accepted)
