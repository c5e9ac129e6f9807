"""Token probabilities in llama-server's current format and its format of 2024."""

from typing import cast

import msgspec

from weft._native import CompactLogprobs


class _Token(msgspec.Struct):
    id: int
    token: str
    bytes: list[int]


class TokenLogprob(_Token):
    """A token with the natural logarithm of its probability."""

    logprob: float


class TokenProb(_Token):
    """A token with its probability after the samplers."""

    prob: float


class Candidate(msgspec.Struct):
    """A token in llama-server's format of 2024."""

    prob: float
    tok_str: str


class TokenProbability(_Token, kw_only=True):
    """A sampled token with its most likely alternatives, in descending order.

    `prob` and `top_probs` are probabilities after the samplers.
    """

    logprob: float | msgspec.UnsetType = msgspec.UNSET
    top_logprobs: list[TokenLogprob] | msgspec.UnsetType = msgspec.UNSET
    prob: float | msgspec.UnsetType = msgspec.UNSET
    top_probs: list[TokenProb] | msgspec.UnsetType = msgspec.UNSET


class CompletionProbability(TokenProbability, kw_only=True):
    """The same for `/completion`, with the two fields of 2024."""

    content: str
    probs: list[Candidate]


def token_probability(logprobs: CompactLogprobs, *, with_top: bool = True, post_sampling: bool = False) -> TokenProbability:
    """Returns a token's probabilities as encoded JSON.

    Args:
        logprobs: Logprobs of the token and its alternatives.
        with_top: Whether to include the alternatives.
        post_sampling: Whether these are probabilities after the samplers.
    """
    return cast("TokenProbability", msgspec.Raw(logprobs.token_json(with_top, post_sampling)))


def completion_probability(logprobs: CompactLogprobs, *, post_sampling: bool) -> CompletionProbability:
    """Returns a sampled token's probabilities in `/completion`'s format, as encoded JSON."""
    return cast("CompletionProbability", msgspec.Raw(logprobs.completion_json(post_sampling)))


def top_logprobs_by_text(logprobs: CompactLogprobs) -> dict[str, float]:
    """Returns the top logprobs by text as encoded JSON, in OpenAI's format.

    Of tokens with the same text, the most likely counts.
    """
    return cast("dict[str, float]", msgspec.Raw(logprobs.top_json()))
