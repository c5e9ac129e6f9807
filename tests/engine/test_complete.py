"""One prompt, one text; streamed and whole agree."""

from typing import Any

import pytest

import weft
from tests.helpers import How, branches, collect, n_processing, prompt_of, wait_until
from weft import Finished, Token


async def test_an_answer_is_text_of_as_many_tokens_as_were_asked_for(engine: weft.Engine, how: How) -> None:
    (branch,) = await branches(engine, how, "Once upon a time,", max_tokens=16, ignore_eos=True)
    assert (branch.index, branch.finish_reason, branch.stop_reason) == (0, "length", None)
    assert len(branch.token_ids) == branch.usage.n_predicted == 16
    assert branch.text == engine.detokenize(branch.token_ids)
    assert branch.usage.n_prompt == len(engine.tokenize("Once upon a time,"))


async def test_events_count_up_and_end_with_one_finished(engine: weft.Engine) -> None:
    *tokens, end = await collect(engine.stream("Once upon a time,", max_tokens=8, ignore_eos=True))
    assert isinstance(end, Finished)
    assert [token.n_predicted for token in tokens if isinstance(token, Token)] == list(range(1, 9))


async def test_a_batch_holds_what_is_ready_and_an_empty_one_is_the_end(engine: weft.Engine) -> None:
    stream = engine.stream("Once upon a time,", n=2, max_tokens=8, ignore_eos=True)
    n_events = 0
    while batch := await stream.next_batch():
        n_events += len(batch)
    assert n_events == 2 * (8 + 1)
    assert await stream.next_batch() == []
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_prompt_may_be_tokens(engine: weft.Engine, how: How) -> None:
    prompt = prompt_of(20, "tokens")
    (branch,) = await branches(engine, how, prompt, max_tokens=4)
    assert branch.usage.n_prompt == 20


async def test_a_text_is_tokenized_as_the_vocabulary_begins_texts(engine: weft.Engine) -> None:
    stream = engine.stream("A fox", max_tokens=0)
    tokens = engine.tokenize("A fox")
    assert tokens[0] == engine.model.bos_token
    assert stream.n_prompt == len(tokens) == len(engine.tokenize("A fox", add_special=False)) + 1


async def test_control_tokens_are_read_from_their_spelling_unless_told_otherwise(engine: weft.Engine) -> None:
    end = engine.model.eos_token
    assert end is not None
    spelling = engine.model.token_bytes(end).decode()
    assert engine.tokenize(spelling, add_special=False) == [end]
    assert end not in engine.tokenize(spelling, add_special=False, parse_special=False)


@pytest.mark.parametrize(
    "text", ["Once upon a time,", "naïve 龍", "line\nline\ttab", "nul\0byte"], ids=["words", "unicode", "space", "nul"]
)
async def test_detokenize_undoes_tokenize(engine: weft.Engine, text: str) -> None:
    assert engine.detokenize(engine.tokenize(text, add_special=False)).removeprefix(" ") == text


async def test_options_replace_those_of_a_request(engine: weft.Engine, how: How) -> None:
    request = weft.Request(prompt="A fox", max_tokens=50, ignore_eos=True)
    (branch,) = await branches(engine, how, request, max_tokens=3)
    assert len(branch.token_ids) == 3


async def test_log_probabilities_come_with_every_token(engine: weft.Engine, how: How) -> None:
    (branch,) = await branches(engine, how, "Once upon a time,", max_tokens=4, logprobs=5, ignore_eos=True)
    assert [logprobs.chosen.token for logprobs in branch.logprobs] == list(branch.token_ids)
    for logprobs in branch.logprobs:
        values = [top.logprob for top in logprobs.top]
        assert len(values) == 5
        assert values == sorted(values, reverse=True)
        assert values[0] <= 0
        assert all(top.text.encode() == top.bytes for top in logprobs.top)


@pytest.mark.parametrize(
    ("options", "n_bytes"),
    [({}, 8 * 192), ({"logprobs": 20}, 8 * (192 + 21 * 144)), ({"prompt_logprobs": 3}, 8 * 192 + 6 * 4 * 144)],
    ids=["tokens", "likely ones", "prompt"],
)
async def test_an_answer_that_outgrows_what_is_collected_ends_with_that_bound(
    engine: weft.Engine, options: dict[str, int], n_bytes: int
) -> None:
    asked: Any = {"max_tokens": 8, "ignore_eos": True, "seed": 1, **options}
    prompt = engine.tokenize("Once upon a time, a fox")[:7]
    whole = await engine.complete(prompt, **asked)
    # The end counts as a token, and the text by its characters.
    n_bytes += 192 + len(whole.text)
    assert (await engine.complete(prompt, max_bytes=n_bytes, **asked)).text == whole.text
    with pytest.raises(weft.AnswerTooLargeError, match=rf"exceeds max_bytes \({n_bytes - 1} bytes") as caught:
        await engine.complete(prompt, max_bytes=n_bytes - 1, **asked)
    assert caught.value.max_bytes == n_bytes - 1
    with pytest.raises(weft.AnswerTooLargeError):
        await engine.chat([{"role": "user", "content": "a fox"}], max_bytes=500, max_tokens=1_000, ignore_eos=True)
    await wait_until(lambda: n_processing(engine) == 0)


async def test_a_random_seed_is_reported_and_a_given_one_is_kept(engine: weft.Engine) -> None:
    seeds = {engine.stream("A fox", max_tokens=0).seed for _ in range(4)}
    assert len(seeds) > 1
    assert engine.stream("A fox", max_tokens=0, seed=7).seed == 7


async def test_the_metadata_names_the_model(engine: weft.Engine) -> None:
    model = engine.model
    assert model.metadata()["general.architecture"] == "llama"
    assert model.n_vocab == 2048
    assert model.path == weft.DEMO_MODEL
    assert model.size_bytes > model.n_params > 0


async def test_a_stream_and_the_slot_that_it_runs_in_name_the_same_request(engine: weft.Engine) -> None:
    before = engine.stream("A fox", max_tokens=0)
    stream = engine.stream("A fox", ignore_eos=True)
    event = await anext(stream)
    assert isinstance(event, Token)
    assert stream.request_id == before.request_id + 1
    assert engine.slots[event.slot].request_id == stream.request_id
    stream.close()
