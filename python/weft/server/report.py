"""What both dialects report in the same words: timings and log-probabilities, as llama-server has them."""

from collections.abc import Iterable

import msgspec

from weft import Logprob, Logprobs, Usage

__all__ = ["Timings", "TokenLogprob", "TokenLogprobs", "timings", "token_logprobs"]

LOWEST = -3.4028234663852886e38
"""The least number of 32 bits: what llama-server writes for the logarithm of 0, as JSON has no infinity."""


class Timings(msgspec.Struct):
    """Where the time went: tokens, milliseconds, and tokens per second.

    `cache_n` tokens of the prompt were found computed, `prompt_n` were computed.
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


class TokenLogprob(msgspec.Struct):
    """A token with the natural logarithm of its probability."""

    id: int
    token: str
    bytes: list[int]
    logprob: float


class TokenLogprobs(TokenLogprob):
    """The token that was drawn, and the most likely ones in its place, most likely first."""

    top_logprobs: list[TokenLogprob]


def timings(usages: Iterable[Usage]) -> Timings:
    """The timings of one branch, or the sums over several; rates are those of the sums, 0 where nothing was done."""
    cache_n = prompt_n = predicted_n = 0
    prompt_ms = predicted_ms = 0.0
    for usage in usages:
        cache_n += usage.n_cached
        prompt_n += usage.n_computed
        prompt_ms += usage.prompt_ms
        predicted_n += usage.n_predicted
        predicted_ms += usage.predicted_ms
    return Timings(
        cache_n=cache_n,
        prompt_n=prompt_n,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=_ratio(prompt_ms, prompt_n),
        prompt_per_second=_ratio(1000.0 * prompt_n, prompt_ms),
        predicted_n=predicted_n,
        predicted_ms=predicted_ms,
        predicted_per_token_ms=_ratio(predicted_ms, predicted_n),
        predicted_per_second=_ratio(1000.0 * predicted_n, predicted_ms),
    )


def _ratio(amount: float, per: float) -> float:
    return amount / per if per else 0.0


def token_logprobs(logprobs: Logprobs, *, with_top: bool = True) -> TokenLogprobs:
    """One drawn token in llama-server's shape, and what was likely in its place unless only the token was asked for."""
    chosen = logprobs.chosen
    return TokenLogprobs(
        id=chosen.token,
        token=chosen.text,
        bytes=list(chosen.bytes),
        logprob=max(chosen.logprob, LOWEST),
        top_logprobs=[_token_logprob(logprob) for logprob in logprobs.top if with_top],
    )


def _token_logprob(logprob: Logprob) -> TokenLogprob:
    return TokenLogprob(id=logprob.token, token=logprob.text, bytes=list(logprob.bytes), logprob=max(logprob.logprob, LOWEST))
