"""What a caller asks for."""

from collections.abc import Sequence
from typing import TypedDict

import msgspec

__all__ = ["Request", "RequestOptions"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt, `n` completions. The defaults are llama-server's.

    Nothing is checked here: `Engine.generate` checks every field and raises `InvalidRequest` with the name of the first that is
    wrong.
    """

    prompt: str | Sequence[int]
    """What is to be continued: at least one token. A string is tokenized with the special tokens that the model's vocabulary asks
    for, and the spelling of a control token in it is read as that token."""
    n: int = 1
    """How many completions, 1 to 256. The prompt is computed once for all."""
    max_tokens: int | None = None
    """Most tokens of one completion; None is until the context is full, 0 only computes the prompt."""
    stop: Sequence[str] = ()
    """Strings that end a completion; none of them is part of its text."""
    seed: int | None = None
    """Branch `i` draws from a generator seeded with `seed + i` (modulo 2³²), `0 ≤ seed < 2³²`; None is a random seed, reported by
    `Completions.seed`."""
    temperature: float = 0.8
    """Divides the logits before the draw; 0 or less takes the most likely token."""
    top_k: int = 40
    """Keeps the k most likely tokens; 0 or less keeps all."""
    top_p: float = 0.95
    """Keeps the smallest set of most likely tokens whose probabilities sum to this; 1 keeps all."""
    min_p: float = 0.05
    """Keeps tokens at least this fraction as likely as the most likely one; 0 keeps all."""
    repeat_penalty: float = 1.0
    """Divides (or, where negative, multiplies) the logits of tokens seen in the window; 1 is off."""
    repeat_last_n: int = 64
    """Window of the three penalties in tokens; 0 is off, -1 is the whole context."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of every token seen in the window."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token for each time it is seen in the window."""
    logit_bias: Sequence[tuple[int, float]] = ()
    """Added to the logits of these tokens; minus infinity bans a token."""
    ignore_eos: bool = False
    """Bans every end token."""
    n_probs: int = 0
    """Reports the log-probabilities of each chosen token and of this many most likely ones, 0 to 1,000; 0 is off."""
    slot: int | None = None
    """The slot that branch 0 takes where that one is free, from 0; None leaves the choice to the engine."""


class RequestOptions(TypedDict, total=False):
    """The fields of `Request` but the prompt, as keywords of `Engine.generate` and `Engine.complete`."""

    n: int
    max_tokens: int | None
    stop: Sequence[str]
    seed: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Sequence[tuple[int, float]]
    ignore_eos: bool
    n_probs: int
    slot: int | None
