"""Texts longer than the model was trained for, whose older tokens share positions."""

from collections.abc import AsyncIterator

import pytest

import weft
from tests.helpers import prompt_of
from weft import RequestOptions
from weft.engine_options import EngineOptions

GREEDY: RequestOptions = {"max_tokens": 100, "temperature": 0, "ignore_eos": True}


@pytest.fixture
async def grouped() -> AsyncIterator[weft.Engine]:
    async with weft.Engine(
        n_slots=2, n_ctx=4096, kv_unified=True, n_threads=1, n_batch=256, grp_attn_n=4, grp_attn_w=64
    ) as grouped:
        yield grouped


async def test_a_text_may_be_longer_than_the_model_was_trained_for_and_is_the_same_each_time(grouped: weft.Engine) -> None:
    assert grouped.model.n_ctx_train == 1024
    prompt = prompt_of(1_500, "longer than trained")
    first = await grouped.complete(prompt, **GREEDY)
    again = await grouped.complete(prompt, **GREEDY)
    assert len(first.choices[0].token_ids) == 100
    # llama.cpp's kernels sum otherwise where a step has other rows.
    if grouped.compute.attention == "weft":
        assert again.choices[0].token_ids == first.choices[0].token_ids
    # The first batch; what follows is grouped, and is computed for each text alone.
    assert (again.n_cached, again.choices[0].usage.n_computed) == (256, 1_500 - 256)


async def test_short_texts_are_those_of_any_engine_and_long_ones_are_not(engine: weft.Engine, grouped: weft.Engine) -> None:
    prompt = prompt_of(300, "grouped")
    known = [(await one.complete(prompt[:20], **GREEDY | {"max_tokens": 30})).choices[0].token_ids for one in (engine, grouped)]
    assert known[0] == known[1]
    known = [(await one.complete(prompt, **GREEDY)).choices[0].token_ids for one in (engine, grouped)]
    assert known[0] != known[1]


async def test_a_context_whose_tokens_are_grouped_is_not_shifted(grouped: weft.Engine) -> None:
    with pytest.raises(weft.InvalidRequestError) as refused:
        await grouped.complete("Once", context_shift=True)
    assert refused.value.param == "context_shift"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"grp_attn_n": 3}, "it must divide grp_attn_w, 512"),
        ({"grp_attn_n": 2, "grp_attn_w": 1024, "n_ctx": 512}, "grp_attn_w, 1024, exceeds the context of 512 tokens"),
        ({"grp_attn_n": 2, "type_k": "q8_0"}, "requires a type_k of f16 or f32, not q8_0"),
    ],
)
async def test_what_cannot_be_grouped_is_refused_with_the_reason(options: EngineOptions, reason: str) -> None:
    with pytest.raises(weft.InvalidConfigError, match=reason) as refused:
        async with weft.Engine(**options):
            pass
    assert refused.value.param == "grp_attn_n"
