"""How far a prompt is computed, as its stream tells it; and prompts that use nothing that is cached."""

import weft
from tests.helpers import prompt_of
from weft import Finished, Progress, Token


async def progress(engine: weft.Engine, prompt: list[int], n: int = 1) -> list[Progress]:
    told: list[Progress] = []
    async for event in engine.stream(prompt, n=n, max_tokens=2, ignore_eos=True, report_progress=True):
        match event:
            case Progress():
                told.append(event)
            case Token() | Finished():
                assert told[-1].n_processed == len(prompt), "it is told before the first token"
    return told


async def test_it_begins_with_what_is_cached_grows_and_ends_with_the_prompt(engine: weft.Engine) -> None:
    prompt = prompt_of(1000, "progress")
    await engine.complete(prompt[:100], max_tokens=0)
    told = await progress(engine, prompt, n=3)
    assert {(event.n_prompt, event.n_cached) for event in told} == {(1000, 100)}
    n_processed = [event.n_processed for event in told]
    assert (n_processed[0], n_processed[-1]) == (100, 1000)
    assert len(n_processed) > 2, "a decode takes 512 tokens at most"
    assert n_processed == sorted(set(n_processed))
    times = [event.ms for event in told]
    assert times == sorted(times)
    assert times[0] >= 0


async def test_what_is_cached_but_for_its_last_token_takes_one_step(engine: weft.Engine) -> None:
    prompt = prompt_of(60, "one step")
    await engine.complete(prompt, max_tokens=1)
    told = await progress(engine, prompt)
    assert [(event.n_cached, event.n_processed) for event in told] == [(59, 59), (59, 60)]


async def test_nobody_hears_of_it_unasked(engine: weft.Engine) -> None:
    events = [event async for event in engine.stream(prompt_of(30, "unasked"), max_tokens=2)]
    assert all(isinstance(event, Token | Finished) for event in events)


async def test_a_prompt_that_is_not_to_use_the_cache_is_computed_once_for_all_branches(engine: weft.Engine) -> None:
    prompt = prompt_of(200, "without the cache")
    await engine.complete(prompt, max_tokens=1)
    completion = await engine.complete(prompt, n=6, max_tokens=1, use_cache=False)
    assert completion.n_computed == 200
    assert completion.choices[0].usage.n_cached == 0
    [after] = (await engine.complete([*prompt, 300], max_tokens=1)).choices
    assert after.usage.n_computed == 1, "what it computed is cached for others"
