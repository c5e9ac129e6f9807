"""Conversion of fields to requests. Missing fields come from the settings, then from the defaults of `Request`."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from weft import InvalidRequestError, Request
from weft.config import MAX_DRAFT
from weft.fields.validation import check_range
from weft.request.internal import InternalRequest
from weft.sampling_fields import parameter_meta
from weft.server.inference.submission import BranchSubmission, Submission, each_branch
from weft.server.request_fields.adapters import adapters
from weft.server.request_fields.branches import branch_bodies
from weft.server.request_fields.constraint import constraint
from weft.server.request_fields.fields import BranchFields, CompletionFields
from weft.server.request_fields.paths import paths
from weft.server.request_fields.prompts import logit_bias, penalty_prompt, pieces, prompts
from weft.server.request_fields.reasoning import reasoning_parameter, tagged_reasoning, triggers
from weft.server.request_fields.samplers import samplers
from weft.settings import Settings

MAX_TOP_LOGPROBS = 20
"""Maximum of top logprobs in chats, as in OpenAI's API."""

MAX_LIMIT = 2**31 - 1
"""Upper bound for token limits; the context ends every completion long before."""

ANY_SLOT = -1
"""llama-server's value for any slot."""

RANDOM_SEED = 2**32 - 1
"""llama-server's value for a random seed, like -1."""

_N = ("n_cmpl", "n")
_LIMIT = ("n_predict", "max_completion_tokens", "max_tokens")

_PARAMETERS = parameter_meta()

_PARSED_FIELDS = ("samplers", "dry_base", "dry_sequence_breakers", "logit_bias")
"""`Sampling` fields with several spellings. As in llama-server, a `dry_base` below 1 selects the default."""

_COPIED_FIELDS = (
    *(name for name in _PARAMETERS if name not in _PARSED_FIELDS),
    *("n_discard", "n_indent", "post_sampling_probs", "priority"),
    *("distinct", "diverse", "beam_width", "length_penalty"),
)
"""Fields with the same name and meaning in bodies and requests."""

_CLAMPED = {name: meta.clamp for name, meta in _PARAMETERS.items() if meta.clamp is not None}
"""Fields that are clamped to bounds, as in llama-server."""

_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Request) if field.name != "prompt"}


def first_given(body: CompletionFields, *names: str) -> tuple[str, int | None]:
    """Returns the first of several alternative names that the body uses, with its value; or the last name and None."""
    return next(((name, value) for name in names if (value := getattr(body, name)) is not None), (names[-1], None))


def check_top_logprobs(n: int | None) -> None:
    """Refuses an invalid number of top logprobs in a chat."""
    check_range("top_logprobs", n, 0, MAX_TOP_LOGPROBS)


def n_completions(body: CompletionFields, settings: Settings) -> int:
    """Returns the number of completions per prompt."""
    _, n = first_given(body, *_N)
    return (settings.n or 1) if n is None else n


def submission(body: CompletionFields, settings: Settings, *, n_probs: tuple[str, int | None]) -> Submission:
    """Returns the submission of a body. `n_probs` is the value with the body's name for it."""
    name, value = n_probs
    bodies = branch_bodies(body)
    of_all = Submission(
        prompts=prompts(body.prompt),
        template=template(body, settings, n_probs=value or 0, n=len(bodies) or None),
        suffix=pieces(body.suffix_prompt or ""),
        logit_bias=_default(settings, "logit_bias") if body.logit_bias is None else logit_bias(body.logit_bias),
        penalty_prompt=penalty_prompt(body.penalty_prompt),
        slot=None if body.id_slot == ANY_SLOT else body.id_slot,
        sent_as={
            "n": first_given(body, *_N)[0],
            "logprobs": "n_probs" if value is None else name,  # If the body does not set it, only branches can.
            "max_predict_ms": "t_max_predict_ms",
            "adapters": "lora",
            "reasoning": reasoning_parameter(body),
            **_names(body),
        },
        reasoning_format=body.reasoning_format or settings.reasoning_format,
        stream=body.stream is True,
        timings_per_token=body.timings_per_token is True,
        response_fields=paths(body),
    )
    branches = each_branch(bodies, lambda branch: _branch(*branch, settings, of_all))
    return msgspec.structs.replace(of_all, branches=branches)


def _branch(own: BranchFields, alone: CompletionFields, settings: Settings, of_all: Submission) -> BranchSubmission:
    """Returns the options of one branch. Lists that it shares with the body are not parsed again.

    Args:
        own: The branch's fields.
        alone: The body with the branch's fields applied.
        settings: The server's settings.
        of_all: The submission without branches.
    """
    n_probs = (of_all.template.logprobs or 0) if own.n_probs is None else own.n_probs
    parsed = template(alone, settings, n_probs=n_probs, n=1)
    return BranchSubmission(
        template=parsed,
        logit_bias=of_all.logit_bias if own.logit_bias is None else logit_bias(own.logit_bias),
        penalty_prompt=of_all.penalty_prompt if own.penalty_prompt is None else penalty_prompt(own.penalty_prompt),
        suffix=of_all.suffix if own.suffix_prompt is None else pieces(own.suffix_prompt),
        has_seed=own.seed is not None,
        sent_as=of_all.sent_as | _names(alone) | ({} if own.n_probs is None else {"logprobs": "n_probs"}),
    )


def _names(body: CompletionFields) -> dict[str, str]:
    """Returns the names that a body uses for fields that branches may spell differently."""
    parsed = constraint(body)
    return {
        "max_tokens": first_given(body, *_LIMIT)[0],
        **({} if parsed is None else {"grammar": parsed.field, "json_schema": parsed.field}),
    }


def template(body: CompletionFields, settings: Settings, *, n_probs: int = 0, n: int | None = None) -> InternalRequest:
    """Returns the request of a body without prompt, biases and penalty prompt. `n` overrides the body's value."""

    def given(name: str) -> Any:  # noqa: ANN401 (each field has its own type)
        value = getattr(body, name)
        if value is None:
            return _default(settings, name)
        low, high = _CLAMPED.get(name, (value, value))
        return max(low, min(value, high))

    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    parsed, gap_ms = constraint(body), body.max_token_gap_ms
    return InternalRequest(
        prompt=(),
        n=n_completions(body, settings) if n is None else n,
        max_tokens=_limit(body, settings),
        stop=[word for word in stop if word] or list(_default(settings, "stop")),
        seed=_seed(given("seed")),
        samplers=samplers(body.samplers or "") or tuple(_default(settings, "samplers")),
        dry_base=_default(settings, "dry_base") if body.dry_base is None or body.dry_base < 1 else body.dry_base,
        dry_sequence_breakers=_breakers(body, settings),
        logprobs=n_probs or None,
        grammar=_default(settings, "grammar") if parsed is None else parsed.grammar,
        json_schema=_default(settings, "json_schema") if parsed is None else parsed.json_schema,
        grammar_lazy=body.grammar_lazy is True,
        grammar_triggers=triggers(body),
        preserved_tokens=tuple(body.preserved_tokens or ()),
        reasoning=tagged_reasoning(body, settings),
        # The beams of a search share their context, which must not be shifted.
        context_shift=False if body.beam_width is not None or body.diverse == "beam" else _default(settings, "context_shift"),
        n_keep=_n_keep(body, settings),
        adapters=adapters(body.lora),
        # The engine applies the server's default, so None must be preserved.
        max_token_gap_ms=None if gap_ms is None or gap_ms <= 0 else gap_ms,
        max_predict_ms=_max_predict_ms(body),
        max_draft=_max_draft(body),
        prediction=None if body.prediction is None else body.prediction.text or None,
        explain_cache=body.explain_cache is True,
        use_cache=settings.cache_prompt if body.cache_prompt is None else body.cache_prompt,
        # Only streams can report progress.
        report_progress=body.stream is True and (body.return_progress is True or body.timings_per_token is True),
        **{name: given(name) for name in _COPIED_FIELDS},
    )


def ping_s(body: CompletionFields, settings: Settings) -> float | None:
    """Returns the seconds of silence after which the stream sends a comment; None disables it."""
    if body.sse_ping_interval is None:
        return settings.ping_s
    return body.sse_ping_interval if body.sse_ping_interval > 0 else None


def _default(settings: Settings, name: str) -> Any:  # noqa: ANN401 (each field has its own type)
    """Returns the default of a missing field: the setting of the same name, or else the default of `Request`."""
    return getattr(settings.sampling, name) if name in _PARAMETERS else getattr(settings, name, _DEFAULTS[name])


def _limit(body: CompletionFields, settings: Settings) -> int | None:
    name, limit = first_given(body, *_LIMIT)
    if limit is None:
        return settings.n_predict
    check_range(name, limit, -1)
    return None if limit == -1 else min(limit, MAX_LIMIT)


def _seed(seed: int | None) -> int | None:
    """Returns a 32-bit seed; larger values wrap, as in llama-server."""
    return None if seed in (None, -1, RANDOM_SEED) else seed % 2**32


def _breakers(body: CompletionFields, settings: Settings) -> Sequence[str]:
    if body.dry_sequence_breakers is None:
        return _default(settings, "dry_sequence_breakers")  # type: ignore[no-any-return]
    if not body.dry_sequence_breakers:
        raise InvalidRequestError(
            "dry_sequence_breakers", "dry_sequence_breakers is empty; it must be a list of one text or more"
        )
    return body.dry_sequence_breakers


def _n_keep(body: CompletionFields, settings: Settings) -> int | None:
    if body.n_keep is None:
        return _default(settings, "n_keep")  # type: ignore[no-any-return]
    check_range("n_keep", body.n_keep, -1)
    return None if body.n_keep == -1 else min(body.n_keep, MAX_LIMIT)


def _max_predict_ms(body: CompletionFields) -> float | None:
    ms = body.t_max_predict_ms
    if ms is not None and not math.isfinite(ms):
        raise InvalidRequestError("t_max_predict_ms", f"t_max_predict_ms is {ms}; it must be a finite number")
    return None if ms is None or ms <= 0 else min(ms, float(MAX_LIMIT))


def _max_draft(body: CompletionFields) -> int | None:
    if body.speculative_type == "none":
        return 0
    return None if body.speculative_n_max is None or body.speculative_n_max < 0 else min(body.speculative_n_max, MAX_DRAFT)
