"""Progress of running branches: computed prompt tokens, and timings so far."""

import time

import msgspec

from weft import Progress
from weft.server.response_fields.timings import Timings
from weft.server.run.generation import Generation

__all__ = ["PromptProgress", "RunningTimings"]


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


class RunningTimings:
    """Timings of branches before their end.

    The engine reports a branch's times only at its end, so generation is timed here, from the event of the first token to that of
    the last. Prompt times are the engine's and belong to branch 0, whose prompt the other branches share.
    """

    def __init__(self, generation: Generation) -> None:
        self._n_prompt = [stream.n_prompt for stream in generation.streams]
        self._prompts: dict[int, Progress] = {}
        self._first_token: dict[tuple[int, int], float] = {}

    def watch(self, prompt: int, progress: Progress) -> None:
        """Records the progress of a prompt."""
        self._prompts[prompt] = progress

    @staticmethod
    def prompt_timings(progress: Progress) -> Timings:
        """Returns the timings of a prompt before the first token."""
        return Timings.of(
            cache_n=progress.n_cached,
            prompt_n=progress.n_processed - progress.n_cached,
            prompt_ms=progress.ms,
            predicted_n=0,
            predicted_ms=0.0,
            n_steps=0,
        )

    def timings(self, prompt: int, index: int, n_predicted: int) -> Timings:
        """Returns the timings of a branch whose token number `n_predicted` has just arrived."""
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
