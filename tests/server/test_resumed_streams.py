"""Streams that go on while their client is away, and are read again from any byte."""

import asyncio
import gc
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import cast
from weakref import ReferenceType, ref

import httpx
import pytest
from litestar.testing import AsyncTestClient
from litestar.types import Send

import weft
from tests.helpers import wait_until
from tests.server.live import LiveServer
from tests.server.matchers import COUNT, Json
from tests.server.scripted import ScriptedEngine, finished, token
from tests.server.serving import serving
from weft.server import create_app
from weft.server.errors import OffsetLostError, StreamEndedError, StreamsFullError
from weft.server.responses.events import offset_after
from weft.server.streaming import recording
from weft.server.streaming.recording import Recording, RecordingResponse, Recordings
from weft.server.streaming.responses import StreamedResponse
from weft.settings import Settings

SAID = [[token(0, "a")], [token(0, "b", 2)], [finished(0)], []]

CHAT: Json = {"messages": [{"role": "user", "content": "hi"}], "stream": True}

ENDLESS: Json = CHAT | {"ignore_eos": True}
"""More than a test waits for."""

PATHS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hi", "stream": True},
    "/completion": {"prompt": "hi", "stream": True},
    "/v1/responses": {"input": "hi", "stream": True},
}


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


def named(name: str, of: str = "") -> dict[str, str]:
    return {"X-Conversation-Id": name} | (key(of) if of else {})


async def again(client: httpx.AsyncClient, name: str, begin: int = 0, **more: Json) -> httpx.Response:
    """The stream of this name from a byte on."""
    return await client.get("/v1/stream", params={"conv_id": name, "from": begin}, **more)


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_is_read_again_from_any_byte(path: str) -> None:
    async with serving(SAID) as client:
        first = await client.post(path, json=PATHS[path], headers=named("one"))
        assert first.status_code == 200, first.text
        assert first.headers["content-type"].startswith("text/event-stream")
        whole = first.content
        for begin in range(0, len(whole) + 1, 7):
            assert (await again(client, "one", begin)).content == whole[begin:]
        looked = await client.post("/v1/streams/lookup", json={"conversation_ids": ["one", "two"]})
        assert looked.json() == [
            {
                "conversation_id": "one",
                "is_done": True,
                "total_bytes": len(whole),
                "started_at": COUNT,
                "completed_at": COUNT,
            }
        ]


async def test_who_waits_for_what_never_began_hears_of_it_with_no_more_behind_it_each_time() -> None:
    async with serving([weft.EngineStoppedError()]) as client:
        assert (await client.post("/v1/completions", json=PATHS["/v1/completions"], headers=named("one"))).status_code == 503
        found = next(one for one in gc.get_objects() if isinstance(one, Recording) and one.name == "one")
        depths = []
        for _ in range(3):
            with pytest.raises(weft.EngineStoppedError) as stopped:
                await found.wait_started()
            depths.append(len(stopped.traceback))
    assert len(set(depths)) == 1


async def test_a_client_that_drops_and_comes_back_misses_nothing(live: LiveServer) -> None:
    async with httpx.AsyncClient(base_url=live.url, timeout=20) as client:
        body = CHAT | {"ignore_eos": True, "max_tokens": 300, "seed": 3}
        got = b""
        async with client.stream("POST", "/v1/chat/completions", json=body, headers=named("drops")) as answer:
            async for part in answer.aiter_raw():
                got += part
                if len(got) > 2_000:
                    break
        [kept] = (await client.post("/v1/streams/lookup", json={"conversation_ids": ["drops"]})).json()
        assert kept["total_bytes"] >= len(got)
        got += (await again(client, "drops", len(got))).content
        events = got.decode().removesuffix("\n\n").split("\n\n")
        assert events[-1] == "data: [DONE]"
        chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1] if not event.startswith(":")]
        texts = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"]]
        assert got == (await again(client, "drops")).content
        whole = (await client.post("/v1/chat/completions", json=body | {"stream": False})).json()
        assert whole["usage"]["completion_tokens"] == 300
        assert "".join(texts) == whole["choices"][0]["message"]["content"] != ""


async def test_only_who_asks_for_it_ends_it_before_its_time(live: LiveServer) -> None:
    async with httpx.AsyncClient(base_url=live.url, timeout=20) as client:
        async with client.stream("POST", "/v1/chat/completions", json=ENDLESS, headers=named("ends")) as answer:
            await anext(answer.aiter_raw())
        await asyncio.sleep(0.1)
        assert live.busy_slots() != []
        assert (await client.delete("/v1/stream", params={"conv_id": "ends"})).status_code == 204
        await wait_until(lambda: live.busy_slots() == [], 2)
        assert (await again(client, "ends")).status_code == 404
        assert (await client.delete("/v1/stream", params={"conv_id": "ends"})).status_code == 204


async def test_another_stream_of_the_same_name_ends_the_first(live: LiveServer) -> None:
    async with httpx.AsyncClient(base_url=live.url, timeout=20) as client:
        async with client.stream("POST", "/v1/chat/completions", json=ENDLESS, headers=named("same")) as answer:
            await anext(answer.aiter_raw())
            last = await client.post("/v1/chat/completions", json=CHAT | {"max_tokens": 1}, headers=named("same"))
            await wait_until(lambda: live.busy_slots() == [], 2)
        assert (await again(client, "same")).content == last.content


async def test_of_several_that_begin_by_one_name_at_once_one_stays() -> None:
    streams = Recordings(nullcontext)
    await recorded(streams, "same", b"a", ends=False)
    written = [Written(b"b" * 100) for _ in range(6)]
    made = await asyncio.gather(*[streams.begin(None, "same", one.as_answer(), grace_s=None) for one in written])
    assert [one for one in made if not one.is_ended] == [streams.find(None, "same")]
    assert [one.is_closed for one in written].count(False) == 1
    await streams.close()
    assert all(one.is_closed for one in written)
    assert streams.n_bytes == 0


class Written:
    """A stream that writes what it is told to, and then waits."""

    def __init__(self, *parts: bytes, ends: bool = False) -> None:
        self.parts = list(parts)
        self.ends = ends
        self.is_closed = False

    async def write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in self.parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        if not self.ends:
            await asyncio.get_running_loop().create_future()

    def close(self) -> None:
        self.is_closed = True

    def failure(self, error: Exception) -> bytes:
        return str(error).encode()

    def as_answer(self) -> StreamedResponse:
        return cast("StreamedResponse", self)


async def recorded(streams: Recordings, name: str, *parts: bytes, owner: str | None = None, ends: bool = True) -> Recording:
    """A stream that has written all that it is told to."""
    made = await streams.begin(owner, name, Written(*parts, ends=ends).as_answer(), grace_s=None)
    n_bytes = sum(map(len, parts))
    await wait_until(lambda: made.is_ended if ends else made.n_bytes == n_bytes)
    return made


async def test_who_does_not_come_back_frees_the_slot() -> None:
    streams, answer = Recordings(nullcontext), Written(b"a")
    made = await streams.begin(None, "away", answer.as_answer(), grace_s=0.02)
    with made.reader():
        await asyncio.sleep(0.05)
        assert not made.is_ended, "somebody is there"
    await wait_until(lambda: made.is_ended)
    assert answer.is_closed
    assert made.kept == b"a" + b"the stream was ended because no client read it for 0.02 s"


async def test_of_a_long_stream_the_last_bytes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_BYTES", 10)
    made = await recorded(Recordings(nullcontext), "long", b"0123456", b"789abcdef")
    assert (made.n_dropped, made.n_bytes) == (6, 16)
    assert await made.read(6) == b"6789abcdef"
    assert await made.read(16) == b""
    with pytest.raises(OffsetLostError):
        await made.read(5)


async def test_what_is_no_longer_kept_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_BYTES", 100)
    async with serving(SAID) as client:
        await client.post("/v1/chat/completions", json=CHAT, headers=named("long"))
        lost = await again(client, "long")
    assert (lost.status_code, lost.json()["error"]["param"]) == (400, "from")


async def test_a_stream_is_forgotten_some_time_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Recordings(nullcontext)
    await recorded(streams, "kept", b"de")
    monkeypatch.setattr(recording, "KEPT_S", 0.05)
    await recorded(streams, "ended", b"abc")
    await recorded(streams, "running", b"a", ends=False)
    # Whether anybody asks or not.
    await wait_until(lambda: streams.n_bytes == 3)
    assert streams.find(None, "ended") is None
    assert streams.find(None, "kept") is not None
    assert streams.find(None, "running") is not None
    await streams.close()


@pytest.mark.parametrize("grace_s", [None, 60.0])
@pytest.mark.parametrize("ends", [False, True])
async def test_nothing_holds_what_was_forgotten(*, ends: bool, grace_s: float | None) -> None:
    streams = Recordings(nullcontext)

    async def read_and_forgotten() -> ReferenceType[Recording]:
        made = await streams.begin(None, "a", Written(b"a", ends=ends).as_answer(), grace_s=grace_s)
        with made.reader():
            await wait_until(lambda: made.n_bytes == 1)
        await wait_until(lambda: made.is_ended is ends)
        await streams.end(None, "a")
        return ref(made)

    held = await read_and_forgotten()
    await asyncio.sleep(0)
    gc.collect()
    assert held() is None


class Queued(Written):
    """A stream that waits before it has written anything."""

    async def write(self, send: Send) -> None:
        await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("answer", [Queued(), Written(b"a")], ids=["waiting", "begun"])
async def test_who_reads_a_stream_that_is_ended_is_told(answer: Written) -> None:
    streams = Recordings(nullcontext)
    made = await streams.begin(None, "a", answer.as_answer(), grace_s=None)
    sent: list[Json] = []

    async def send(message: Json) -> None:
        sent.append(message)

    reading = asyncio.create_task(RecordingResponse(made)({}, asyncio.Event().wait, send))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    await streams.end(None, "a")
    if answer.parts:
        await reading
        told = b"the stream was ended, by a request to end it or by another stream with its name"
        assert b"".join(message.get("body", b"") for message in sent) == b"a" + told
    else:
        with pytest.raises(StreamEndedError):
            await reading
        assert sent == []


async def test_of_too_many_those_that_have_ended_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_STREAMS", 2)
    streams = Recordings(nullcontext)
    await recorded(streams, "a", b"a", ends=False)
    await recorded(streams, "b", b"b")
    await recorded(streams, "c", b"c", ends=False)
    assert [name for name in "abc" if streams.find(None, name)] == ["a", "c"]
    refused = Written()
    with pytest.raises(StreamsFullError):
        await streams.begin(None, "d", refused.as_answer(), grace_s=None)
    assert refused.is_closed
    await streams.close()
    assert streams.n_bytes == 0


async def test_all_of_them_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_TOGETHER_BYTES", 10)
    monkeypatch.setattr(recording, "OWN_BYTES", 1)
    streams = Recordings(nullcontext)
    await recorded(streams, "a", b"aaaa")
    b = await recorded(streams, "b", b"bbbb", ends=False)
    c = await recorded(streams, "c", b"vwxyz", ends=False)
    assert streams.find(None, "a") is None
    assert (bytes(b.kept), bytes(c.kept)) == (b"bbbb", b"vwxyz")
    d = await recorded(streams, "d", b"0123", ends=False)
    assert (bytes(b.kept), bytes(c.kept), bytes(d.kept)) == (b"bbbb", b"yz", b"0123")
    assert streams.n_bytes == 10
    await streams.close()


async def test_the_key_that_has_most_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_TOGETHER_BYTES", 100)
    monkeypatch.setattr(recording, "MAX_STREAMS", 6)
    monkeypatch.setattr(recording, "OWN_BYTES", 10)
    streams = Recordings(nullcontext)
    ours = await recorded(streams, "ours", b"a" * 30, owner="one")
    theirs = await recorded(streams, "m", b"m" * 70, owner="two", ends=False)
    new = await recorded(streams, "new", b"n" * 20, owner="one", ends=False)
    assert [len(one.kept) for one in (ours, theirs, new)] == [30, 50, 20]
    for nth in range(20):
        await recorded(streams, f"short {nth}", b"s", owner="two")
    assert streams.find("one", "ours") is ours
    await streams.close()


@pytest.mark.parametrize("fills_the_room", [False, True])
async def test_who_reads_as_it_is_written_loses_nothing(fills_the_room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_BYTES", 100)
    monkeypatch.setattr(recording, "MAX_WRITE_BYTES", 20)
    monkeypatch.setattr(recording, "MAX_TOGETHER_BYTES", 200)
    monkeypatch.setattr(recording, "OWN_BYTES", 50)
    streams = Recordings(nullcontext)
    for nth in range(4 if fills_the_room else 0):
        await recorded(streams, f"full {nth}", b"f" * 60, owner="another", ends=False)
    parts = [bytes([nth]) * nth for nth in range(60)]
    made = await streams.begin(None, "a", Written(*parts, ends=True).as_answer(), grace_s=60.0)
    got = b""

    async def send(message: Json) -> None:
        nonlocal got
        got += message.get("body", b"")
        await asyncio.sleep(0.0001)

    await RecordingResponse(made)({}, asyncio.Event().wait, send)  # type: ignore[arg-type]
    assert got == b"".join(parts)
    await streams.close()


async def test_who_reads_nothing_any_more_is_waited_for_as_if_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_BYTES", 10)
    made = await Recordings(nullcontext).begin(None, "a", Written(*[b"abcd"] * 5, ends=True).as_answer(), grace_s=0.1)
    with made.reader():
        await asyncio.sleep(0.02)
        assert made.n_bytes == 8
        await wait_until(lambda: made.is_ended)
    assert (made.n_bytes, bytes(made.kept)) == (20, b"cdabcdabcd")


async def test_a_stream_is_found_by_a_name_before_its_model() -> None:
    streams = Recordings(nullcontext)
    for name in ("a::x", "b", "a", "ab::x", "a::x::y"):
        await recorded(streams, name)
    await recorded(streams, "a", owner="another")
    assert [found.name for found in streams.of_conversations(None, ["b", "a", "b"])] == ["b", "a::x", "a", "a::x::y"]
    assert [found.name for found in streams.of_conversations(None, ["a::x"])] == ["a::x", "a::x::y"]


async def test_one_key_never_sees_anothers_streams() -> None:
    engine = ScriptedEngine(SAID, SAID)
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine(), Settings(api_keys=("one", "two")))) as client:
        await client.post("/v1/chat/completions", json=CHAT, headers=named("same", "one"))
        assert (await again(client, "same", headers=key("one"))).status_code == 200
        assert (await again(client, "same", headers=key("two"))).status_code == 404
        looked = await client.post("/v1/streams/lookup", json={"conversation_ids": ["same"]}, headers=key("two"))
        assert looked.json() == []
        assert (await client.delete("/v1/stream", params={"conv_id": "same"}, headers=key("two"))).status_code == 204
        assert (await again(client, "same", headers=key("one"))).status_code == 200


async def test_what_fails_before_its_first_byte_is_an_error_of_its_own() -> None:
    async with serving([weft.EngineStoppedError()]) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT, headers=named("fails"))
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "unavailable_error")


async def test_a_reader_who_is_too_slow_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_BYTES", 10)
    made = await recorded(Recordings(nullcontext), "fast", b"0123456789abc")
    sent: list[Json] = []

    async def send(message: Json) -> None:
        sent.append(message)

    await RecordingResponse(made)({}, asyncio.Event().wait, send)  # type: ignore[arg-type]
    assert b"no longer stored" in sent[-1]["body"]


def numbered(number: int, n_more: int) -> bytes:
    return b'event: a\ndata: {"type":"a","sequence_number":%d,"x":"%s"}\n\n' % (number, b"x" * n_more)


@pytest.mark.parametrize("n_last", [10, 3_000], ids=["some", "none"])
async def test_events_are_found_by_their_numbers_or_known_to_be_lost(n_last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_BYTES", 2_000)
    draw = random.Random(n_last)
    frames = [numbered(number, draw.randrange(60)) for number in range(80)] + [numbered(80, n_last)]
    made = await recorded(Recordings(nullcontext), "any", b": ping\n\n", *frames)
    begins = [8 + sum(map(len, frames[:nth])) for nth in range(82)]
    assert any(begin >= made.n_dropped for begin in begins[:-1]) is (n_last == 10)
    for number in range(-1, 81):
        if begins[number + 1] < made.n_dropped or n_last > 2_000:
            with pytest.raises(weft.InvalidRequestError, match=f"^starting_after is {number};"):
                offset_after(made, number)
        else:
            assert offset_after(made, number) == begins[number + 1]


async def test_all_events_are_found_by_their_numbers() -> None:
    made = await recorded(Recordings(nullcontext), "any", *[numbered(number, number % 7) for number in range(20)])
    for number in range(-1, 20):
        assert made.kept[offset_after(made, number) :] == b"".join(numbered(n, n % 7) for n in range(number + 1, 20))
    assert offset_after(await recorded(Recordings(nullcontext), "empty"), -1) == 0


@pytest.mark.parametrize(
    ("query", "param"), [({}, "conv_id"), ({"conv_id": "a", "from": "-1"}, "from"), ({"conv_id": "a", "from": "x"}, "from")]
)
async def test_what_is_wrong_with_a_query_is_named(query: dict[str, str], param: str) -> None:
    async with serving(SAID) as client:
        await client.post("/v1/chat/completions", json=CHAT, headers=named("a"))
        answer = await client.get("/v1/stream", params=query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_name_that_is_too_long_is_refused() -> None:
    async with serving(SAID) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT, headers=named("x" * 257))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "X-Conversation-Id")


async def test_an_answer_that_is_not_streamed_has_no_name() -> None:
    async with serving(SAID) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT | {"stream": False}, headers=named("whole"))
        assert answer.status_code == 200
        assert (await again(client, "whole")).status_code == 404


@pytest.mark.parametrize("seed", range(10))
async def test_whatever_is_written_what_is_read_is_that(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_BYTES", 100)
    monkeypatch.setattr(recording, "MAX_WRITE_BYTES", 17)
    draw = random.Random(seed)
    parts = [draw.randbytes(draw.randrange(40)) for _ in range(20)]
    whole = b"".join(parts)
    made = await recorded(Recordings(nullcontext), "any", *parts)
    assert made.n_dropped == max(len(whole) - 100, 0)
    for begin in range(made.n_dropped, len(whole) + 1):
        read = b""
        while part := await made.read(begin + len(read)):
            read += part
        assert read == whole[begin:]


async def test_the_model_stays_loaded_as_long_as_a_stream_is_written() -> None:
    n_awake = [0]

    @asynccontextmanager
    async def awake() -> AsyncIterator[None]:
        n_awake[0] += 1
        try:
            yield
        finally:
            n_awake[0] -= 1

    streams = Recordings(awake)
    await recorded(streams, "a", b"a", ends=False)
    assert n_awake == [1]
    await streams.close()
    assert n_awake == [0]
