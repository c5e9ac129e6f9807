# ruff: noqa: PYI021 - The reference is read from here.
# Written by scripts/option_stubs.py.

from collections.abc import Mapping, Sequence
from typing import TypedDict

from weft.request.reasoning import GrammarTrigger, ReasoningConfig
from weft.request.schema import JsonSchema

class SamplingOptions(TypedDict, total=False):
    """Fields of `SamplingParams`, as keywords of `Engine.complete` and options of forks (see `Stream.fork`)."""

    samplers: Sequence[str]
    temperature: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    tfs_z: float
    xtc_probability: float
    xtc_threshold: float
    min_keep: int
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    penalize_nl: bool
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    adaptive_target: float
    adaptive_decay: float
    logit_bias: Sequence[tuple[int, float]] | Mapping[int, float]
    ignore_eos: bool
    max_tokens: int | None
    stop: str | Sequence[str]
    seed: int | None
    penalty_prompt: Sequence[int] | None
    logprobs: int | None
    post_sampling_probs: bool
    grammar: str | None
    json_schema: JsonSchema | None
    grammar_lazy: bool
    grammar_triggers: Sequence[GrammarTrigger]
    preserved_tokens: Sequence[str]
    reasoning: ReasoningConfig | None
    context_shift: bool
    n_keep: int | None
    n_discard: int
    max_predict_ms: float | None
    n_indent: int
