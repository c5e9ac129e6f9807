"""`SamplingParams`, and the keywords that hold the same fields."""

from typing import get_type_hints

import weft
from weft.infill import InfillOptions
from weft.request.internal import InternalRequest


def test_sampling_options_are_the_fields_of_sampling_params_with_their_types() -> None:
    assert get_type_hints(weft.SamplingOptions) == get_type_hints(weft.SamplingParams)


def test_a_branch_has_the_sampling_parameters_a_suffix_and_adapters() -> None:
    own = {"suffix_prompt", "adapters"}
    assert set(get_type_hints(weft.BranchOptions)) == set(weft.SamplingParams.__struct_fields__) | own
    assert set(get_type_hints(weft.BranchOptions)) < set(get_type_hints(weft.RequestOptions)) < set(get_type_hints(InfillOptions))


def test_only_a_servers_requests_have_an_owner() -> None:
    assert set(InternalRequest.__struct_fields__) - set(weft.Request.__struct_fields__) == {"owner", "system_end"}


async def test_keywords_override_sampling_which_overrides_the_request(engine: weft.Engine) -> None:
    request = weft.Request(prompt="Once upon a time", seed=1, max_tokens=1, n=2)
    sampling = weft.SamplingParams(seed=2, max_tokens=3, ignore_eos=True)
    by_request = await engine.complete(request)
    by_sampling = await engine.complete(request, sampling=sampling)
    by_keyword = await engine.complete(request, sampling=sampling, max_tokens=5)
    lengths = [[len(choice.token_ids) for choice in one.choices] for one in (by_request, by_sampling, by_keyword)]
    assert (by_request.seed, by_sampling.seed, by_keyword.seed) == (1, 2, 2)
    assert lengths == [[1, 1], [3, 3], [5, 5]]


async def test_sampling_gives_the_tokens_that_its_fields_give(engine: weft.Engine) -> None:
    stream = engine.stream("Once upon a time", sampling=weft.SamplingParams(temperature=0, max_tokens=8))
    tokens = [event.token async for event in stream if isinstance(event, weft.Token)]
    [choice] = (await engine.complete("Once upon a time", temperature=0, max_tokens=8)).choices
    assert tokens == list(choice.token_ids)


async def test_logprobs_of_0_are_those_of_the_tokens_alone(engine: weft.Engine) -> None:
    async def logprobs(n: int | None, *, post_sampling_probs: bool) -> tuple[weft.Logprobs, ...]:
        sampling = weft.SamplingParams(seed=4, max_tokens=6, post_sampling_probs=post_sampling_probs)
        [choice] = (await engine.complete("Once upon a time", sampling=sampling, logprobs=n)).choices
        return choice.logprobs

    for post_sampling_probs in (False, True):
        assert await logprobs(None, post_sampling_probs=post_sampling_probs) == ()
        alone = await logprobs(0, post_sampling_probs=post_sampling_probs)
        likely = await logprobs(2, post_sampling_probs=post_sampling_probs)
        assert [one.chosen for one in alone] == [one.chosen for one in likely]
        assert [len(one.top) for one in alone] == [0] * 6


async def test_an_end_token_and_a_stop_string_are_stop_reasons(engine: weft.Engine) -> None:
    [end] = (await engine.complete("The end", grammar='root ::= "a"', max_tokens=9)).choices
    [stop] = (await engine.complete("Once upon a time", stop=[" "], max_tokens=50, seed=1)).choices
    [length] = (await engine.complete("Once upon a time", max_tokens=1)).choices
    assert (end.finish_reason, end.stop_reason) == ("stop", end.token_ids[-1])
    assert end.stop_reason in engine.model.end_tokens()
    assert (stop.finish_reason, stop.stop_reason) == ("stop", " ")
    assert (length.finish_reason, length.stop_reason, length.is_context_full) == ("length", None, False)
