"""Probabilities of tokens: llama-server's shape of today, and that of 2024 beside it."""

from typing import cast

import msgspec

from weft._native import CompactLogprobs

__all__ = [
    "CompletionProbability",
    "TokenLogprob",
    "TokenProb",
    "TokenProbability",
    "completion_probability",
    "likely_by_text",
    "token_probability",
]


class TokenLogprob(msgspec.Struct):
    """A token with the natural logarithm of its probability."""

    id: int
    token: str
    bytes: list[int]
    logprob: float


class TokenProb(msgspec.Struct):
    """A token with its probability after the samplers."""

    id: int
    token: str
    bytes: list[int]
    prob: float


class Candidate(msgspec.Struct):
    """A token as llama-server told it in 2024."""

    prob: float
    tok_str: str


class TokenProbability(msgspec.Struct, kw_only=True):
    """A drawn token and what was likely in its place, most likely first; with `prob` and `top_probs`, what the samplers left."""

    id: int
    token: str
    bytes: list[int]
    logprob: float | msgspec.UnsetType = msgspec.UNSET
    top_logprobs: list[TokenLogprob] | msgspec.UnsetType = msgspec.UNSET
    prob: float | msgspec.UnsetType = msgspec.UNSET
    top_probs: list[TokenProb] | msgspec.UnsetType = msgspec.UNSET


class CompletionProbability(TokenProbability, kw_only=True):
    """The same of `/completion`, with the two fields of 2024."""

    content: str
    probs: list[Candidate]


def token_probability(logprobs: CompactLogprobs, *, with_top: bool = True, post_sampling: bool = False) -> TokenProbability:
    """One token, and what was likely in its place unless only the token was asked for.

    `post_sampling` says whether these are probabilities after the samplers. It is written already.
    """
    return cast("TokenProbability", msgspec.Raw(logprobs.token_json(with_top, post_sampling)))


def completion_probability(logprobs: CompactLogprobs, *, post_sampling: bool) -> CompletionProbability:
    """One drawn token as `/completion` tells it, written already."""
    return cast("CompletionProbability", msgspec.Raw(logprobs.completion_json(post_sampling)))


def likely_by_text(logprobs: CompactLogprobs) -> dict[str, float]:
    """The likely tokens as OpenAI's object has them, written already: of those that are spelt alike, the likeliest."""
    return cast("dict[str, float]", msgspec.Raw(logprobs.top_json()))
