import json

import msgspec
import pytest
from litestar.testing import AsyncTestClient

from tests.server.live import events_of
from tests.server.scripted import ScriptedEngine, connect, token
from weft import ContextOverflow, DecodeError, EngineStopped, InvalidRequest, QueueFull, SlowReader
from weft.server import create_app, sse
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
    assert sse.error_frame(EngineStopped()) == (
        b'data: {"error":{"code":503,"message":"the engine has stopped","type":"unavailable_error"}}\n\n'
    )


@pytest.mark.parametrize(
    ("error", "status", "described"),
    [
        (
            ContextOverflow(70, 64),
            400,
            {
                "code": 400,
                "message": "the prompt of 70 tokens does not fit in the context of 64 tokens",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 70,
                "n_ctx": 64,
            },
        ),
        (InvalidRequest("n", "n is 0"), 400, {"code": 400, "message": "n is 0", "type": "invalid_request_error", "param": "n"}),
        (
            QueueFull(9),
            429,
            {
                "code": 429,
                "message": "9 requests are waiting, which is the limit; try again later",
                "type": "rate_limit_error",
            },
        ),
        (EngineStopped(), 503, {"code": 503, "message": "the engine has stopped", "type": "unavailable_error"}),
        (
            DecodeError("out of memory"),
            500,
            {"code": 500, "message": "the model could not compute a step: out of memory", "type": "server_error"},
        ),
        (
            SlowReader(11, 10),
            500,
            {
                "code": 500,
                "message": "the stream was ended because its reader is 11 events behind (the limit is 10)",
                "type": "server_error",
            },
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
@pytest.mark.parametrize("when", ["refused", "first", "later"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_an_error_is_a_status_until_the_first_event_and_an_event_afterwards(
    error: Exception, status: int, described: dict[str, object], when: str, path: str, stream: bool
) -> None:
    scripts = {"refused": error, "first": [error], "later": [[token(0, "a")], error]}
    engine = ScriptedEngine(scripts[when])
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        answer = await client.post(path, json={"prompt": "abc", "stream": stream})
    if stream and when == "later":
        assert answer.status_code == 200
        first, second = answer.text.removesuffix("\n\n").split("\n\n")
        assert '"a"' in first
        assert json.loads(second.removeprefix("data: ")) == {"error": described}
    else:
        assert answer.status_code == status
        assert answer.json() == {"error": described}
    assert all(stream.is_closed for stream in engine.streams)


async def test_our_own_bug_is_said_without_detail_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine(ZeroDivisionError("secret"))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        answer = await client.post("/completion", json={"prompt": "abc"})
    assert answer.status_code == 500
    assert answer.json() == {"error": {"code": 500, "message": "internal error", "type": "server_error"}}
    assert "secret" in caplog.text


async def test_several_prompts_are_submitted_all_or_none() -> None:
    engine = ScriptedEngine([[token(0, "a")]], QueueFull(1))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        answer = await client.post("/completion", json={"prompt": ["abc", "abd"]})
    assert answer.status_code == 429
    assert [stream.is_closed for stream in engine.streams] == [True]


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


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_client_that_leaves_before_the_first_event_closes_its_streams(path: str, stream: bool) -> None:
    engine = ScriptedEngine([], [])
    engine.loaded.set()
    app = create_app(engine.as_engine())
    async with AsyncTestClient(app):
        sent = await connect(app, path, {"prompt": ["abc", "abd"], "stream": stream}, lambda sent: True)
    assert sent == []
    assert [stream.is_closed for stream in engine.streams] == [True, True]
