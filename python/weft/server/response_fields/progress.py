"""What is told of branches that still run: how far the prompt is, and timings so far."""

import time

import msgspec

from weft import Progress
from weft.server.response_fields.timings import Timings
from weft.server.run.generation import Generation

__all__ = ["PromptProgress", "Running"]


class PromptProgress(msgspec.Struct):
    """How far a prompt is computed: `processed` of `total` tokens, `cache` of which were found computed, in `time_ms`."""

    total: int
    cache: int
    processed: int
    time_ms: int

    @classmethod
    def of(cls, progress: Progress) -> "PromptProgress":
        """What the engine said."""
        return cls(progress.n_prompt, progress.n_cached, progress.n_processed, round(progress.ms))


class Running:
    """Timings of branches before their end.

    The engine tells a branch's times at its end only, so those of the prediction are measured here: from the event of its first
    token to that of its last. Those of the prompt are the engine's, and belong to branch 0: the others found it computed.
    """

    def __init__(self, generation: Generation) -> None:
        self._n_prompt = [stream.n_prompt for stream in generation.streams]
        self._prompts: dict[int, Progress] = {}
        self._first_token: dict[tuple[int, int], float] = {}

    def watch(self, prompt: int, progress: Progress) -> None:
        """Takes how far a prompt is."""
        self._prompts[prompt] = progress

    @staticmethod
    def prompt_timings(progress: Progress) -> Timings:
        """The timings of a prompt that is not computed yet, or just now: no token is drawn."""
        return Timings.of(
            cache_n=progress.n_cached,
            prompt_n=progress.n_processed - progress.n_cached,
            prompt_ms=progress.ms,
            predicted_n=0,
            predicted_ms=0.0,
            n_steps=0,
        )

    def timings(self, prompt: int, index: int, n_predicted: int) -> Timings:
        """The timings of a branch of which so many tokens have come, the last of them now."""
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
