"""Where an answer ends. A large bias makes the model say what a test needs."""

from collections.abc import AsyncIterator

import pytest

import weft
from tests.helpers import How, branches, collect, ended_by, prompt_of
from weft import Token

CERTAIN = 1e3
"""A bias that leaves no other token a chance."""


@pytest.fixture(scope="session")
def cat(engine: weft.Engine) -> int:
    """The token of " cat"."""
    *_, token = engine.tokenize(" cat", add_special=False)
    assert engine.model.token_bytes(token) == b" cat"
    return token


async def test_a_stop_string_across_tokens_is_no_part_of_the_text(engine: weft.Engine, how: How, cat: int) -> None:
    (branch,) = await branches(engine, how, "A", max_tokens=9, stop=["at cat c"], logit_bias=[(cat, CERTAIN)])
    assert (branch.text, branch.finish_reason, branch.stop_reason) == (" c", "stop", "at cat c")
    assert len(branch.token_ids) == 3


async def test_the_stop_string_that_begins_first_ends_the_text(engine: weft.Engine, how: How, cat: int) -> None:
    (branch,) = await branches(engine, how, "A", max_tokens=9, stop=["dog", "t c", "cat cat"], logit_bias=[(cat, CERTAIN)])
    assert (branch.text, branch.finish_reason, branch.stop_reason) == (" ", "stop", "cat cat")


async def test_what_only_began_like_a_stop_string_is_told_at_the_end(engine: weft.Engine, how: How, cat: int) -> None:
    (branch,) = await branches(engine, how, "A", max_tokens=3, stop=["cat cat dog"], logit_bias=[(cat, CERTAIN)])
    assert (branch.text, branch.finish_reason) == (" cat cat cat", "length")


@pytest.fixture
async def crowded() -> AsyncIterator[weft.Engine]:
    """A context of 256 tokens, 100 of which are pinned: what does not fit in the rest is ended."""
    async with weft.Engine(n_slots=1, n_ctx=256, n_threads=1, cache_ram=0) as engine:
        await engine.pin(prompt_of(100, "pinned"))
        yield engine


async def test_what_no_token_could_show_is_told_at_the_end(crowded: weft.Engine, how: How, cat: int) -> None:
    request = weft.Request(prompt="A", stop=["cat " * 300 + "dog"], logit_bias=[(cat, CERTAIN)])
    (branch,) = await branches(crowded, how, request)
    assert ended_by(branch) == "context_full"
    assert 100 < branch.usage.n_predicted < 156
    assert branch.text == " cat" * branch.usage.n_predicted
    *tokens, end = await collect(crowded.stream(request))
    assert "".join(token.text for token in tokens if isinstance(token, Token)) == " "
    assert end.text == branch.text[1:]


async def test_an_end_brings_no_text_where_the_last_token_shows_what_was_held_back(engine: weft.Engine, cat: int) -> None:
    events = await collect(engine.stream("A", max_tokens=3, stop=["cat cat dog"], logit_bias=[(cat, CERTAIN)]))
    assert [event.text for event in events] == [" ", "", "cat cat cat", ""]


async def test_an_end_token_ends_the_text_and_is_counted(engine: weft.Engine, how: How) -> None:
    end = engine.model.eos_token
    assert end is not None
    (branch,) = await branches(engine, how, "A", max_tokens=9, logit_bias=[(end, CERTAIN)])
    assert (branch.text, branch.token_ids, ended_by(branch), branch.usage.n_predicted) == ("", (end,), "end", 1)


async def test_an_ignored_end_token_is_never_drawn(engine: weft.Engine, how: How) -> None:
    end = engine.model.eos_token
    assert end is not None
    (branch,) = await branches(engine, how, "A", max_tokens=9, ignore_eos=True, logit_bias=[(end, CERTAIN)])
    assert end not in branch.token_ids
    assert branch.finish_reason == "length"


async def test_a_banned_token_is_never_drawn(engine: weft.Engine, cat: int) -> None:
    bias = [(cat, CERTAIN), (cat, float("-inf"))]
    completion = await engine.complete("A", max_tokens=5, logit_bias=bias, ignore_eos=True)
    assert cat not in completion.choices[0].token_ids


async def test_a_text_without_a_limit_fills_the_context_exactly(engine: weft.Engine, how: How) -> None:
    n_ctx = engine.limits.n_ctx_slot
    (branch,) = await branches(engine, how, prompt_of(n_ctx - 20, "full"), ignore_eos=True)
    assert (ended_by(branch), branch.usage.n_predicted) == ("context_full", 20)


async def test_a_limit_beyond_the_context_is_cut(engine: weft.Engine, how: How) -> None:
    n_ctx = engine.limits.n_ctx_slot
    (branch,) = await branches(engine, how, prompt_of(n_ctx - 1, "cut"), max_tokens=1000, ignore_eos=True)
    assert branch.usage.n_predicted == 1


async def test_bytes_that_are_no_character_yet_are_held_back(engine: weft.Engine, how: How) -> None:
    first_byte = next(token for token in range(engine.model.n_vocab) if engine.model.token_bytes(token) == b"\xc3")
    (branch,) = await branches(engine, how, "A", max_tokens=1, logprobs=1, logit_bias=[(first_byte, CERTAIN)])
    assert (branch.text, branch.token_ids) == ("", (first_byte,))
    assert [drawn.chosen.bytes for drawn in branch.logprobs] == [b"\xc3"]


async def test_a_repeat_penalty_keeps_a_text_from_repeating_itself(engine: weft.Engine, cat: int) -> None:
    bias = [(cat, 20.0)]
    plain = await engine.complete("A", max_tokens=8, temperature=0, logit_bias=bias)
    penalized = await engine.complete("A", max_tokens=8, temperature=0, logit_bias=bias, presence_penalty=100)
    assert plain.choices[0].token_ids.count(cat) > 1
    assert penalized.choices[0].token_ids.count(cat) == 1
