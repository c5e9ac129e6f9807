"""Progress of running branches: computed prompt tokens, and timings so far."""

import time

import msgspec

from weft import Progress
from weft.server.inference.generation import Generation
from weft.server.request_fields.fields import CompletionFields
from weft.server.response_fields.timings import Timings


class PromptProgress(msgspec.Struct):
    """Progress of a prompt: `processed` of `total` tokens in `time_ms`, of which `cache` were cached."""

    total: int
    cache: int
    processed: int
    time_ms: int

    @classmethod
    def of(cls, progress: Progress) -> "PromptProgress":
        """Returns the fields for a progress event of the engine."""
        return cls(progress.n_prompt, progress.n_cached, progress.n_processed, round(progress.ms))


class RunningReports:
    """What events of a stream report on request: progress of the prompt, and timings before a branch's end.

    The engine reports a branch's times only at its end, so generation is timed here, from the event of the first token to that of
    the last. Prompt times are the engine's and belong to branch 0, whose prompt the other branches share.
    """

    def __init__(self, data: CompletionFields, generation: Generation) -> None:
        self._with_progress = data.return_progress is True
        self._with_timings = data.timings_per_token is True
        self._n_prompt = [stream.n_prompt for stream in generation.streams]
        self._prompts: dict[int, Progress] = {}
        self._first_token: dict[tuple[int, int], float] = {}

    def progress(self, prompt: int, progress: Progress) -> tuple[PromptProgress, Timings | msgspec.UnsetType] | None:
        """Returns the progress of a prompt with its timings, or None if it is not requested."""
        self._prompts[prompt] = progress
        if not self._with_progress:
            return None
        timings = Timings.of(
            cache_n=progress.n_cached,
            prompt_n=progress.n_processed - progress.n_cached,
            prompt_ms=progress.ms,
        )
        return PromptProgress.of(progress), timings if self._with_timings else msgspec.UNSET

    def timings(self, prompt: int, index: int, n_predicted: int) -> Timings | msgspec.UnsetType:
        """Returns the timings of a branch whose token number `n_predicted` has just arrived; UNSET if not requested."""
        if not self._with_timings:
            return msgspec.UNSET
        now = time.monotonic()
        first = self._first_token.setdefault((prompt, index), now)
        n_prompt, progress = self._n_prompt[prompt], self._prompts.get(prompt)
        n_cached = n_prompt if index else 0 if progress is None else progress.n_cached
        return Timings.of(
            cache_n=n_cached,
            prompt_n=n_prompt - n_cached,
            prompt_ms=0.0 if index or progress is None else progress.ms,
            predicted_n=n_predicted,
            predicted_ms=1000.0 * (now - first),
            n_steps=max(n_predicted - 1, 0),
        )
