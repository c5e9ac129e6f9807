"""What a stream yields is plain data: it can be kept, sent, compared, and made by hand."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import cast

import msgspec
import pytest

import weft
from tests.helpers import collect, is_idle, prompt_of, wait_until
from tests.server.matchers import Json
from weft import Choice, Completion, Event, Finished, Logprob, Logprobs, Progress, PromptLogprobs, Token, Usage
from weft._native import CompactLogprobs

USAGE = Usage(n_computed=3, n_cached=4, n_predicted=2, n_context=8, prompt_ms=1.5, predicted_ms=2.5)
DRAWN = Logprobs(Logprob(7, b"a", -0.5), (Logprob(7, b"a", -0.5), Logprob(8, b"\xff", -1.5)))
BY_HAND: list[Json] = [
    DRAWN.chosen,
    DRAWN,
    Token(0, 7, "a", slot=1, n_predicted=2, logprobs=DRAWN),
    Token(0, 7, "a", slot=1, n_predicted=2),
    PromptLogprobs(0, (None, DRAWN)),
    Progress(7, 4, 7, 1.5),
    USAGE,
    Finished(0, "stop", USAGE, slot=1, stop_reason="b"),
    Completion(
        choices=(
            Choice(
                index=0,
                text="a",
                token_ids=(7,),
                finish_reason="stop",
                stop_reason=7,
                is_context_full=False,
                is_truncated=False,
                usage=USAGE,
                logprobs=(DRAWN,),
            ),
        ),
        seed=1,
        n_prompt=7,
        prompt_logprobs=(None, DRAWN),
    ),
]


def pickled(value: Json) -> Json:
    return pickle.loads(pickle.dumps(value))


def as_json(value: Json) -> Json:
    return msgspec.json.decode(msgspec.json.encode(value), type=type(value))


def as_message_pack(value: Json) -> Json:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=type(value))


WAYS = [pickled, copy.copy, copy.deepcopy, as_json, as_message_pack]


async def events(engine: weft.Engine) -> list[Event]:
    request = weft.Request(
        prompt="Once upon a time,", n=2, max_tokens=3, logprobs=2, prompt_logprobs=1, report_progress=True, stop=["."], seed=1
    )
    return [event async for event in engine.stream(request)]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_is_made_by_hand_goes_there_and_back(way: Callable[[Json], Json]) -> None:
    for value in BY_HAND:
        assert way(value) == value


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_what_the_engine_makes_goes_there_and_back(engine: weft.Engine, way: Callable[[Json], Json]) -> None:
    told = await events(engine)
    assert {type(event) for event in told} == {Token, Finished, Progress, PromptLogprobs}
    for event in told:
        assert way(event) == event
    completion = await engine.complete("Once upon a time,", n=2, max_tokens=3, logprobs=2, prompt_logprobs=1)
    assert way(completion) == completion


async def test_a_stream_tells_why_its_prompt_is_computed_though_nothing_is_read(engine: weft.Engine) -> None:
    stream = engine.stream(prompt_of(30, "why it is computed"), max_tokens=2, explain_cache=True)
    await wait_until(lambda: stream.explanation is not None)
    told = stream.explanation
    assert told is not None
    assert (told.request_id, told.n_prompt, told.computed[0].cause) == (stream.request_id, 30, "never_seen")
    [end] = [event for event in await collect(stream) if isinstance(event, Finished)]
    assert end.explanation == told == stream.explanation
    unasked = engine.stream(prompt_of(30, "why it is computed"), max_tokens=2)
    assert len(await collect(unasked)) > 1
    assert unasked.explanation is None


async def test_what_the_engine_makes_is_equal_to_the_same_made_by_hand(engine: weft.Engine) -> None:
    for event in await events(engine):
        by_hand = type(event)(*[getattr(event, name) for name in event.__struct_fields__])
        assert event == by_hand
        assert hash(event) == hash(by_hand)
        with pytest.raises(AttributeError):
            setattr(event, event.__struct_fields__[0], 1)


def test_a_spelling_that_is_no_text_is_shown_as_well_as_it_can_be() -> None:
    assert Logprob(8, b"a\xff", -1.5).text == "a\ufffd"


def test_the_prompt_is_what_was_computed_and_what_was_found() -> None:
    assert USAGE.n_prompt == 7


async def test_a_batch_is_bounded_by_what_its_events_hold(engine: weft.Engine) -> None:
    stream = engine.stream("Once upon a time,", n=4, max_tokens=8, logprobs=1000, prompt_logprobs=1000, ignore_eos=True)
    await wait_until(lambda: is_idle(engine))
    batches = []
    while batch := await stream.next_batch():
        batches.append([len(event.logprobs.top) for event in batch if isinstance(event, Token) and event.logprobs])
        assert all(len(event.logprobs) == 1 for event in batch if isinstance(event, PromptLogprobs))
    assert sum(map(sum, batches)) == 4 * 8 * 1000
    # 256 KiB are passed with the fifth event of a thousand log-probabilities.
    assert max(map(len, batches)) == 5


async def read_compact(stream: weft.Stream) -> list[Event]:
    events = []
    while batch := await stream.next_batch(compact=True):
        events += batch
    return events


def as_written(logprobs: Logprobs, name: str, value: Callable[[float], float]) -> tuple[Json, ...]:
    """What compact log-probabilities are to write: with and without the likely ones, for `/completion`, and for OpenAI."""

    def one(logprob: Logprob) -> Json:
        entry = {"id": logprob.token, "token": logprob.text, "bytes": list(logprob.bytes)}
        return entry | {name: pytest.approx(value(logprob.logprob))}

    top = {f"top_{name}s": [one(logprob) for logprob in logprobs.top]}
    candidates = [{"prob": pytest.approx(math.exp(logprob.logprob)), "tok_str": logprob.text} for logprob in logprobs.top]
    by_text = {logprob.text: pytest.approx(logprob.logprob) for logprob in reversed(logprobs.top)}
    told = one(logprobs.chosen) | top
    return told, told | {f"top_{name}s": []}, told | {"content": logprobs.chosen.text, "probs": candidates}, by_text


@pytest.mark.parametrize("is_prob", [False, True])
async def test_compact_log_probabilities_write_what_the_others_hold(engine: weft.Engine, is_prob: bool) -> None:
    # All of the vocabulary: half characters, which are spelt alike, and what JSON has to escape.
    asked: Json = {"prompt": "Once", "max_tokens": 3, "logprobs": 1000, "prompt_logprobs": 1000, "seed": 1}
    plain = [event async for event in engine.stream(**asked)]
    compacts = await read_compact(engine.stream(**asked))
    n_told = 0
    for event, compact in zip(plain, compacts, strict=True):
        match event, compact:
            case Token(), Token():
                pairs = [(event.logprobs, compact.logprobs)]
            case PromptLogprobs(), PromptLogprobs():
                pairs = list(zip(event.logprobs, compact.logprobs, strict=True))
            case _:
                assert type(event) is type(compact)
                continue
        for one, other in pairs:
            if one is None or other is None:
                assert one is other
                continue
            writes = cast("CompactLogprobs", other)
            assert (writes.chosen, len(writes)) == (one.chosen, len(one.top))
            written = [writes.token_json(True, is_prob), writes.token_json(False, is_prob), writes.completion_json(is_prob)]
            name, value = ("prob", math.exp) if is_prob else ("logprob", float)
            expected = as_written(one, name, value)
            assert [msgspec.json.decode(text) for text in (*written, writes.top_json())] == list(expected)
            n_told += 1
    assert n_told > 3


async def test_a_stream_that_is_readable_keeps_what_it_has(engine: weft.Engine) -> None:
    stream = engine.stream("Once upon a time,", max_tokens=1)
    await stream.readable()
    await stream.readable()
    assert [type(event) async for event in stream] == [Token, Finished]
    await stream.readable()
    assert await stream.next_batch() == []
