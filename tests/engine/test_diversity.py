"""Completions that are drawn together, and searches: on a real model, by counting what is computed."""

import asyncio
import time
from typing import Any, Literal

import pytest

import weft
from tests.helpers import How, branches, ended_by, n_processing, prompt_of, wait_until
from weft import InvalidRequestError

OPEN: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""All that the model could say."""


async def test_distinct_completions_begin_with_different_tokens(engine: weft.Engine, how: How) -> None:
    prompt = prompt_of(60, f"distinct {how}")
    answer = await branches(
        engine, how, prompt, n=12, max_tokens=3, seed=1, distinct=True, temperature=0.5, ignore_eos=True, **OPEN
    )
    assert len({branch.token_ids[0] for branch in answer}) == 12
    assert sum(branch.usage.n_computed for branch in answer) == 60


async def test_completions_that_no_first_token_is_left_for_are_empty(engine: weft.Engine) -> None:
    answer = await engine.complete(prompt_of(30, "few"), n=5, max_tokens=3, seed=1, distinct=True, **OPEN | {"top_k": 2})
    assert [len(branch.token_ids) for branch in answer.choices] == [3, 3, 0, 0, 0]
    assert [ended_by(branch) for branch in answer.choices[2:]] == ["end"] * 3


async def test_code_points_part_the_texts_that_independent_draws_leave_together(engine: weft.Engine) -> None:
    prompt = "Once upon a time, there was a"

    async def n_texts(diverse: Literal["arithmetic"] | None) -> int:
        answers = [
            await engine.complete(prompt, n=16, max_tokens=2, seed=seed, diverse=diverse, temperature=0.7, ignore_eos=True)
            for seed in range(8)
        ]
        return sum(len(set(answer.texts)) for answer in answers)

    assert await n_texts("arithmetic") > await n_texts(None)


async def logprob_of(engine: weft.Engine, prompt: str, tokens: list[int]) -> float:
    """What the model makes of a text, told as any prompt's log-probabilities are."""
    whole = [*engine.tokenize(prompt), *tokens]
    told = await engine.complete(whole, max_tokens=0, prompt_logprobs=0, prompt_logprobs_from=len(whole) - len(tokens))
    return sum(one.chosen.logprob for one in told.prompt_logprobs[-len(tokens) :] if one is not None)


async def test_a_search_computes_one_token_for_each_beam_and_step(engine: weft.Engine, how: How) -> None:
    prompt = prompt_of(80, f"search {how}")
    before, began = engine.stats(), time.monotonic()
    answer = await branches(engine, how, prompt, n=2, beam_width=4, max_tokens=10, temperature=0, ignore_eos=True, **OPEN)
    after = engine.stats()
    assert [len(branch.token_ids) for branch in answer] == [10, 10]
    assert after.n_computed - before.n_computed == 80
    assert after.n_predicted - before.n_predicted == 4 * 10
    # The first step has one beam, and the last token of each is never computed.

    def n_rows() -> int:
        return sum(step.n_rows for step in engine.recent_steps() if step.started >= began - 0.001)

    # A step is over when its events can be read already.
    await wait_until(lambda: n_rows() == 80 + 4 * 9)
    scores = [branch.score for branch in answer]
    assert all(score is not None for score in scores)
    assert scores == sorted(scores, reverse=True, key=lambda score: score or 0.0)


async def test_a_wider_search_finds_a_likelier_text_whose_score_is_its_mean_log_probability(engine: weft.Engine) -> None:
    prompt = "Once upon a time, there was a little girl"
    found = {}
    for width in (2, 4):
        answer = await engine.complete(prompt, beam_width=width, max_tokens=12, temperature=0, **OPEN)
        [branch] = answer.choices
        assert branch.score is not None
        mean = await logprob_of(engine, prompt, list(branch.token_ids)) / len(branch.token_ids)
        assert branch.score == pytest.approx(mean, abs=2e-3)
        found[width] = branch.score
    greedy = await engine.complete(prompt, max_tokens=12, temperature=0)
    mean = await logprob_of(engine, prompt, list(greedy.choices[0].token_ids)) / len(greedy.choices[0].token_ids)
    assert found[4] >= mean - 1e-3


async def test_a_search_is_the_same_each_time_and_one_that_draws_with_each_seed(engine: weft.Engine) -> None:
    prompt = "A dog and a cat"

    async def texts(seed: int, diverse: Literal["beam"] | None = None) -> list[str]:
        answer = await engine.complete(prompt, n=3, beam_width=3, max_tokens=8, seed=seed, diverse=diverse)
        return list(answer.texts)

    assert await texts(seed=1) == await texts(seed=2)
    drawn = await texts(seed=1, diverse="beam")
    assert drawn == await texts(seed=1, diverse="beam")
    assert len(set(drawn)) == 3
    assert len({tuple(await texts(seed=seed, diverse="beam")) for seed in range(4)}) > 1


async def test_a_grammar_and_stop_strings_hold_each_beam(engine: weft.Engine) -> None:
    grammar = 'root ::= ("red" | "green" | "blue") " " [0-9] [0-9]? [0-9]?'
    answer = await engine.complete("Colour:", n=4, beam_width=4, max_tokens=12, grammar=grammar, stop="5", logprobs=1)
    assert len(set(answer.texts)) == 4
    for text in answer.texts:
        colour, _, number = text.partition(" ")
        assert colour in ("red", "green", "blue")
        assert "5" not in number
    assert all(len(branch.logprobs) == len(branch.token_ids) for branch in answer.choices)


async def test_a_cancelled_search_leaves_its_slots(engine: weft.Engine) -> None:
    search = asyncio.ensure_future(engine.complete(prompt_of(30, "cancelled"), beam_width=4, max_tokens=900, ignore_eos=True))
    await wait_until(lambda: n_processing(engine) == 4)
    search.cancel()
    with pytest.raises(asyncio.CancelledError):
        await search
    answer = await engine.complete(prompt_of(30, "after"), n=4, max_tokens=2)
    assert len(answer.choices) == 4


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"beam_width": 1}, "beam_width"),
        ({"beam_width": 5}, "beam_width"),
        ({"beam_width": 2, "n": 3}, "n"),
        ({"beam_width": 2, "length_penalty": 11}, "length_penalty"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"beam_width": 2, "diverse": "beam", "length_penalty": 0.0}, "length_penalty"),
        ({"beam_width": 2, "diverse": "arithmetic"}, "diverse"),
        ({"diverse": "both"}, "diverse"),
        ({"diverse": "beam"}, "diverse"),
        ({"distinct": True, "beam_width": 2}, "distinct"),
        ({"distinct": True, "n": 2, "mirostat": 2}, "mirostat"),
        ({"beam_width": 2, "mirostat": 1}, "mirostat"),
        ({"beam_width": 2, "xtc_probability": 0.5}, "xtc_probability"),
        ({"beam_width": 2, "context_shift": True}, "context_shift"),
        ({"beam_width": 2, "max_predict_ms": 100.0}, "max_predict_ms"),
        ({"beam_width": 2, "max_tokens": 0}, "max_tokens"),
        ({"beam_width": 2, "samplers": ["adaptive_p"]}, "samplers"),
        ({"beam_width": 2, "branches": [{}, {}]}, "branches"),
        ({"distinct": True, "branches": [{}, {}]}, "branches"),
    ],
    ids=str,
)
async def test_what_does_not_go_together_is_refused_by_name(engine: weft.Engine, asked: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        await engine.complete("Once", **{"max_tokens": 2} | asked)
    assert refused.value.param == param
