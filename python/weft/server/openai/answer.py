"""State that all chunks and choices of a response share, in both of OpenAI's formats."""

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from weft import Finished, Progress, Token
from weft import Usage as BranchUsage
from weft._native import CompactLogprobs
from weft.server.inference.generation import Generation
from weft.server.openai.schemas import Chunk, Completion, CreateChatCompletion, CreateCompletion, PromptTokensDetails, Usage
from weft.server.response_fields.explanation import explanations_of
from weft.server.response_fields.probabilities import TokenProbability, token_probability
from weft.server.response_fields.progress import RunningReports
from weft.server.response_fields.projection import projected
from weft.server.response_fields.result import Branches, CompletionResult
from weft.server.response_fields.results import BranchResults
from weft.server.response_fields.timings import Timings, timings
from weft.server.service import Service
from weft.server.streaming import sse

Verbose = tuple[CompletionResult | msgspec.UnsetType, list[bytes]]
"""llama-server's result of a branch with a gap for its probabilities, and their chunks."""

NOT_VERBOSE: Verbose = msgspec.UNSET, []


class Format(NamedTuple):
    """One of the two formats: prefix of the ids, and values of `object` in chunks and complete responses."""

    prefix: str
    chunk: str
    whole: str


class ResponseContext:
    """A response: its id, the usage of its branches, and the optional data that the body requests."""

    def __init__(
        self,
        form: Format,
        data: CreateCompletion | CreateChatCompletion,
        generation: Generation,
        service: Service,
        *,
        with_top: bool,
    ) -> None:
        """Collects what the whole response shares.

        Args:
            form: Format of the response.
            data: The body.
            generation: The completions.
            service: The service.
            with_top: Whether logprobs include alternatives.
        """
        self._form = form
        self._about: dict[str, Any] = {
            "id": f"{form.prefix}-{generation.id}",
            "created": int(time.time()),
            "model": service.model_name,
            "system_fingerprint": service.build,
        }
        self._branches = Branches(generation, service.engine, service.model_name)
        self._usages: list[list[BranchUsage]] = [[] for _ in generation.streams]
        self._with_top = with_top
        self._requests_top_logprobs = generation.requests_top_logprobs
        self._post_sampling = data.post_sampling_probs is True
        self._is_verbose = service.settings.is_verbose if data.verbose is None else data.verbose
        self._results = BranchResults(data, self._branches)
        self._reports = RunningReports(data, generation)
        self._include_usage = data.stream_options is not None and data.stream_options.include_usage is True

    def index(self, prompt: int, event: Token | Finished) -> int:
        """Returns the index of an event's branch over all prompts."""
        return self._branches.index(prompt, event)

    def finish(self, prompt: int, finished: Finished) -> None:
        """Records the usage of a finished branch."""
        self._usages[prompt].append(finished.usage)

    def with_top(self, index: int) -> bool:
        """Returns whether a branch's logprobs include alternatives, as requested by the body or the fork."""
        return self._with_top or self._requests_top_logprobs(0, index)

    def token(self, index: int, logprobs: CompactLogprobs) -> TokenProbability:
        """Returns a sampled token's logprobs as encoded JSON."""
        return token_probability(logprobs, with_top=self.with_top(index), post_sampling=self._post_sampling)

    def timings(self, prompt: int, index: int, n_predicted: int) -> Timings | msgspec.UnsetType:
        """Returns the timings of a branch after `n_predicted` tokens, or UNSET if events do not include them."""
        return self._reports.timings(prompt, index, n_predicted)

    def chunk(self, *choices: msgspec.Struct) -> Chunk:
        """Returns a chunk."""
        usage = None if self._include_usage else msgspec.UNSET
        return Chunk(object=self._form.chunk, choices=[*choices], usage=usage, **self._about)

    def progress(self, prompt: int, progress: Progress, choice: Callable[[int], msgspec.Struct]) -> list[Chunk]:
        """Returns a chunk with the progress of a prompt, if it is requested; `choice` makes an empty choice of this index."""
        if (report := self._reports.progress(prompt, progress)) is None:
            return []
        chunk = self.chunk(choice(prompt * self._branches.n))
        chunk.prompt_progress, chunk.timings = report
        return [chunk]

    def ending(self, prompt: int, finished: Finished, choice: msgspec.Struct) -> Chunk:
        """Returns the last chunk of a branch."""
        self.finish(prompt, finished)
        chunk = self.chunk(choice)
        chunk.timings = timings([finished.usage])
        if self._is_verbose:
            chunk.verbose = projected(self._branches.result(prompt, finished), self._branches.generation)
        chunk.cache_explanation = self._branches.generation.explanation(prompt, finished)
        return chunk

    def end(self) -> bytes:
        """Returns the usage if requested, and `[DONE]`."""
        if not self._include_usage:
            return sse.DONE
        last = self.chunk()
        last.usage, last.timings = self._usage(), timings(self._all_usages)
        return sse.frame(last) + sse.DONE

    def whole(self, choices: Iterable[msgspec.Struct], verbose: CompletionResult | msgspec.UnsetType) -> bytes:
        """Returns the complete response as JSON, once every branch has finished."""
        completion = Completion(
            object=self._form.whole,
            choices=[*choices],
            usage=self._usage(),
            timings=timings(self._all_usages),
            verbose=verbose,
            cache_explanation=explanations_of(self._branches.generation.explanations),
            **self._about,
        )
        return msgspec.json.encode(completion)

    def add_verbose(self, prompt: int, token: Token, *, with_probability: bool = True) -> int:
        """Adds a token to llama-server's result, if requested. Returns the number of bytes by which memory use grew."""
        return self._results.add(prompt, token, with_probability=with_probability) if self._is_verbose else 0

    def verbose(self, prompt: int, finished: Finished) -> Verbose:
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
        )
