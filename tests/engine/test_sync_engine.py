"""The synchronous engine gives what the asynchronous one gives, also where an event loop is running."""

import asyncio
import inspect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import weft

PROMPT = "Once upon a time,"
MESSAGES = [{"role": "user", "content": "What does a cow say?"}]


@pytest.fixture(scope="module")
def engine() -> Iterator[weft.SyncEngine]:
    with weft.SyncEngine(n_slots=4, n_ctx=2048, kv_unified=True, n_threads=1) as engine:
        yield engine


def test_a_completion_is_that_of_the_asynchronous_engine(engine: weft.SyncEngine) -> None:
    completion = engine.complete(PROMPT, n=2, max_tokens=8, seed=7)
    assert len(completion.choices) == 2
    assert completion.texts == engine.call(lambda engine: engine.complete(PROMPT, n=2, max_tokens=8, seed=7)).texts


def test_a_stream_is_an_iterator(engine: weft.SyncEngine) -> None:
    events = list(engine.stream(PROMPT, max_tokens=8, temperature=0))
    text = "".join(event.text for event in events if isinstance(event, weft.Token | weft.Finished))
    assert text == engine.complete(PROMPT, max_tokens=8, temperature=0).text
    assert isinstance(events[-1], weft.Finished)


def test_leaving_a_stream_frees_its_slots(engine: weft.SyncEngine) -> None:
    with engine.stream(PROMPT, max_tokens=None, ignore_eos=True, n=4) as stream:
        next(stream)
    assert len(engine.complete(PROMPT, n=4, max_tokens=1).choices) == 4
    assert list(stream) == []


def test_one_branch_is_cancelled_alone(engine: weft.SyncEngine) -> None:
    stream = engine.stream(PROMPT, max_tokens=200, ignore_eos=True, n=2)
    next(stream)
    stream.cancel(1)
    reasons = {event.index: event.finish_reason for event in stream if isinstance(event, weft.Finished)}
    assert reasons == {0: "length", 1: "cancelled"}


def test_a_chat_is_streamed_as_deltas(engine: weft.SyncEngine) -> None:
    deltas = list(engine.stream_chat(MESSAGES, max_tokens=12, temperature=0))
    content = "".join(delta.text for delta in deltas if isinstance(delta, weft.ContentDelta))
    assert content == engine.chat(MESSAGES, max_tokens=12, temperature=0).message.content != ""


def test_scores_and_embeddings(engine: weft.SyncEngine) -> None:
    rain, snow = engine.score("The sky is dark. There will be", [" rain", " snow"])
    assert rain.logprob < 0 > snow.logprob
    assert len(engine.embed(["a fox", "a dog"]).n_tokens) == 2


def test_errors_are_those_of_the_asynchronous_engine(engine: weft.SyncEngine) -> None:
    with pytest.raises(weft.InvalidRequestError, match="max_tokens"):
        engine.complete(PROMPT, max_tokens=-1)


async def test_it_works_where_an_event_loop_is_running(engine: weft.SyncEngine) -> None:
    await asyncio.sleep(0)
    assert engine.complete(PROMPT, max_tokens=2).text


def test_threads_share_the_engine(engine: weft.SyncEngine) -> None:
    with ThreadPoolExecutor(4) as threads:
        completions = list(threads.map(lambda seed: engine.complete(PROMPT, max_tokens=4, seed=seed).text, range(8)))
    assert len(completions) == 8


def test_a_call_on_its_own_event_loop_is_refused(engine: weft.SyncEngine) -> None:
    async def call(_: weft.Engine) -> None:
        engine.complete(PROMPT, max_tokens=1)

    with pytest.raises(RuntimeError, match="its own event loop"):
        engine.call(call)


def test_a_closed_engine_stays_closed() -> None:
    engine = weft.SyncEngine(n_slots=1, n_ctx=256, n_threads=1)
    with engine:
        assert engine.complete(PROMPT, max_tokens=1).text is not None
    engine.close()
    with pytest.raises(weft.EngineStoppedError):
        engine.stream(PROMPT)


@pytest.mark.parametrize(
    "name", ["complete", "stream", "chat", "stream_chat", "infill", "stream_infill", "embed", "rerank", "score"]
)
def test_its_methods_have_the_parameters_of_the_asynchronous_ones(name: str) -> None:
    ours, theirs = (list(inspect.signature(getattr(cls, name)).parameters) for cls in (weft.SyncEngine, weft.Engine))
    assert ours == theirs
