"""Stand-ins for what varies in an otherwise literal response."""

import re
from collections.abc import Callable
from typing import Any

Json = Any
"""What a response holds: a test says what that is by comparing it."""


class Is:
    """Equal to whatever fulfils a condition."""

    def __init__(self, name: str, condition: Callable[[Any], bool]) -> None:
        self._name = name
        self._condition = condition

    def __eq__(self, other: object) -> bool:
        return self._condition(other)

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return f"<{self._name}>"


def matching(pattern: str) -> Json:
    return Is(f"text like {pattern}", lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None)


COUNT: Any = Is("a count", lambda value: type(value) is int and value >= 0)
NUMBER: Any = Is("a number that is not negative", lambda value: isinstance(value, int | float) and value >= 0)
LOGPROB: Any = Is("a log-probability", lambda value: isinstance(value, float) and value <= 0)
TEXT: Any = Is("a text", lambda value: isinstance(value, str))
SOME_TEXT: Any = Is("a text that is not empty", lambda value: isinstance(value, str) and value != "")
BOOLEAN: Any = Is("true or false", lambda value: isinstance(value, bool))
SEED: Any = Is("a seed", lambda value: type(value) is int and 0 <= value < 2**32)

TIMINGS: Json = {
    "cache_n": COUNT,
    "prompt_n": COUNT,
    "prompt_ms": NUMBER,
    "prompt_per_token_ms": NUMBER,
    "prompt_per_second": NUMBER,
    "predicted_n": COUNT,
    "predicted_ms": NUMBER,
    "predicted_per_token_ms": NUMBER,
    "predicted_per_second": NUMBER,
}
"""What both dialects say of the time."""

SETTINGS: Json = {
    "seed": SEED,
    "temperature": 0.8,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "typical_p": 1.0,
    "repeat_last_n": 64,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 64,
    "dry_sequence_breakers": ["\n", ":", '"', "*"],
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.9,
    "stop": [],
    "max_tokens": -1,
    "n_predict": -1,
    "n_keep": 0,
    "n_discard": 0,
    "n_indent": 0,
    "t_max_predict_ms": -1,
    "priority": 0,
    "max_token_gap_ms": -1,
    "ignore_eos": False,
    "stream": False,
    "logit_bias": [],
    "n_probs": 0,
    "min_keep": 0,
    "grammar": "",
    "grammar_lazy": False,
    "grammar_triggers": [],
    "preserved_tokens": [],
    "chat_format": "Content-only",
    "reasoning_format": "deepseek",
    "reasoning_in_content": False,
    "generation_prompt": "",
    "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "tfs_z", "typ_p", "top_p", "min_p", "xtc", "temperature"],
    "speculative.types": "none",
    "timings_per_token": False,
    "post_sampling_probs": False,
    "backend_sampling": False,
    "lora": [],
    "n_ctx": 1024,
    "model": "storyteller",
    "tfs_z": 1.0,
    "penalize_nl": True,
    "penalty_prompt_tokens": [],
    "use_penalty_prompt_tokens": False,
}
"""What a request that says nothing gets of the fixture `client`: llama-server's names of today, then those of 2024."""
