"""State that all chunks and choices of a response share, in both of OpenAI's formats."""

import time
from collections.abc import Sequence

import msgspec

from weft import CacheExplanation, Finished, Progress, Token
from weft import Usage as BranchUsage
from weft._native import CompactLogprobs
from weft.server.openai.schemas import PromptTokensDetails, StreamOptions, Usage
from weft.server.request_fields import CompletionFields
from weft.server.response_fields import (
    Branches,
    CompletionResult,
    PromptProgress,
    RunningTimings,
    Timings,
    TokenProbability,
    projected,
    token_probability,
)
from weft.server.response_fields.explanation import Explained, explanations_of
from weft.server.run.generation import Generation
from weft.server.run.service import Service
from weft.server.streaming.json_chunks import GAP

__all__ = ["ResponseContext", "wants_usage"]


class ResponseContext:
    """A response: its id, the usage of its branches, and the optional data that the body requests."""

    def __init__(self, prefix: str, data: CompletionFields, generation: Generation, service: Service, *, with_top: bool) -> None:
        """Collects what the whole response shares.

        Args:
            prefix: Prefix of the response's id.
            data: The body.
            generation: The completions.
            service: The service.
            with_top: Whether logprobs include alternatives.
        """
        self.id = f"{prefix}-{generation.id}"
        self.created = int(time.time())
        self.model = service.model_name
        self.build = service.build
        self._branches = Branches(generation, service.engine, service.model_name)
        self._usages: list[list[BranchUsage]] = [[] for _ in generation.streams]
        self._with_top = with_top
        self._requests_top_logprobs = generation.requests_top_logprobs
        self._post_sampling = data.post_sampling_probs is True
        self.is_verbose = service.settings.is_verbose if data.verbose is None else data.verbose
        self._with_tokens = data.return_tokens is True
        self._with_progress = data.return_progress is True
        self._running = RunningTimings(generation) if data.timings_per_token else None

    def index(self, prompt: int, event: Token | Finished) -> int:
        """Returns the index of an event's branch over all prompts."""
        return self._branches.index(prompt, event)

    def first_index(self, prompt: int) -> int:
        """Returns the index of a prompt's first branch."""
        return prompt * self._branches.n

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
        return msgspec.UNSET if self._running is None else self._running.timings(prompt, index, n_predicted)

    def progress(self, prompt: int, progress: Progress) -> PromptProgress | None:
        """Returns the progress of a prompt, or None if it is not requested."""
        if self._running is not None:
            self._running.watch(prompt, progress)
        return PromptProgress.of(progress) if self._with_progress else None

    def prompt_timings(self, progress: Progress) -> Timings | msgspec.UnsetType:
        """Returns the timings of a prompt in progress, or UNSET if events do not include them."""
        return msgspec.UNSET if self._running is None else RunningTimings.prompt_timings(progress)

    def verbose_probability(self, logprobs: CompactLogprobs) -> bytes | None:
        """Returns a sampled token's logprobs in llama-server's format, or None if `__verbose` is not requested."""
        if not self.is_verbose:
            return None
        return logprobs.completion_json(self._post_sampling)

    def verbose(
        self,
        prompt: int,
        finished: Finished,
        *,
        content: str = "",
        tokens: Sequence[int] = (),
        has_probabilities: bool = False,
    ) -> CompletionResult | msgspec.UnsetType:
        """Returns llama-server's result of a finished branch, or UNSET if `__verbose` is not requested.

        There is a gap for the probabilities, unless `response_fields` omits them; `verbose_probability` returns their entries.
        """
        if not self.is_verbose:
            return msgspec.UNSET
        told = GAP if has_probabilities else msgspec.UNSET
        result = self._branches.result(
            prompt, finished, content=content, tokens=tokens if self._with_tokens else (), probabilities=told
        )
        return projected(result, self._branches.generation)  # type: ignore[no-any-return]

    def explanation(self, prompt: int, finished: Finished) -> CacheExplanation | msgspec.UnsetType:
        """Returns the cache explanation that a branch's final event must include, or UNSET."""
        return self._branches.generation.explanation(prompt, finished)

    def explanations(self) -> Explained:
        """Returns the cache explanations received so far."""
        return explanations_of(self._branches.generation.explanations)

    @property
    def usages(self) -> Sequence[BranchUsage]:
        """Usage of all finished branches."""
        return [usage for usages in self._usages for usage in usages]

    def usage(self) -> Usage:
        """Returns the total usage, once every branch has finished: prompts, and completions."""
        # The branches of a prompt together computed what was not cached.
        prompts = [
            (n_prompt + sum(max(usage.n_prompt - n_prompt, 0) for usage in usages), usages)
            for n_prompt, usages in zip(self._branches.n_prompt, self._usages, strict=True)
        ]
        cached = sum(max(n_prompt - sum(usage.n_computed for usage in usages), 0) for n_prompt, usages in prompts)
        prompt_tokens = sum(n_prompt for n_prompt, _ in prompts)
        completion_tokens = sum(usage.n_predicted for usage in self.usages)
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        )


def wants_usage(options: StreamOptions | None) -> bool:
    """Returns whether a stream ends with its usage."""
    return options is not None and options.include_usage is True
