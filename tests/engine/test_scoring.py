"""How likely continuations are after a prompt: what a computation without any cache says, and the prompt computed once."""

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

import weft
from tests.engine.tiny_models import N_CONTROL, N_VOCAB, Kind
from tests.helpers import TRIES, is_idle, prompt_of, wait_until
from weft.scoring import continuation_tokens

PROMPT = "Once upon a time, there was a little girl named Lily. One day she went to the"
PLACES = [" park", " park to play", " store with her mom", " zebra", " beach"]

TOLERANCE = 2e-2
"""How much the logarithm of a probability may differ where other kernels than ours sum: in another order, with 16 bits."""


async def uncached(engine: weft.Engine, text: Sequence[int], start: int) -> list[float]:
    """The log-probabilities of `text[start:]`, computed whole and with nothing cached."""
    answer = await engine.complete(text, max_tokens=0, prompt_logprobs=0, use_cache=False)
    return [entry.chosen.logprob for entry in answer.prompt_logprobs[start:] if entry is not None]


async def test_scores_are_those_of_the_whole_text_computed_alone(engine: weft.Engine) -> None:
    prompt = engine.tokenize(PROMPT)
    scores = await engine.score(PROMPT, PLACES)
    assert [score.n_tokens for score in scores] == [len(continuation_tokens(engine.model, text)) for text in PLACES]
    for score in scores:
        alone = await uncached(engine, [*prompt, *(token.token for token in score.tokens)], len(prompt))
        # Our own kernels compute the same bits whatever else is computed beside them.
        allowed = 0.0 if engine.is_repeatable else TOLERANCE
        assert max(abs(token.logprob - right) for token, right in zip(score.tokens, alone, strict=True)) <= allowed
        assert score.logprob == math.fsum(token.logprob for token in score.tokens)
        assert score.usage.n_prompt == len(prompt) + score.n_tokens
    assert scores[0].logprob > scores[3].logprob, "one goes to a park, and not to a zebra"


async def test_a_text_is_greedy_where_it_is_what_the_model_writes(engine: weft.Engine) -> None:
    prompt = engine.tokenize(PROMPT)
    written = (await engine.complete(prompt, max_tokens=6, temperature=0)).choices[0].token_ids
    other = [*written[:3], 1000, *written[3:]]
    greedy, not_greedy = await engine.score(prompt, [written, other], top_logprobs=2)
    assert greedy.is_greedy
    assert [token.is_greedy for token in not_greedy.tokens][:4] == [True, True, True, False]
    assert all(len(token.top) == 2 and token.top[0].token == token.token for token in greedy.tokens)
    assert "".join(token.text for token in greedy.tokens) == engine.detokenize(written)
    [without] = await engine.score(prompt, [written])
    assert all(token.top == () for token in without.tokens)


@pytest.mark.parametrize("n_slots", [4, 16], ids=lambda n: f"{n} slots")
async def test_a_document_is_computed_once_for_all_of_its_continuations(n_slots: int) -> None:
    async with weft.Engine(n_slots=n_slots, n_ctx=4096, kv_unified=True, n_threads=1) as engine:
        continuations = [prompt_of(4 + position % 3, f"continuation {position}") for position in range(16)]
        n_continued = sum(map(len, continuations))
        # Beside those of the document, whose pieces grow from 16 tokens on: 16, 64, 256 and the rest. Beside other programs, by
        # which computing seems slow, they grow less.
        n_expected = 5 + math.ceil(15 / n_slots)
        n_decodes: list[int] = []
        while len(n_decodes) < TRIES and min(n_decodes, default=math.inf) > n_expected:
            document = prompt_of(400, f"document {len(n_decodes)}")
            before = engine.stats()
            scores = await engine.score(document, continuations)
            after = engine.stats()
            # The last token of the document is computed for each, for the row after it.
            assert after.n_computed - before.n_computed == 400 + n_continued + 15
            assert sum(score.n_computed for score in scores) == 400 + n_continued + 15
            assert [score.n_computed for score in scores[1:]] == [1 + len(tokens) for tokens in continuations[1:]]
            n_decodes.append(after.n_decodes - before.n_decodes)
        assert min(n_decodes) <= n_expected


async def test_prompts_share_what_they_begin_with(engine: weft.Engine) -> None:
    shots = prompt_of(300, "shots")
    tasks = [
        ([*shots, *prompt_of(20, f"question {n}")], [prompt_of(3, f"answer {n} {choice}") for choice in range(4)])
        for n in range(5)
    ]
    before = engine.stats().n_computed
    many = await engine.score_many(tasks)
    n_computed = engine.stats().n_computed - before
    assert n_computed <= 300 + 5 * (20 + 4 * (1 + 3))
    for (prompt, continuations), scores in zip(tasks, many, strict=True):
        one = await engine.score(prompt, continuations, use_cache=False)
        assert len(scores) == len(one) == 4
        for score, alone in zip(scores, one, strict=True):
            assert score.logprob == pytest.approx(alone.logprob, abs=1e-6 if engine.is_repeatable else 1)


async def test_what_was_told_is_told_again_without_computing_it(engine: weft.Engine) -> None:
    prompt, continuation = prompt_of(100, "told again"), prompt_of(40, "more")
    [first] = await engine.score(prompt, [continuation])
    [again] = await engine.score(prompt, [continuation])
    assert (first.n_computed, again.n_computed) == (140, 1)
    assert again.tokens == first.tokens
    [longer] = await engine.score(prompt, [[*continuation, 500, 501]])
    assert longer.n_computed == 3
    assert longer.tokens[:40] == first.tokens


@pytest.mark.parametrize("kind", ["recurrent", "hybrid", "window"])
async def test_other_memories_compute_the_prompt_once_too(tiny_models: dict[Kind, Path], kind: Kind) -> None:
    async with weft.Engine(tiny_models[kind], n_slots=4, n_ctx=2048, kv_unified=True, n_threads=1) as engine:
        prompt = [N_CONTROL + position * 7 % (N_VOCAB - N_CONTROL) for position in range(200)]
        continuations = [[N_CONTROL + n, N_CONTROL + 2 * n, N_CONTROL + 3] for n in range(1, 7)]
        scores = await engine.score(prompt, continuations)
        # One may come when the window has moved on from where the prompts part; then it computes what is missing itself.
        n_late = 200 if kind == "window" else 0
        assert sum(score.n_computed for score in scores) <= 200 + 6 * (3 + 1) + n_late
        for score, continuation in zip(scores, continuations, strict=True):
            alone = await uncached(engine, [*prompt, *continuation], 200)
            assert [token.logprob for token in score.tokens] == pytest.approx(alone, abs=TOLERANCE)


async def test_more_than_wait_in_the_queue_are_scored() -> None:
    async with weft.Engine(n_slots=2, n_ctx=2048, max_queue=8, n_threads=1) as engine:
        continuations = [[300 + n] for n in range(100)]
        scores = await engine.score(PROMPT, continuations)
        assert [score.tokens[0].token for score in scores] == [300 + n for n in range(100)]


async def test_a_task_that_is_cancelled_leaves_nothing_running(engine: weft.Engine) -> None:
    scoring = asyncio.create_task(engine.score(prompt_of(900, "cancelled"), [[300 + n] for n in range(500)], use_cache=False))
    await wait_until(lambda: not is_idle(engine))
    scoring.cancel()
    await asyncio.gather(scoring, return_exceptions=True)
    assert scoring.cancelled()
    await wait_until(lambda: is_idle(engine))


@pytest.mark.parametrize(
    ("prompt", "continuations", "top_logprobs", "param"),
    [
        ([], ["text"], 0, "prompt"),
        ("text", ["more", ""], 0, "continuations"),
        ("text", [[]], 0, "continuations"),
        ("text", ["\ud800"], 0, "continuations"),
        ("text", ["more"], 1001, "top_logprobs"),
        ("text", ["more"], -1, "top_logprobs"),
        ("text", [[300], [300, 10**6]], 0, "continuations"),
        ("text", [[-1]], 0, "continuations"),
        ([10**6], ["text"], 0, "prompt"),
        ("text", "more", 0, "continuations"),
    ],
    ids=str,
)
async def test_what_cannot_be_scored_is_refused(
    engine: weft.Engine, prompt: str | list[int], continuations: list[str | list[int]], top_logprobs: int, param: str
) -> None:
    with pytest.raises(weft.InvalidRequestError) as refused:
        await engine.score(prompt, continuations, top_logprobs=top_logprobs)
    assert refused.value.param == param


async def test_nothing_to_score_is_no_error(engine: weft.Engine) -> None:
    assert await engine.score("text", []) == []
    assert await engine.score_many([]) == []


async def test_a_continuation_that_does_not_fit_is_refused(engine: weft.Engine) -> None:
    with pytest.raises(weft.ContextOverflowError):
        await engine.score(prompt_of(900, "too long"), [prompt_of(3, "short"), prompt_of(300, "rest")])
    await wait_until(lambda: is_idle(engine))


@pytest.mark.parametrize("text", [" park", "park", "\n\nThe", "  two", ".", "é", "<s>", "\n"], ids=repr)
def test_the_tokens_of_a_continuation_spell_it_and_nothing_before_it(engine: weft.Engine, text: str) -> None:
    tokens = continuation_tokens(engine.model, text)
    assert engine.detokenize(tokens) == text
    assert engine.model.bos_token not in tokens, "a control token is not read in it"
