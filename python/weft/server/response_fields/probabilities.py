"""Probabilities of tokens: llama-server's shape of today, and that of 2024 beside it."""

import math

import msgspec

from weft import Logprob, Logprobs

__all__ = [
    "CompletionProbability",
    "TokenLogprob",
    "TokenLogprobs",
    "TokenProb",
    "TokenProbability",
    "TokenProbs",
    "completion_probability",
    "token_logprobs",
    "token_probs",
]

LOWEST = -3.4028234663852886e38
"""The least number of 32 bits: what llama-server writes for the logarithm of 0, as JSON has no infinity."""


class TokenLogprob(msgspec.Struct):
    """A token with the natural logarithm of its probability."""

    id: int
    token: str
    bytes: list[int]
    logprob: float


class TokenLogprobs(TokenLogprob):
    """The token that was drawn, and the most likely ones in its place, most likely first."""

    top_logprobs: list[TokenLogprob]


class TokenProb(msgspec.Struct):
    """A token with its probability after the samplers."""

    id: int
    token: str
    bytes: list[int]
    prob: float


class TokenProbs(TokenProb):
    """The token that was drawn, and what the samplers left in its place, most likely first."""

    top_probs: list[TokenProb]


class Candidate(msgspec.Struct):
    """A token as llama-server told it in 2024."""

    prob: float
    tok_str: str


class TokenProbability(msgspec.Struct, kw_only=True):
    """A drawn token and what was likely in its place: [`TokenLogprobs`] or, after the samplers, [`TokenProbs`]."""

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


def token_probs(logprobs: Logprobs, *, with_top: bool = True) -> TokenProbs:
    """The same of probabilities after the samplers."""
    chosen = logprobs.chosen
    return TokenProbs(
        id=chosen.token,
        token=chosen.text,
        bytes=list(chosen.bytes),
        prob=math.exp(chosen.logprob),
        top_probs=[_token_prob(logprob) for logprob in logprobs.top if with_top],
    )


def completion_probability(logprobs: Logprobs, *, post_sampling: bool) -> CompletionProbability:
    """One drawn token as `/completion` tells it; `post_sampling` says whether these are probabilities after the samplers."""
    told = token_probs(logprobs) if post_sampling else token_logprobs(logprobs)
    candidates = [Candidate(math.exp(top.logprob), top.text) for top in logprobs.top]
    return CompletionProbability(**msgspec.structs.asdict(told), content=told.token, probs=candidates)


def _token_logprob(logprob: Logprob) -> TokenLogprob:
    return TokenLogprob(id=logprob.token, token=logprob.text, bytes=list(logprob.bytes), logprob=max(logprob.logprob, LOWEST))


def _token_prob(logprob: Logprob) -> TokenProb:
    return TokenProb(id=logprob.token, token=logprob.text, bytes=list(logprob.bytes), prob=math.exp(logprob.logprob))
