"""The effective settings of a request, with llama-server's current names and its names of 2024."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast, get_type_hints

import msgspec

from weft import GrammarTrigger, Request
from weft._native import Biases, TokenIds
from weft.engine import Engine
from weft.sampling_fields import Sampling

_FIELDS: tuple[str | tuple[Any, ...], ...] = (
    ("seed", int),
    *("temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "top_n_sigma", "xtc_probability"),
    *("xtc_threshold", "typical_p", "repeat_last_n", "repeat_penalty", "presence_penalty", "frequency_penalty"),
    *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
    ("dry_sequence_breakers", list[str]),
    *("mirostat", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay"),
    ("stop", list[str]),
    ("max_tokens", int),
    ("n_predict", int),
    ("n_keep", int),
    ("n_discard", int),
    ("n_indent", int),
    ("t_max_predict_ms", float),
    ("priority", int),
    ("max_token_gap_ms", float),
    "ignore_eos",
    ("stream", bool),
    ("logit_bias", list[dict[str, Any]]),
    ("n_probs", int),
    "min_keep",
    ("grammar", str),
    ("json_schema", msgspec.Raw | msgspec.UnsetType, msgspec.UNSET),
    ("grammar_lazy", bool, False),
    ("grammar_triggers", list[Any], msgspec.field(default_factory=list)),
    ("preserved_tokens", list[str], msgspec.field(default_factory=list)),
    ("chat_format", str, "Content-only"),
    ("reasoning_format", str),
    ("reasoning_in_content", bool),
    ("generation_prompt", str, ""),
    ("samplers", list[str]),
    ("speculative_types", str, msgspec.field(name="speculative.types", default="none")),
    ("timings_per_token", bool),
    ("post_sampling_probs", bool),
    ("backend_sampling", bool, False),
    ("lora", list[dict[str, float]]),
    # Fields of llama-server in 2024.
    ("n_ctx", int),
    ("model", str),
    "tfs_z",
    "penalize_nl",
    ("penalty_prompt_tokens", list[int]),
    ("use_penalty_prompt_tokens", bool),
)
"""Fields in llama-server's order: its own with types, fields of `Sampling` by name only."""

if TYPE_CHECKING:

    class GenerationSettings(msgspec.Struct, kw_only=True):
        """The settings that took effect. A limit of -1 is none."""

        json_schema: msgspec.Raw | msgspec.UnsetType

        def __init__(self, **settings: Any) -> None: ...  # noqa: ANN401 (any of the fields)
else:
    _TYPES = get_type_hints(Sampling)

    GenerationSettings = msgspec.defstruct(
        "GenerationSettings",
        [(field, _TYPES[field]) if isinstance(field, str) else field for field in _FIELDS],
        kw_only=True,
        module=__name__,
        namespace={"__doc__": "The settings that took effect. A limit of -1 is none."},
    )

_TRANSLATED = ("repeat_last_n", "dry_penalty_last_n")
"""`Sampling` fields for which the effective value in this context is reported."""

_COPIED_FIELDS = (
    *(field for field in _FIELDS if isinstance(field, str) and field not in _TRANSLATED),
    *("n_discard", "n_indent", "post_sampling_probs", "priority"),
)
"""Fields that are copied from the request."""


def generation_settings(
    request: Request,
    engine: Engine,
    model: str,
    *,
    seed: int,
    stream: bool = False,
    timings_per_token: bool = False,
    reasoning_format: str,
) -> GenerationSettings:
    """Returns the settings of one branch.

    Args:
        request: The branch's request.
        engine: The engine that computes it.
        model: Name of the model.
        seed: The branch's seed.
        stream: Whether the response is streamed.
        timings_per_token: Whether each event includes timings.
        reasoning_format: Format of reasoning; `auto` is resolved.
    """
    n_ctx = engine.limits.n_ctx_slot
    limit = -1 if request.max_tokens is None else request.max_tokens
    same = {name: getattr(request, name) for name in _COPIED_FIELDS}
    return GenerationSettings(
        **same,
        seed=seed,
        speculative_types=_speculative_types(engine, request),
        n_probs=request.logprobs or 0,
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
        logit_bias=_biases(request.biases, engine.model.end_tokens() if request.ignore_eos else ()),
        grammar=request.grammar or "",
        json_schema=msgspec.UNSET if request.schema is None else msgspec.Raw(request.schema.encode()),
        grammar_lazy=request.grammar_lazy,
        grammar_triggers=[_trigger(trigger) for trigger in request.grammar_triggers],
        preserved_tokens=list(request.preserved_tokens),
        samplers=list(request.samplers),
        timings_per_token=timings_per_token,
        reasoning_format="deepseek" if reasoning_format == "auto" else reasoning_format,
        # Complete responses include the reasoning in both places too, but llama-server sets this for streams only.
        reasoning_in_content=stream and reasoning_format == "deepseek-legacy",
        lora=[{"id": adapter, "scale": scale} for adapter, scale in request.adapters or ()],
        n_ctx=n_ctx,
        model=model,
        penalty_prompt_tokens=_tokens(request.penalty_prompt or ()),
        use_penalty_prompt_tokens=request.penalty_prompt is not None,
    )


def _speculative_types(engine: Engine, request: Request) -> str:
    """Returns what drafts for a request, as llama-server does: a list, in which the draft model is last.

    The text index is reported as ngram-mod, the only one of llama-server's types of text that shares texts between requests.
    """
    if engine.no_speculation_reason is not None or request.max_draft == 0:
        return "none"
    return "ngram-mod" if engine.draft_type is None else f"ngram-mod,{engine.draft_type}"


_KINDS = ("token", "word", "pattern", "pattern_full")


def _trigger(trigger: GrammarTrigger) -> dict[str, Any]:
    token = {} if trigger.token is None else {"token": trigger.token}
    return {"type": _KINDS.index(trigger.kind), "value": trigger.value, **token}


# Long lists are encoded once for all branches.


def _biases(biases: Sequence[tuple[int, float]], banned: Sequence[int]) -> list[dict[str, Any]]:
    """Returns the request's biases, preceded by the end tokens that are banned, as in llama-server."""
    # JSON has no infinity: a banned token is `false`, as in requests.
    first: list[dict[str, Any]] = [{"token": token, "bias": False} for token in banned]
    if not isinstance(biases, Biases):
        return first + [{"token": token, "bias": bias if bias > float("-inf") else False} for token, bias in biases]
    written = biases.json()
    if first:
        comma = b"" if written == b"[]" else b","
        written = msgspec.json.encode(first)[:-1] + comma + written[1:]
    return cast("list[dict[str, Any]]", msgspec.Raw(written))


def _tokens(tokens: Sequence[int]) -> list[int]:
    return cast("list[int]", msgspec.Raw(tokens.json())) if isinstance(tokens, TokenIds) else list(tokens)
