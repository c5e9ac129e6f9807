"""The settings of a request as they took effect: llama-server's names of today, and those that it had in 2024."""

from typing import Any

import msgspec

from weft import Request

__all__ = ["GenerationSettings", "generation_settings"]


class GenerationSettings(msgspec.Struct, kw_only=True):
    """The settings that took effect. A limit of -1 is none."""

    seed: int
    temperature: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int
    top_p: float
    min_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    typical_p: float
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: list[str]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    adaptive_target: float
    adaptive_decay: float
    stop: list[str]
    max_tokens: int
    n_predict: int
    n_keep: int
    n_discard: int
    n_indent: int
    t_max_predict_ms: float
    priority: int
    max_token_gap_ms: float
    ignore_eos: bool
    stream: bool
    logit_bias: list[dict[str, Any]]
    n_probs: int
    min_keep: int
    grammar: str
    json_schema: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    grammar_lazy: bool = False
    grammar_triggers: list[Any] = []
    preserved_tokens: list[int] = []
    chat_format: str = "Content-only"
    reasoning_format: str = "none"
    reasoning_in_content: bool = False
    generation_prompt: str = ""
    samplers: list[str]
    speculative_types: str = msgspec.field(name="speculative.types", default="none")
    timings_per_token: bool
    post_sampling_probs: bool
    backend_sampling: bool = False
    lora: list[Any] = []

    # What llama-server told besides in 2024.
    n_ctx: int
    model: str
    tfs_z: float
    penalize_nl: bool
    penalty_prompt_tokens: list[int]
    use_penalty_prompt_tokens: bool


_TRANSLATED = {
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "grammar",
    "json_schema",
    "logit_bias",
    "max_token_gap_ms",
    "max_tokens",
    "n_keep",
    "repeat_last_n",
    "samplers",
    "seed",
    "stop",
}

_AS_THEY_ARE = sorted(
    {field.name for field in msgspec.structs.fields(GenerationSettings)}
    & {field.name for field in msgspec.structs.fields(Request)} - _TRANSLATED
)
"""Fields whose values are the request's own."""


def generation_settings(
    request: Request, *, seed: int, n_ctx: int, model: str, stream: bool = False, timings_per_token: bool = False
) -> GenerationSettings:
    """The settings of one branch in a context of `n_ctx` tokens."""
    limit = -1 if request.max_tokens is None else request.max_tokens
    same = {name: getattr(request, name) for name in _AS_THEY_ARE}
    return GenerationSettings(
        **same,
        seed=seed,
        repeat_last_n=n_ctx if request.repeat_last_n == -1 else request.repeat_last_n,
        dry_penalty_last_n=n_ctx if request.dry_penalty_last_n == -1 else request.dry_penalty_last_n,
        dry_sequence_breakers=list(request.dry_sequence_breakers),
        stop=list(request.stop),
        max_tokens=limit,
        n_predict=limit,
        n_keep=-1 if request.n_keep is None else request.n_keep,
        t_max_predict_ms=-1 if request.max_predict_ms is None else request.max_predict_ms,
        max_token_gap_ms=-1 if request.max_token_gap_ms is None else request.max_token_gap_ms,
        stream=stream,
        # JSON has no infinity: a banned token is `false`, as it is in a request.
        logit_bias=[{"token": token, "bias": bias if bias > float("-inf") else False} for token, bias in request.biases],
        grammar=request.grammar or "",
        json_schema=msgspec.UNSET if request.schema is None else msgspec.Raw(request.schema.encode()),
        samplers=list(request.samplers),
        timings_per_token=timings_per_token,
        n_ctx=n_ctx,
        model=model,
        penalty_prompt_tokens=list(request.penalty_prompt or ()),
        use_penalty_prompt_tokens=request.penalty_prompt is not None,
    )
