"""Tokenizing long texts: off the event loop, and only while a caller waits for the result."""

import asyncio
import threading
from collections.abc import Callable

import pytest

import weft
from tests.helpers import wait_until
from weft._native import Cancellation
from weft.work.threads import LONG_TEXT, ThreadPool, Threads

SPELLED_BY_BYTES = "日" * 40_000
"""A text of 120,000 bytes: tokenizing checks for a cancellation every 65,536."""


@pytest.mark.parametrize(
    "text", ["Once upon a time, " * 2_000, SPELLED_BY_BYTES, "日本 😀 <s> the " * 3_000], ids=["words", "bytes", "mix"]
)
@pytest.mark.parametrize("special", [True, False])
async def test_async_tokenize_returns_the_tokens_of_tokenize(engine: weft.Engine, text: str, special: bool) -> None:
    for each in (text, text[:100], text.encode()):
        tokens = await engine.async_tokenize(each, add_special=special, parse_special=special)
        assert list(tokens) == engine.tokenize(each, add_special=special, parse_special=special)


async def test_other_tasks_run_while_a_long_text_is_tokenized(engine: weft.Engine) -> None:
    tokenizing = asyncio.create_task(engine.async_tokenize("日" * (LONG_TEXT + 1)))
    n_turns = 0
    while not tokenizing.done():
        await asyncio.sleep(0)
        n_turns += 1
    assert len(await tokenizing) > 3 * LONG_TEXT
    assert n_turns > 1


async def test_the_tokens_of_a_long_text_are_a_prompt(engine: weft.Engine) -> None:
    tokens = await engine.async_tokenize("the " * (LONG_TEXT // 4 + 1))
    with pytest.raises(weft.ContextOverflowError) as refused:
        engine.stream(tokens)
    assert refused.value.n_prompt == len(tokens)


async def test_a_text_with_a_lone_surrogate_is_refused(engine: weft.Engine) -> None:
    for text in ("\ud800", "a" * LONG_TEXT + "\ud800"):
        with pytest.raises(weft.InvalidRequestError):
            await engine.async_tokenize(text)


@pytest.mark.parametrize(
    "tokenize",
    [
        lambda model: model.tokenize(SPELLED_BY_BYTES),
        lambda model: model.token_ids(SPELLED_BY_BYTES),
        lambda model: model.tokenize_on(SPELLED_BY_BYTES),
        lambda model: model.tokenize_parts([SPELLED_BY_BYTES, "a"]),
    ],
    ids=["tokenize", "token_ids", "tokenize_on", "tokenize_parts"],
)
async def test_a_cancelled_text_is_not_tokenized_to_its_end(
    engine: weft.Engine, tokenize: Callable[[weft.Model], object]
) -> None:
    cancellation = Cancellation()
    assert cancellation.run(lambda: tokenize(engine.model))
    cancellation.cancel()
    assert cancellation.is_cancelled
    with pytest.raises(weft.WorkCancelledError, match="the operation was cancelled"):
        cancellation.run(lambda: tokenize(engine.model))
    assert cancellation.run(lambda: engine.model.tokenize("a short text"))
    assert tokenize(engine.model), "a cancellation ends with its `run`"


async def test_work_that_runs_stops_when_its_caller_is_cancelled(engine: weft.Engine) -> None:
    begun, may_tokenize = threading.Event(), threading.Event()
    raised: list[Exception] = []

    def work() -> None:
        begun.set()
        may_tokenize.wait()
        try:
            engine.model.tokenize(SPELLED_BY_BYTES)
        except weft.WorkCancelledError as error:
            raised.append(error)

    caller = asyncio.create_task(Threads().run(ThreadPool.TEXT, work))
    await wait_until(begun.is_set)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    may_tokenize.set()
    await wait_until(lambda: raised != [])
