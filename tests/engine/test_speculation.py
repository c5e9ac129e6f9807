"""Drafts change no bit of what is generated, come from text of the same owner alone, and save decodes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Unpack

import pytest

import weft
from tests.helpers import FixedDraftCosts, prompt_of
from weft import Choice, InvalidConfigError, InvalidRequestError, RequestOptions
from weft.request.internal import InternalRequest

PROMPT = "Once upon a time, there was"
SCHEMA = """{
    "type": "object",
    "properties": {"favourite animal": {"enum": ["crow", "crab", "cow"]}, "is it friendly": {"type": "boolean"}},
    "required": ["favourite animal", "is it friendly"],
    "additionalProperties": false
}"""


@pytest.fixture(scope="module")
async def engine() -> AsyncIterator[weft.Engine]:
    """An engine whose results do not depend on the batch, on any CPU."""
    config = FixedDraftCosts(kernels="weft", n_slots=4, n_ctx=8192, kv_unified=True, n_threads=1)
    async with weft.Engine(config=config) as engine:
        yield engine


def results(choices: Sequence[Choice]) -> list[tuple[object, ...]]:
    """Everything that a choice has but its usage."""
    return [(choice.text, choice.token_ids, choice.logprobs, choice.finish_reason, choice.stop_reason) for choice in choices]


def n_accepted(choices: Sequence[Choice]) -> int:
    """Number of drafted tokens that were generated."""
    return sum(choice.usage.n_draft_accepted for choice in choices)


async def generated(
    engine: weft.Engine, prompt: str | list[int] = PROMPT, **options: Unpack[RequestOptions]
) -> tuple[list[Choice], int]:
    """The choices of a request of at most 100 tokens, and the number of decodes."""
    n_before = engine.stats().n_decodes
    given: RequestOptions = {"max_tokens": 100, **options}
    completion = await engine.complete(prompt, **given)
    return list(completion.choices), engine.stats().n_decodes - n_before


def without_drafts(options: RequestOptions) -> RequestOptions:
    """The same request without drafts."""
    return {**options, "max_draft": 0}


REQUESTS: dict[str, RequestOptions] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"seed": 3},
    "hot": {"seed": 4, "temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "four completions": {"seed": 5, "n": 4},
    "a schema": {"seed": 6, "json_schema": SCHEMA},
    "stop strings": {"seed": 3, "stop": ["blu", "ed the"]},
    "penalties": {"seed": 7, "repeat_penalty": 1.2, "presence_penalty": 0.5, "dry_multiplier": 0.8},
    "mirostat": {"seed": 8, "mirostat": 2},
    "samplers with random numbers of their own": {"seed": 9, "xtc_probability": 0.5, "xtc_threshold": 0.05},
}


def test_tokens_are_drafted_where_results_are_repeatable(engine: weft.Engine) -> None:
    assert engine.is_repeatable
    assert engine.no_speculation_reason is None


@pytest.mark.parametrize("options", REQUESTS.values(), ids=REQUESTS.keys())
async def test_text_tokens_and_logprobs_are_equal_with_and_without_drafts(engine: weft.Engine, options: RequestOptions) -> None:
    reported: RequestOptions = {**options, "logprobs": 3}
    off, n_decodes_off = await generated(engine, **without_drafts(reported))
    assert all(choice.usage.n_drafted == 0 for choice in off)

    # Text that is generated again repeats itself.
    assert results((await generated(engine, **reported))[0]) == results(off)
    on, n_decodes_on = await generated(engine, **reported)
    assert results(on) == results(off)
    assert all(choice.usage.n_draft_accepted <= choice.usage.n_drafted for choice in on)
    assert n_accepted(on) > 0
    assert n_decodes_on < n_decodes_off


async def test_concurrent_requests_generate_what_each_generates_alone(engine: weft.Engine) -> None:
    requests: list[RequestOptions] = [{"seed": seed, "logprobs": 1, "temperature": 1.0} for seed in range(20, 28)]
    off = [results((await generated(engine, **without_drafts(options)))[0]) for options in requests]

    # Texts that are generated again repeat themselves.
    for _ in range(2):
        answers = await asyncio.gather(*(generated(engine, **options) for options in requests))
        assert [results(choices) for choices, _ in answers] == off
    assert sum(n_accepted(choices) for choices, _ in answers) > 100


async def test_a_text_that_is_generated_again_is_drafted(engine: weft.Engine) -> None:
    prompt = prompt_of(40, "again")
    options: RequestOptions = {"seed": 11, "ignore_eos": True}
    # An engine that has measured no step may compute a prompt in several.
    await generated(engine, prompt_of(40, "before"), **options)
    [first], n_first = await generated(engine, prompt, **options)
    assert n_first == 100 - first.usage.n_draft_accepted
    before = engine.stats().speculation.sources["text"]
    [again], n_decodes = await generated(engine, prompt, **options)
    after = engine.stats().speculation.sources["text"]
    assert again.text == first.text
    assert again.usage.n_draft_accepted > 50
    # Each accepted token saves one decode.
    assert n_decodes == 100 - again.usage.n_draft_accepted
    assert after.n_drafted - before.n_drafted == again.usage.n_drafted
    assert after.n_accepted - before.n_accepted == again.usage.n_draft_accepted
    assert after.n_drafts > before.n_drafts
    assert after.time > before.time


async def test_accepted_tokens_are_counted_by_position(engine: weft.Engine) -> None:
    stats = engine.stats().speculation
    assert repr(stats) == f"SpeculationStats({', '.join(f'{name}={source!r}' for name, source in stats.sources.items())})"
    assert sum(stats.n_accepted_at) == sum(source.n_accepted for source in stats.sources.values()) > 0
    assert stats.n_accepted_at[0] == max(stats.n_accepted_at)


async def test_what_a_schema_forces_is_drafted_and_accepted(engine: weft.Engine) -> None:
    before = engine.stats().speculation.sources["constraint"]
    for seed in range(40, 44):
        await generated(engine, prompt_of(20, f"schema {seed}"), seed=seed, json_schema=SCHEMA)
    after = engine.stats().speculation.sources["constraint"]
    assert after.n_accepted > before.n_accepted


async def test_a_prediction_is_drafted() -> None:
    prompt = prompt_of(40, "predicted")

    async def answer(prediction: str | Sequence[int] | None) -> tuple[Choice, int]:
        """The answer of an engine without earlier texts, and its decodes."""
        async with weft.Engine(config=FixedDraftCosts(kernels="weft", n_slots=1, n_ctx=1024, n_threads=1)) as engine:
            [choice], n_decodes = await generated(engine, prompt, seed=12, ignore_eos=True, prediction=prediction)
            return choice, n_decodes

    without, n_without = await answer(None)
    n_own = without.usage.n_draft_accepted
    by_tokens, n_by_tokens = await answer(without.token_ids)
    by_text, _ = await answer(without.text)
    wrong, _ = await answer("A crab ran away. " * 10)
    assert {choice.token_ids for choice in (without, by_tokens, by_text, wrong)} == {without.token_ids}
    assert by_tokens.usage.n_draft_accepted > n_own + 30
    assert by_text.usage.n_draft_accepted > n_own
    assert n_by_tokens < n_without - 30


async def test_another_owner_gets_no_draft_of_a_text(engine: weft.Engine) -> None:
    options: dict[str, Any] = {"prompt": prompt_of(40, "owners"), "seed": 13, "max_tokens": 60, "ignore_eos": True}

    async def of(owner: str) -> Choice:
        completion = await engine.complete(InternalRequest(owner=owner, **options))
        return completion.choices[0]

    first, other, again = await of("one"), await of("two"), await of("one")
    assert first.token_ids == other.token_ids == again.token_ids
    assert again.usage.n_draft_accepted > 40
    # A text drafts for itself only where it repeats itself, which it does for each owner alike.
    assert other.usage.n_draft_accepted < 10


async def test_an_owner_without_a_text_that_matches_gets_no_draft(engine: weft.Engine) -> None:
    # The penalty makes each token of the text another one, so that no text drafts for itself.
    prompt = list(dict.fromkeys(prompt_of(60, "distinct")))
    bias = [(token, -100.0) for token in prompt]

    async def of(owner: str) -> Choice:
        request = InternalRequest(prompt=prompt, owner=owner, max_tokens=12, seed=2, logit_bias=bias, presence_penalty=100.0)
        return (await engine.complete(request)).choices[0]

    first = await of("a")
    assert len(set(first.token_ids)) == len(first.token_ids)
    assert first.usage.n_drafted == 0
    other, again = await of("b"), await of("a")
    assert first.token_ids == other.token_ids == again.token_ids
    assert other.usage.n_drafted == 0
    assert again.usage.n_draft_accepted > 0


async def test_no_draft_is_longer_than_allowed(engine: weft.Engine) -> None:
    prompt = prompt_of(40, "length")
    await generated(engine, prompt, seed=14, ignore_eos=True)
    before = engine.stats().speculation.sources["text"]
    [again], n_decodes = await generated(engine, prompt, seed=14, ignore_eos=True, max_draft=8)
    after = engine.stats().speculation.sources["text"]
    assert after.n_drafted - before.n_drafted <= 8 * (after.n_drafts - before.n_drafts)
    assert n_decodes > 100 // 9
    assert again.usage.n_draft_accepted > 0


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"speculation": "off"}, "it is turned off"), ({"max_draft": 0}, "the maximum length of drafts is 0")],
    ids=["off", "length 0"],
)
async def test_an_engine_may_draft_nothing(settings: dict[str, Any], reason: str) -> None:
    async with weft.Engine(kernels="weft", n_slots=2, n_ctx=1024, n_threads=1, **settings) as engine:
        assert engine.no_speculation_reason == reason
        for _ in range(2):
            [choice], n_decodes = await generated(engine, seed=3, prediction=PROMPT)
            assert choice.usage.n_drafted == 0
        assert n_decodes == choice.usage.n_predicted
        assert all(source.n_drafts == 0 for source in engine.stats().speculation.sources.values())


async def test_a_match_must_be_as_long_as_the_engine_requires() -> None:
    config = FixedDraftCosts(kernels="weft", n_slots=1, n_ctx=1024, n_threads=1, min_draft_match=32)
    async with weft.Engine(config=config) as engine:
        [first], _ = await generated(engine, seed=3)
        [second], _ = await generated(engine, seed=3)
    assert first.usage.n_drafted == 0
    assert second.usage.n_draft_accepted > 0
    assert second.text == first.text


@pytest.mark.parametrize(
    ("field", "value"), [("max_draft", 65), ("max_draft", -1), ("max_draft", "a"), ("prediction", 3), ("prediction", [-1])]
)
async def test_a_wrong_field_is_named(engine: weft.Engine, field: str, value: object) -> None:
    options: Any = {field: value}
    with pytest.raises(InvalidRequestError) as raised:
        await engine.complete(PROMPT, max_tokens=1, **options)
    assert raised.value.param == field


@pytest.mark.parametrize(("setting", "value"), [("max_draft", 65), ("min_draft_match", 0), ("speculation", "maybe")])
def test_a_wrong_setting_is_named(setting: str, value: object) -> None:
    options: Any = {setting: value}
    with pytest.raises(InvalidConfigError, match=setting):
        weft.Engine(**options)
