"""Log-probabilities of the prompt: those that generation finds where it is made to write the same text."""

import asyncio
from collections.abc import Sequence

import pytest

import weft
from tests.helpers import prompt_of
from weft import Completion, Finished, Logprobs, PromptLogprobs, Token

TOLERANCE = 1e-3
"""Within which half of them agree with what another shape of batch gives, on the slowest kernels too."""

MOST = 0.3
"""By which one may differ: what is multiplied with quantised weights is rounded, and so the last bit of a sum may change much.
Measured: 0.11."""


async def written(engine: weft.Engine, text: Sequence[int], start: int) -> list[Logprobs]:
    """The log-probabilities of `text[start:]`, found by writing it: every other token is banned in each step."""
    steps = [
        engine.complete(text[:place], max_tokens=1, temperature=0, logit_bias=[(text[place], 1e6)], logprobs=5)
        for place in range(start, len(text))
    ]
    logprobs = [(await step).choices[0].logprobs[0] for step in steps]
    assert [entry.chosen.token for entry in logprobs] == list(text[start:])
    return logprobs


def difference(found: Logprobs | None, expected: Logprobs) -> float:
    assert found is not None
    assert found.chosen.token == expected.chosen.token
    known = {top.token for top in expected.top}
    assert sum(top.token in known for top in found.top) >= 4, "of the most likely tokens only the last may differ"
    return abs(found.chosen.logprob - expected.chosen.logprob)


@pytest.mark.parametrize("n_ubatch", [32, 64, 512], ids=lambda n: f"chunks of {n}")
async def test_they_are_those_that_generation_finds(n_ubatch: int) -> None:
    # Flash attention sums in 16 bits.
    async with weft.Engine(n_slots=2, n_ubatch=n_ubatch, n_threads=1, flash_attention="off") as engine:
        text = (
            engine.tokenize("Once upon a time, there was a little girl named Lily. She had a red ball and a big dog. One day ")
            * 3
        )
        completion = await engine.complete(text, max_tokens=0, prompt_logprobs=5)
        assert completion.n_computed == len(text) == len(completion.prompt_logprobs)
        assert completion.prompt_logprobs[0] is None
        expected = await written(engine, text, 1)
    differences = sorted(difference(*pair) for pair in zip(completion.prompt_logprobs[1:], expected, strict=True))
    assert differences[len(differences) // 2] < TOLERANCE
    assert differences[-1] < MOST


async def test_they_come_in_order_before_the_first_token_and_once_for_all_branches(engine: weft.Engine) -> None:
    prompt = prompt_of(300, "in order")
    n_told, n_tokens = 0, 0
    async for event in engine.stream(prompt, n=6, max_tokens=3, ignore_eos=True, prompt_logprobs=0):
        match event:
            case PromptLogprobs(start, logprobs):
                assert (start, n_tokens) == (n_told, 0)
                assert all(entry is None or not entry.top for entry in logprobs)
                n_told += len(logprobs)
            case Token() | Finished():
                n_tokens += 1
    assert (n_told, n_tokens) == (300, 6 * (3 + 1))


async def test_all_of_the_prompt_is_computed_for_them_and_stays_cached(engine: weft.Engine) -> None:
    prompt = prompt_of(120, "computed for them")
    await engine.complete(prompt, max_tokens=1)
    completion = await engine.complete(prompt, n=3, max_tokens=1, prompt_logprobs=1)
    assert [branch.usage.n_cached for branch in completion.choices] == [0, 120, 120]
    [after] = (await engine.complete(prompt, max_tokens=1)).choices
    assert after.usage.n_computed == 1


async def test_several_that_ask_at_once_are_told_what_each_is_told_alone(engine: weft.Engine) -> None:
    prompts = [prompt_of(n, f"at once {n}") for n in (200, 90, 151, 33)]

    async def logprobs_of(prompt: list[int], *, use_cache: bool = True) -> list[float]:
        completion: Completion = await engine.complete(prompt, max_tokens=2, prompt_logprobs=1, use_cache=use_cache)
        return [entry.chosen.logprob for entry in completion.prompt_logprobs if entry is not None]

    together = await asyncio.gather(*(logprobs_of(prompt) for prompt in prompts))
    for prompt, found in zip(prompts, together, strict=True):
        alone = await logprobs_of(prompt, use_cache=False)
        assert len(found) == len(prompt) - 1
        assert max(abs(a - b) for a, b in zip(found, alone, strict=True)) < MOST


async def test_nothing_is_told_that_was_not_asked_for(engine: weft.Engine) -> None:
    completion = await engine.complete(prompt_of(20, "not asked for"), max_tokens=1)
    assert completion.prompt_logprobs == ()


@pytest.mark.parametrize("n", [-1, 1001, 1.5, "many"], ids=str)
async def test_a_number_out_of_range_is_refused(engine: weft.Engine, n: int) -> None:
    with pytest.raises(weft.InvalidRequestError) as refused:
        engine.stream("A fox", prompt_logprobs=n)
    assert refused.value.param == "prompt_logprobs"
