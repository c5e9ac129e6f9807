"""Timings in llama-server's format."""

from collections.abc import Iterable

import msgspec

from weft import Usage

__all__ = ["Timings", "timings"]


class Timings(msgspec.Struct):
    """Tokens, milliseconds, and tokens per second.

    `cache_n` prompt tokens were cached, and `prompt_n` were computed. Generation is timed from the first token to the last, so
    its rates exclude the first token.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float

    @classmethod
    def of(
        cls, *, cache_n: int, prompt_n: int, prompt_ms: float, predicted_n: int, predicted_ms: float, n_steps: int
    ) -> "Timings":
        """Returns timings with rates, which are 0 for no work; `n_steps` tokens were generated in `predicted_ms`."""
        return cls(
            cache_n=cache_n,
            prompt_n=prompt_n,
            prompt_ms=prompt_ms,
            prompt_per_token_ms=_ratio(prompt_ms, prompt_n),
            prompt_per_second=_ratio(1000.0 * prompt_n, prompt_ms),
            predicted_n=predicted_n,
            predicted_ms=predicted_ms,
            predicted_per_token_ms=_ratio(predicted_ms, n_steps),
            predicted_per_second=_ratio(1000.0 * n_steps, predicted_ms),
        )


def timings(usages: Iterable[Usage]) -> Timings:
    """Returns the timings of a branch, or sums over several with the rates of the sums."""
    cache_n = prompt_n = predicted_n = n_steps = 0
    prompt_ms = predicted_ms = 0.0
    for usage in usages:
        cache_n += usage.n_cached
        prompt_n += usage.n_computed
        prompt_ms += usage.prompt_ms
        predicted_n += usage.n_predicted
        predicted_ms += usage.predicted_ms
        n_steps += max(usage.n_predicted - 1, 0)
    return Timings.of(
        cache_n=cache_n,
        prompt_n=prompt_n,
        prompt_ms=prompt_ms,
        predicted_n=predicted_n,
        predicted_ms=predicted_ms,
        n_steps=n_steps,
    )


def _ratio(amount: float, per: float) -> float:
    return amount / per if per else 0.0
