"""Timings in llama-server's format."""

from collections.abc import Sequence

import msgspec

from weft import Usage


class Timings(msgspec.Struct):
    """Tokens, milliseconds, and tokens per second.

    `cache_n` prompt tokens were cached, and `prompt_n` were computed. Generation is timed from the first token to the last, so
    its rates exclude the first token. `draft_n` tokens were drafted by speculative decoding; it is left out if there are none.
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
    draft_n: int | msgspec.UnsetType = msgspec.UNSET
    draft_n_accepted: int | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(
        cls, *, cache_n: int, prompt_n: int, prompt_ms: float, predicted_n: int = 0, predicted_ms: float = 0.0, n_steps: int = 0
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


def timings(usages: Sequence[Usage]) -> Timings:
    """Returns the timings of a branch, or sums over several with the rates of the sums."""
    result = Timings.of(
        cache_n=sum(usage.n_cached for usage in usages),
        prompt_n=sum(usage.n_computed for usage in usages),
        prompt_ms=sum((usage.prompt_ms for usage in usages), 0.0),
        predicted_n=sum(usage.n_predicted for usage in usages),
        predicted_ms=sum((usage.predicted_ms for usage in usages), 0.0),
        n_steps=sum(max(usage.n_predicted - 1, 0) for usage in usages),
    )
    if n_drafted := sum(usage.n_drafted for usage in usages):
        result.draft_n, result.draft_n_accepted = n_drafted, sum(usage.n_draft_accepted for usage in usages)
    return result


def _ratio(amount: float, per: float) -> float:
    return amount / per if per else 0.0
