"""Every field of the samplers has an effect, and what it promises."""

import math
from typing import Any, Unpack

import pytest

import weft
from tests.helpers import How, branches
from weft import RequestOptions
from weft.fields.meta import FieldMeta
from weft.sampling_fields import parameter_meta

PROMPT = "Once upon a time, there was a little girl who"
ENDLESS: RequestOptions = {"max_tokens": 60, "ignore_eos": True, "seed": 7}
ALL: RequestOptions = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}

DRY: RequestOptions = {"dry_multiplier": 1.0, "dry_base": 1.5, "dry_allowed_length": 0, "dry_penalty_last_n": -1}


def both(options: RequestOptions, more: RequestOptions) -> RequestOptions:
    return {**options, **more}


async def tokens_of(engine: weft.Engine, **options: Unpack[RequestOptions]) -> tuple[int, ...]:
    completion = await engine.complete(PROMPT, **both(ENDLESS, options))
    return completion.choices[0].token_ids


CHANGES: dict[str, tuple[RequestOptions, RequestOptions]] = {
    "temperature": ({}, {"temperature": 1.5}),
    "dynatemp_range": ({}, {"dynatemp_range": 0.7}),
    "dynatemp_exponent": ({"dynatemp_range": 0.7}, {"dynatemp_exponent": 4.0}),
    "top_k": (ALL, {"top_k": 2}),
    "top_p": (ALL, {"top_p": 0.5}),
    "min_p": (ALL, {"min_p": 0.4}),
    "typical_p": (ALL, {"typical_p": 0.5}),
    "top_n_sigma": (ALL, {"top_n_sigma": 0.5}),
    "tfs_z": (ALL, {"tfs_z": 0.5}),
    "xtc_probability": ({**ALL, "xtc_threshold": 0.02}, {"xtc_probability": 1.0}),
    "xtc_threshold": ({**ALL, "xtc_probability": 1.0, "xtc_threshold": 0.5}, {"xtc_threshold": 0.02}),
    "min_keep": ({**ALL, "min_p": 1.0}, {"min_keep": 5}),
    "repeat_penalty": ({}, {"repeat_penalty": 1.5}),
    "repeat_last_n": ({"repeat_penalty": 1.5}, {"repeat_last_n": 2}),
    "presence_penalty": ({}, {"presence_penalty": 1.5}),
    "frequency_penalty": ({}, {"frequency_penalty": 1.5}),
    "penalty_prompt": ({"presence_penalty": 3.0}, {"penalty_prompt": list(range(300, 360))}),
    "dry_multiplier": ({**DRY, "dry_multiplier": 0.0}, {"dry_multiplier": 1.0}),
    "dry_base": (DRY, {"dry_base": 8.0}),
    "dry_allowed_length": (DRY, {"dry_allowed_length": 50}),
    "dry_penalty_last_n": (DRY, {"dry_penalty_last_n": 3}),
    "mirostat": ({}, {"mirostat": 1}),
    "mirostat 2": ({}, {"mirostat": 2}),
    "mirostat_tau": ({"mirostat": 2}, {"mirostat_tau": 1.0}),
    "mirostat_eta": ({"mirostat": 2}, {"mirostat_eta": 0.9}),
    "adaptive_p": ({"samplers": ["min_p"]}, {"samplers": ["min_p", "adaptive_p"], "adaptive_target": 0.2}),
    "adaptive_target": (
        {"samplers": ["min_p", "adaptive_p"], "adaptive_target": 0.2},
        {"adaptive_target": 0.9},
    ),
    "adaptive_decay": (
        {"samplers": ["min_p", "adaptive_p"], "adaptive_target": 0.2},
        {"adaptive_decay": 0.1},
    ),
    "logit_bias": ({"temperature": 0.0}, {"logit_bias": [(400, 50.0)]}),
    "samplers": ({}, {"samplers": ["temperature"]}),
    "order": ({"temperature": 2.5, "min_p": 0.2}, {"samplers": ["temperature", "top_k", "top_p", "min_p"]}),
    "one of them twice": ({"samplers": ["temperature"]}, {"samplers": ["temperature", "temperature"]}),
    "infill": ({}, {"samplers": ["top_k", "top_p", "infill"]}),
}


@pytest.mark.parametrize(("options", "changed"), CHANGES.values(), ids=CHANGES.keys())
async def test_each_field_changes_what_is_said(engine: weft.Engine, options: RequestOptions, changed: RequestOptions) -> None:
    before = await tokens_of(engine, **options)
    after = await tokens_of(engine, **both(options, changed))
    assert before != after
    assert await tokens_of(engine, **options) == before


NEUTRAL: dict[str, RequestOptions] = {
    "dynatemp_exponent": {"dynatemp_exponent": 3.0},
    "typical_p": {"typical_p": 1.0},
    "tfs_z": {"tfs_z": 1.5},
    "top_n_sigma": {"top_n_sigma": 0.0},
    "xtc": {"xtc_probability": 1.0, "xtc_threshold": 0.6},
    "dry": {"dry_multiplier": 1.0, "dry_base": 0.5},
    "mirostat": {"mirostat_tau": 1.0, "mirostat_eta": 0.9},
    "adaptive_p": {"adaptive_target": 0.3},
    "min_keep": {"min_keep": 1},
    "penalize_nl": {"penalize_nl": False},
    "penalty_prompt": {"penalty_prompt": [500, 501]},
}


@pytest.mark.parametrize("options", NEUTRAL.values(), ids=NEUTRAL.keys())
async def test_a_sampler_that_is_off_changes_nothing(engine: weft.Engine, options: RequestOptions) -> None:
    assert await tokens_of(engine, **options) == await tokens_of(engine)


@pytest.mark.parametrize(
    "names",
    [
        ["penalties", "dry", "top_n_sigma", "top_k", "tfs_z", "typ_p", "top_p", "min_p", "xtc", "temperature"],
        ["penalties", "dry", "top-n-sigma", "top-k", "tfs-z", "typical_p", "nucleus", "min-p", "xtc", "temp"],
        ["Penalties", "DRY", "topnsigma", "topk", "tfsz", "typ", "topp", "minp", "XTC", "Temperature"],
        list("edskfypmxt"),
    ],
    ids=["names", "hyphens", "joined", "letters"],
)
async def test_samplers_may_be_spelt_as_llama_server_spells_them(engine: weft.Engine, names: list[str]) -> None:
    assert await tokens_of(engine, samplers=names) == await tokens_of(engine)


async def test_an_unknown_sampler_is_refused_by_its_name(engine: weft.Engine) -> None:
    with pytest.raises(weft.InvalidRequestError, match="'top_q'") as refusal:
        await engine.complete(PROMPT, samplers=["top_k", "top_q"])
    assert refusal.value.param == "samplers"


REFUSED: list[RequestOptions] = [
    {"repeat_penalty": 0.0},
    {"repeat_last_n": -2},
    {"dry_penalty_last_n": -2},
    {"dry_allowed_length": -1},
    {"dry_sequence_breakers": ["a" * 2000]},
    {"adaptive_decay": 1.0},
    {"typical_p": float("nan")},
    {"xtc_probability": float("inf")},
    {"mirostat": 3},
    {"penalty_prompt": [1_000_000]},
    {"samplers": ["top_k"] * 65},
]


@pytest.mark.parametrize("options", REFUSED, ids=[next(iter(options)) for options in REFUSED])
async def test_what_has_no_meaning_is_refused_by_its_name(engine: weft.Engine, options: RequestOptions) -> None:
    with pytest.raises(weft.InvalidRequestError) as refusal:
        await engine.complete(PROMPT, **options)
    assert refusal.value.param == next(iter(options))


async def test_newlines_are_penalised_only_where_asked_for(engine: weft.Engine) -> None:
    (newline,) = engine.tokenize("a\n", add_special=False)[1:]
    options: RequestOptions = {
        "temperature": 0.0,
        "logit_bias": [(newline, 15.0)],
        "presence_penalty": 100.0,
        "samplers": ["penalties", "temperature"],
        "repeat_last_n": -1,
    }
    assert (await tokens_of(engine, **options)).count(newline) == 1
    assert (await tokens_of(engine, **both(options, {"penalize_nl": False}))).count(newline) > 10


async def test_a_breaker_ends_a_repetition(engine: weft.Engine) -> None:
    prompt = "one two three four. one two three"
    options: RequestOptions = {
        "max_tokens": 1,
        "samplers": ["dry", "temperature"],
        "temperature": 0.0,
        "dry_multiplier": 1000.0,
        "dry_penalty_last_n": -1,
    }
    *_, four = engine.tokenize("three four", add_special=False)
    bias = [(four, 100.0)]

    async def first(**more: Unpack[RequestOptions]) -> int:
        completion = await engine.complete(prompt, **both(both(options, {"logit_bias": bias}), more))
        return completion.choices[0].token_ids[0]

    assert await first() != four
    assert await first(dry_sequence_breakers=[" three"]) == four


async def test_log_probabilities_are_of_what_the_samplers_left_where_asked_for(engine: weft.Engine, how: How) -> None:
    options: RequestOptions = {"max_tokens": 8, "logprobs": 5, "top_k": 3, "top_p": 1.0, "min_p": 0.0, "seed": 3}
    (raw,) = await branches(engine, how, PROMPT, **options)
    (left,) = await branches(engine, how, PROMPT, **both(options, {"post_sampling_probs": True}))
    assert raw.token_ids == left.token_ids
    assert all(len(entry.top) == 5 for entry in raw.logprobs)
    assert all(len(entry.top) == 3 for entry in left.logprobs)
    for entry in left.logprobs:
        assert entry.chosen.token in [top.token for top in entry.top]
        assert sum(2.718281828**top.logprob for top in entry.top) == pytest.approx(1.0, abs=1e-4)


async def test_without_temperature_the_token_that_is_taken_was_certain(engine: weft.Engine) -> None:
    completion = await engine.complete(PROMPT, max_tokens=4, logprobs=5, temperature=0.0, post_sampling_probs=True)
    for entry in completion.choices[0].logprobs:
        assert [(top.token, top.logprob) for top in entry.top] == [(entry.chosen.token, 0.0)]


def beyond(meta: FieldMeta) -> list[float]:
    """Values just out of bounds, where there are bounds."""
    return [value for value in (meta.low - 1, meta.high + 1, meta.above) if math.isfinite(value)]


BEYOND = [(name, value) for name, meta in parameter_meta().items() for value in beyond(meta)]
AT = [(name, value) for name, meta in parameter_meta().items() for value in (meta.low, meta.high) if math.isfinite(value)]


@pytest.mark.parametrize(("name", "value"), BEYOND)
async def test_a_value_beyond_the_bounds_of_the_table_is_refused(engine: weft.Engine, name: str, value: float) -> None:
    options: Any = {name: value}
    # A count that needs more than 32 bits is held by its type, which for `min_keep` has one more.
    if (name, value) == ("min_keep", 2**31):
        options = {name: 2**32}
    with pytest.raises(weft.InvalidRequestError) as raised:
        engine.stream(PROMPT, **options)
    assert raised.value.param == name


@pytest.mark.parametrize(("name", "value"), AT)
async def test_a_value_at_the_bounds_of_the_table_is_taken(engine: weft.Engine, name: str, value: float) -> None:
    options: Any = {name: value}
    assert (await engine.complete(PROMPT, max_tokens=2, **options)).n_predicted <= 2


def test_every_field_of_the_table_has_an_effect_that_a_test_shows() -> None:
    elsewhere = {"samplers", "penalize_nl", "dry_sequence_breakers", "logit_bias", "ignore_eos"}
    assert parameter_meta().keys() - CHANGES.keys() <= elsewhere
