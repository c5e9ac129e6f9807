"""A full context drops its middle, computes what follows again, and goes on; another one beside it never waits."""

from collections.abc import AsyncIterator, Sequence

import pytest

import weft
from tests.helpers import ended_by, is_idle, prompt_of, wait_until
from weft import Choice, RequestOptions, Token

N_CTX = 256

TOLERANCE = 0.3
"""Of log-probabilities. Where a batch of another shape sums otherwise, what is multiplied with quantised weights may be rounded
otherwise too. Measured: 0.12. The tests of the kinds of memory tell more, with weights that are not quantised."""


@pytest.fixture
async def small() -> AsyncIterator[weft.Engine]:
    """Two slots of 256 tokens. Flash attention sums in 16 bits, which would hide a small mistake."""
    async with weft.Engine(n_slots=2, n_ctx=2 * N_CTX, kv_unified=False, n_threads=1, flash_attention="off") as small:
        assert small.limits.n_ctx_slot == N_CTX
        yield small


def endless(max_tokens: int, n_keep: int | None, n_discard: int = 0) -> RequestOptions:
    return {
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 5,
        "context_shift": True,
        "n_keep": n_keep,
        "n_discard": n_discard,
    }


def contexts(prompt: Sequence[int], drawn: Sequence[int], n_keep: int, n_discard: int) -> list[list[int]]:
    """What the model saw before it drew each token."""
    context, seen = list(prompt), []
    for token in drawn:
        if len(context) == N_CTX:
            n_left = N_CTX - 1 - n_keep
            del context[n_keep : n_keep + (n_discard or n_left // 2)]
        seen.append(list(context))
        context.append(token)
    return seen


async def difference(engine: weft.Engine, branch: Choice, place: int, context: list[int]) -> float:
    """By how much what a token was drawn from differs from what a fresh request finds after a context."""
    answer = await engine.complete(context, max_tokens=1, temperature=0, logprobs=900, use_cache=False, ignore_eos=True)
    known = {top.token: top.logprob for top in answer.choices[0].logprobs[0].top}
    return max(abs(top.logprob - known.get(top.token, -100)) for top in branch.logprobs[place].top)


async def check(engine: weft.Engine, branch: Choice, seen: list[list[int]], places: Sequence[int]) -> None:
    for place in places:
        assert await difference(engine, branch, place, seen[place]) < TOLERANCE, f"token {place}"


@pytest.mark.parametrize(("n_keep", "n_discard"), [(0, 0), (20, 0), (None, 0), (10, 200)], ids=str)
async def test_what_follows_a_shift_follows_the_kept_tokens(small: weft.Engine, n_keep: int | None, n_discard: int) -> None:
    prompt = prompt_of(100, "shifted")
    [branch] = (await small.complete(prompt, **endless(700, n_keep, n_discard))).choices
    assert (branch.finish_reason, branch.is_truncated, branch.usage.n_predicted) == ("length", True, 700)
    assert (branch.usage.n_prompt, branch.usage.n_cached) == (100, 0)
    # The vocabulary begins every text with a token, which is kept besides.
    seen = contexts(prompt, branch.token_ids, 100 if n_keep is None else n_keep + 1, n_discard)
    assert branch.usage.n_context == len(seen[-1])
    await check(small, branch, seen, range(155, 700, 30))


async def test_every_branch_shifts_on_its_own(small: weft.Engine) -> None:
    prompt = prompt_of(120, "on its own")
    request = weft.Request(prompt=prompt, **endless(400, 30))
    answer = await small.complete(request, n=4, seed=1, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    assert len(set(answer.texts)) == 4
    assert 120 <= answer.n_computed <= 122, "those that start later compute its last token again, where it had left the pool"
    for branch in answer.choices:
        await check(small, branch, contexts(prompt, branch.token_ids, 30 + 1, 0), range(136, 400, 40))
    [again] = (await small.complete(prompt, max_tokens=1)).choices
    assert again.usage.n_computed == 1, "the prompt is cached as ever"


async def test_without_it_a_full_context_ends_a_branch_and_says_so(small: weft.Engine) -> None:
    prompt = prompt_of(100, "full")
    [branch] = (await small.complete(prompt, max_tokens=700, ignore_eos=True)).choices
    assert (ended_by(branch), branch.is_truncated, branch.usage.n_context) == ("context_full", True, N_CTX - 1)
    [branch] = (await small.complete(prompt, max_tokens=20, ignore_eos=True)).choices
    assert (branch.finish_reason, branch.is_truncated, branch.usage.n_context) == ("length", False, 119)


async def test_a_branch_without_a_limit_goes_on_until_its_stream_is_closed(small: weft.Engine) -> None:
    stream = small.stream(prompt_of(100, "no limit"), temperature=0, ignore_eos=True, context_shift=True)
    n_tokens = 0
    async for event in stream:
        assert isinstance(event, Token)
        n_tokens += 1
        if n_tokens == 3 * N_CTX:
            break
    assert next(slot.n_remaining for slot in small.slots if slot.is_processing) is None
    stream.close()
    await wait_until(lambda: is_idle(small))


async def test_a_prompt_that_fills_the_context_is_refused(small: weft.Engine) -> None:
    with pytest.raises(weft.ContextOverflowError) as refused:
        small.stream(prompt_of(N_CTX, "too long"), context_shift=True)
    assert (refused.value.n_prompt, refused.value.n_ctx) == (N_CTX, N_CTX)
