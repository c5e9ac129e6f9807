import asyncio
import json
import math
import time
from collections.abc import Callable
from types import SimpleNamespace

import msgspec
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.helpers import How
from tests.server.conftest import answers
from tests.server.live import events_of
from tests.server.matchers import Json
from tests.server.scripted import ScriptedEngine, connect, token
from weft import EngineStoppedError
from weft.server import create_app
from weft.server.memory_budget import responses_budget
from weft.server.streaming import fair_scheduler, responses, sse
from weft.server.streaming.encoder import Encoder
from weft.settings import Settings


class Line(msgspec.Struct):
    text: str


def test_a_frame_is_one_line_of_data_and_an_empty_line() -> None:
    assert sse.frame(Line("a")) == b'data: {"text":"a"}\n\n'


@pytest.mark.parametrize("text", ["\n", "\r\n", "\r", "\u2028", "a\n\ndata: b", "é🙂"])
def test_no_text_breaks_a_frame(text: str) -> None:
    frame = sse.frame(Line(text))
    assert frame.startswith(b"data: ")
    assert frame.endswith(b"\n\n")
    assert b"\n" not in frame[:-2]
    assert b"\r" not in frame
    assert json.loads(frame.removeprefix(b"data: ")) == {"text": text}


def test_the_end_of_openais_dialect_is_a_word() -> None:
    assert sse.DONE == b"data: [DONE]\n\n"


def test_an_error_in_mid_stream_has_the_shape_of_an_answer() -> None:
    assert sse.error_frame(EngineStoppedError()) == (
        b'data: {"error":{"code":503,"message":"the engine has stopped","type":"unavailable_error"}}\n\n'
    )


async def test_silence_carries_comments_and_starts_the_answer() -> None:
    engine = ScriptedEngine([])
    engine.loaded.set()
    app = create_app(engine.as_engine(), Settings(ping_s=0.01))
    async with AsyncTestClient(app):
        start, *pings = await connect(app, "/completion", {"prompt": "abc", "stream": True}, lambda sent: len(sent) == 3)
    assert (start["type"], start["status"]) == ("http.response.start", 200)
    assert pings == [{"type": "http.response.body", "body": b": ping\n\n", "more_body": True}] * 2
    assert engine.streams[0].is_closed


async def test_all_events_of_a_step_leave_in_one_write() -> None:
    engine = ScriptedEngine([[token(0, "a"), token(1, "b")], [token(1, "c"), token(0, "d")]])
    engine.loaded.set()
    app = create_app(engine.as_engine())
    async with AsyncTestClient(app):
        body = {"prompt": "abc", "n": 2, "stream": True}
        _, first, second = await connect(app, "/completion", body, lambda sent: len(sent) == 3)
    assert [event["content"] for event in map(json.loads, events_of(first["body"].decode()))] == ["a", "b"]
    assert [event["content"] for event in map(json.loads, events_of(second["body"].decode()))] == ["c", "d"]


async def test_what_has_piled_up_leaves_in_writes_of_bounded_size_between_which_others_have_their_turn() -> None:
    engine = ScriptedEngine([[token(0, "x" * 100_000) for _ in range(10)]])
    engine.loaded.set()
    app = create_app(engine.as_engine())
    n_turns = 0

    async def others() -> None:
        nonlocal n_turns
        while True:
            n_turns += 1
            await asyncio.sleep(0)

    async with AsyncTestClient(app):
        turning = asyncio.create_task(others())
        turns: list[int] = []

        def leave(sent: list[Json]) -> bool:
            turns.append(n_turns)
            return len(sent) == 11

        _, *writes = await connect(app, "/completion", {"prompt": "abc", "stream": True}, leave)
        turning.cancel()
    assert [len(events_of(write["body"].decode())) for write in writes] == [1] * 10
    assert len(set(turns[-3:])) == 3


class Turns(Encoder):
    """Counts the turns that others have, and notes how many there were at each event of a whole answer."""

    def __init__(self) -> None:
        self.n = 0
        self.noted: list[int] = []

    async def count(self) -> None:
        while True:
            self.n += 1
            await asyncio.sleep(0)

    def add(self, _prompt: int, _event: Json) -> int:
        self.noted.append(self.n)
        return 0

    def body(self) -> list[bytes]:
        return [b"{}"]


async def test_others_have_their_turn_while_a_whole_answer_is_taken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_scheduler, "SLICE_S", 0)
    turns = Turns()
    batches = [[(0, [token(0, "x")] * 5)], [(0, [token(0, "y")] * 5)], []]

    async def next_batches() -> Json:
        return batches.pop(0)

    async def receive() -> Json:
        await asyncio.get_running_loop().create_future()

    async def send(_: Json) -> None:
        pass

    generation: Json = SimpleNamespace(id="a", next_batches=next_batches, close=lambda: None, explanations=())
    counting = asyncio.create_task(turns.count())
    scope: Json = {"type": "http", "headers": []}
    await responses.CollectedResponse(generation, turns, responses_budget())(scope, receive, send)
    counting.cancel()
    assert len(turns.noted) == len(set(turns.noted)) == 10


class SilentForm(Encoder):
    """Whose events show nothing, so that nothing is ever written of them."""

    def __init__(self) -> None:
        self.turns = Turns()

    def frames(self, prompt: int, event: Json) -> list[bytes]:
        self.turns.add(prompt, event)
        return []

    def end(self) -> bytes:
        return b"end"


@pytest.mark.parametrize("has_much", [False, True])
async def test_others_have_their_turn_while_a_stream_is_taken_up_that_shows_nothing(
    monkeypatch: pytest.MonkeyPatch, *, has_much: bool
) -> None:
    monkeypatch.setattr(fair_scheduler, "SLICE_S", 0)
    monkeypatch.setattr(fair_scheduler, "HEAVY_S", 0 if has_much else math.inf)
    waited: list[int] = []

    yield_fairly = fair_scheduler.yield_fairly

    async def noted_turn() -> None:
        waited.append(len(form.turns.noted))
        await yield_fairly()

    monkeypatch.setattr(fair_scheduler, "yield_fairly", noted_turn)
    form = SilentForm()
    batches = [[(0, [token(0, "x")] * 5)], [(0, [token(0, "y")] * 5)], []]
    sent: list[Json] = []

    async def next_batches() -> Json:
        return batches.pop(0)

    async def send(message: Json) -> None:
        sent.append(message)

    generation: Json = SimpleNamespace(id="a", next_batches=next_batches, close=lambda: None)
    counting = asyncio.create_task(form.turns.count())
    await responses.StreamedResponse(generation, form, None).write(send)
    counting.cancel()
    assert len(form.turns.noted) == len(set(form.turns.noted)) == 10
    # Only who has much waits for others that have, too.
    assert waited == (list(range(1, 11)) if has_much else [])
    assert [message.get("body") for message in sent] == [None, b"end"]


class SlowForm(SilentForm):
    """Whose work on an event takes longer than it takes to write much."""

    def __init__(self, work: Callable[[float], object]) -> None:
        super().__init__()
        self._work = work

    def frames(self, prompt: int, event: Json) -> list[bytes]:
        self._work(1.5 * fair_scheduler.HEAVY_S)
        return super().frames(prompt, event)

    def add(self, _prompt: int, _event: Json) -> int:
        self._work(1.5 * fair_scheduler.HEAVY_S)
        return 0

    def body(self) -> list[bytes]:
        return [b"{}"]


def use_a_processor(seconds: float) -> None:
    """For so long, whoever else has it meanwhile."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def n_turns_waited(monkeypatch: pytest.MonkeyPatch, how: How, form: Json, batches: list[Json]) -> int:
    """Takes all batches up; returns how often that waited for others that have much."""
    n_turns = 0

    async def yield_fairly() -> None:
        nonlocal n_turns
        n_turns += 1

    async def next_batches() -> Json:
        return batches.pop(0)

    async def send(_: Json) -> None:
        pass

    async def receive() -> Json:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(fair_scheduler, "yield_fairly", yield_fairly)
    generation: Json = SimpleNamespace(id="a", next_batches=next_batches, close=lambda: None, explanations=())
    scope: Json = {"type": "http", "headers": []}
    if how == "stream":
        await responses.StreamedResponse(generation, form, None).write(send)
    else:
        await responses.CollectedResponse(generation, form, responses_budget())(scope, receive, send)
    assert batches == []
    return n_turns


async def test_who_has_little_and_waits_for_a_processor_does_not_wait_for_those_that_have_much(
    monkeypatch: pytest.MonkeyPatch, how: How
) -> None:
    batches: list[Json] = [[(0, [token(0, "x")] * 2)], [(0, [token(0, "y")] * 3)], []]
    assert await n_turns_waited(monkeypatch, how, SlowForm(time.sleep), batches) == 0


async def test_who_has_much_waits_for_others_that_have_from_the_second_turn_on(monkeypatch: pytest.MonkeyPatch, how: How) -> None:
    batches: list[Json] = [[(0, [token(0, "x")])], [(0, [token(0, "y")])], [(0, [token(0, "z")] * 2)], []]
    assert await n_turns_waited(monkeypatch, how, SlowForm(use_a_processor), batches) == 3


async def test_an_answer_is_written_at_most_once_per_step() -> None:
    engine = weft.Engine(n_slots=4, n_ctx=1024, n_threads=1)
    app = create_app(engine)
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        body = {"prompt": "Once upon a time,", "n": 4, "n_predict": 30, "ignore_eos": True, "stream": True}
        start, *writes = await connect(app, "/completion", body, lambda sent: False)
        n_decodes = engine.stats().n_decodes
    assert start["status"] == 200
    assert len(events_of(b"".join(write["body"] for write in writes).decode())) == 4 * (30 + 1)
    # One for each step that showed something, and the empty one that ends the body.
    assert len(writes) <= n_decodes + 1


async def test_a_client_that_leaves_before_the_first_event_closes_its_streams(path: str, how: How) -> None:
    engine = ScriptedEngine([], [])
    engine.loaded.set()
    app = create_app(engine.as_engine())
    async with AsyncTestClient(app):
        sent = await connect(app, path, {"prompt": ["abc", "abd"], "stream": how == "stream"}, lambda sent: True)
    assert sent == []
    assert [stream.is_closed for stream in engine.streams] == [True, True]
