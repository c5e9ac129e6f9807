"""What all chunks and choices of one answer have in common, in either of OpenAI's shapes."""

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
    Running,
    Timings,
    TokenProbability,
    projected,
    token_probability,
)
from weft.server.response_fields.explanation import Explained, explanations_of
from weft.server.run.generation import Generation
from weft.server.run.pieces import GAP
from weft.server.run.service import Service

__all__ = ["FINISH_REASONS", "Answered", "wants_usage"]

FINISH_REASONS = {"end": "stop", "stop": "stop", "length": "length", "context_full": "length", "cancelled": "cancelled"}


class Answered:
    """One answer: what it is called, what its branches cost, and what the body wants to be told besides."""

    def __init__(self, prefix: str, data: CompletionFields, generation: Generation, service: Service, *, with_top: bool) -> None:
        """Takes what is common to the whole answer.

        Args:
            prefix: What its id begins with.
            data: The body.
            generation: The completions.
            service: What serves them.
            with_top: Whether the likely tokens are told beside a drawn one.
        """
        self.id = f"{prefix}-{generation.id}"
        self.created = int(time.time())
        self.model = service.model_name
        self.build = service.build
        self._branches = Branches(generation, service.engine, service.model_name)
        self._usages: list[list[BranchUsage]] = [[] for _ in generation.streams]
        self._with_top = with_top
        self._asks_likely = generation.asks_likely
        self._post_sampling = data.post_sampling_probs is True
        self.is_verbose = service.settings.is_verbose if data.verbose is None else data.verbose
        self._with_tokens = data.return_tokens is True
        self._with_progress = data.return_progress is True
        self._running = Running(generation) if data.timings_per_token else None

    def index(self, prompt: int, event: Token | Finished) -> int:
        """Counts the branches of all prompts."""
        return self._branches.index(prompt, event)

    def first_index(self, prompt: int) -> int:
        """The first branch of a prompt."""
        return prompt * self._branches.n

    def finish(self, prompt: int, finished: Finished) -> None:
        """Takes the end of a branch."""
        self._usages[prompt].append(finished.usage)

    def with_top(self, index: int) -> bool:
        """Whether a branch tells the likely tokens beside a drawn one: where the body asks for them, or its fork."""
        return self._with_top or self._asks_likely(0, index)

    def token(self, index: int, drawn: CompactLogprobs) -> TokenProbability:
        """A token drawn by a branch with what is to be told of its probability, written already."""
        return token_probability(drawn, with_top=self.with_top(index), post_sampling=self._post_sampling)

    def timings(self, prompt: int, index: int, n_predicted: int) -> Timings | msgspec.UnsetType:
        """The timings of a branch of which so many tokens have come, where they are wanted with each event."""
        return msgspec.UNSET if self._running is None else self._running.timings(prompt, index, n_predicted)

    def progress(self, prompt: int, progress: Progress) -> PromptProgress | None:
        """How far a prompt is, where that is wanted."""
        if self._running is not None:
            self._running.watch(prompt, progress)
        return PromptProgress.of(progress) if self._with_progress else None

    def prompt_timings(self, progress: Progress) -> Timings | msgspec.UnsetType:
        """The timings of a prompt that is so far, where they are wanted with each event."""
        return msgspec.UNSET if self._running is None else Running.prompt_timings(progress)

    def verbose_probability(self, drawn: CompactLogprobs) -> bytes | None:
        """A drawn token as llama-server's own route writes it, where that is wanted too."""
        if not self.is_verbose:
            return None
        return drawn.completion_json(self._post_sampling)

    def verbose(
        self,
        prompt: int,
        finished: Finished,
        *,
        content: str = "",
        tokens: Sequence[int] = (),
        has_probabilities: bool = False,
    ) -> CompletionResult | msgspec.UnsetType:
        """What llama-server's own route would say of a branch at its end, where that is wanted too.

        There is a gap for its probabilities, unless `response_fields` leaves them out; `verbose_probability` writes them.
        """
        if not self.is_verbose:
            return msgspec.UNSET
        told = GAP if has_probabilities else msgspec.UNSET
        result = self._branches.result(
            prompt, finished, content=content, tokens=tokens if self._with_tokens else (), probabilities=told
        )
        return projected(result, self._branches.generation)  # type: ignore[no-any-return]

    def explanation(self, prompt: int, finished: Finished) -> CacheExplanation | msgspec.UnsetType:
        """Why what was computed of a prompt had to be, where the end of its first branch is to tell."""
        return self._branches.generation.explanation(prompt, finished)

    def explanations(self) -> Explained:
        """Why what was computed of the prompts had to be, as far as that was told."""
        return explanations_of(self._branches.generation.explanations)

    @property
    def usages(self) -> Sequence[BranchUsage]:
        """The usage of every branch that has finished."""
        return [usage for usages in self._usages for usage in usages]

    def usage(self) -> Usage:
        """The sums, once every branch has finished: of the prompts, and of what follows them in each branch."""
        # What the branches of one prompt computed adds up to what was computed of it; the rest was there before.
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
    """Whether a stream is to end with its usage."""
    return options is not None and options.include_usage is True
