"""What a caller asks for."""

from collections.abc import Sequence

import msgspec

__all__ = ["Request"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt, `n` completions. The defaults are llama-server's."""

    prompt: str | Sequence[int]
    n: int = 1
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    seed: int | None = None
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Sequence[tuple[int, float]] = ()
    ignore_eos: bool = False
    n_probs: int = 0
