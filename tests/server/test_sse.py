import json
import math

import msgspec
import pytest
from litestar.testing import AsyncTestClient

from tests.helpers import How
from tests.server.live import events_of
from tests.server.scripted import ScriptedEngine, connect, token
from weft import ContextOverflow, DecodeError, EngineStopped, InvalidRequest, QueueFull, Request, SlowReader
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


def error_of(status: int, message: str, kind: str, **more: object) -> dict[str, object]:
    return {"error": {"code": status, "message": message, "type": kind, **more}}


ERRORS = {
    ContextOverflow(70, 64): error_of(
        400,
        "the prompt of 70 tokens does not fit in the context of 64 tokens",
        "exceed_context_size_error",
        n_prompt_tokens=70,
        n_ctx=64,
    ),
    InvalidRequest("n", "n is 0"): error_of(400, "n is 0", "invalid_request_error", param="n"),
    QueueFull(9): error_of(429, "9 requests are waiting, which is the limit; try again later", "rate_limit_error"),
    EngineStopped(): error_of(503, "the engine has stopped", "unavailable_error"),
    DecodeError("out of memory"): error_of(500, "the model could not compute a step: out of memory", "server_error"),
    SlowReader(11, 10): error_of(
        500, "the stream was ended because its reader is 11 events behind (the limit is 10)", "server_error"
    ),
}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("when", ["refused", "first", "later"])
async def test_an_error_is_a_status_until_the_first_event_and_an_event_afterwards(
    error: Exception, when: str, path: str, how: How
) -> None:
    scripts = {"refused": error, "first": [error], "later": [[token(0, "a")], error]}
    engine = ScriptedEngine(scripts[when])
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        answer = await client.post(path, json={"prompt": "abc", "stream": how == "stream"})
    if how == "stream" and when == "later":
        assert answer.status_code == 200
        first, second = answer.text.removesuffix("\n\n").split("\n\n")
        assert '"a"' in first
        assert json.loads(second.removeprefix("data: ")) == ERRORS[error]
    else:
        assert answer.json() == ERRORS[error]
        assert answer.status_code == answer.json()["error"]["code"]
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


async def test_a_client_that_leaves_before_the_first_event_closes_its_streams(path: str, how: How) -> None:
    engine = ScriptedEngine([], [])
    engine.loaded.set()
    app = create_app(engine.as_engine())
    async with AsyncTestClient(app):
        sent = await connect(app, path, {"prompt": ["abc", "abd"], "stream": how == "stream"}, lambda sent: True)
    assert sent == []
    assert [stream.is_closed for stream in engine.streams] == [True, True]


@pytest.mark.parametrize(
    ("body", "request_"),
    [
        ({}, {}),
        ({"n": 3, "seed": 5, "temperature": 0.25}, {"n": 3, "seed": 5, "temperature": 0.25}),
        ({"seed": -1}, {"seed": None}),
        ({"seed": 2**32 - 1}, {"seed": None}),
        ({"seed": 2**32 + 7}, {"seed": 7}),
        ({"max_tokens": 9}, {"max_tokens": 9}),
        ({"max_tokens": -1}, {"max_tokens": None}),
        ({"max_tokens": 0}, {"max_tokens": 0}),
        ({"stop": "a"}, {"stop": ["a"]}),
        ({"stop": ["a", "", "b"]}, {"stop": ["a", "b"]}),
        ({"logit_bias": {"65": 1, "BC": False}}, {"logit_bias": [(65, 1), (66, -math.inf), (67, -math.inf)]}),
        ({"logit_bias": [[65, -1.5], ["BC", 2]]}, {"logit_bias": [(65, -1.5), (66, 2), (67, 2)]}),
        ({"logprobs": 3}, {"n_probs": 3}),
        ({"n_probs": 2}, {"n_probs": 2}),
        ({"top_k": 1, "top_p": 0.5, "min_p": 0.25}, {"top_k": 1, "top_p": 0.5, "min_p": 0.25}),
        ({"repeat_penalty": 1.5, "repeat_last_n": 8}, {"repeat_penalty": 1.5, "repeat_last_n": 8}),
        ({"presence_penalty": 0.5, "frequency_penalty": 0.25}, {"presence_penalty": 0.5, "frequency_penalty": 0.25}),
        ({"ignore_eos": True}, {"ignore_eos": True}),
    ],
    ids=str,
)
async def test_each_field_reaches_the_engine(path: str, body: dict[str, object], request_: dict[str, object]) -> None:
    engine = ScriptedEngine(QueueFull(1))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        await client.post(path, json={"prompt": "ab", **body})
    defaults = msgspec.structs.asdict(Request(prompt=[97, 98], stop=[], logit_bias=[]))
    assert [msgspec.structs.asdict(request) for request in engine.requests] == [defaults | request_]


async def test_what_a_request_leaves_unsaid_comes_from_the_settings(path: str) -> None:
    settings = {"n_predict": 5, "seed": 6, "temperature": 0.5, "top_k": 7, "ignore_eos": True}
    engine = ScriptedEngine(QueueFull(1))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine(), Settings(**settings))) as client:  # type: ignore[arg-type]
        await client.post(path, json={"prompt": "ab", "temperature": None, "top_k": 8})
    [request] = engine.requests
    assert (request.max_tokens, request.seed, request.temperature, request.top_k, request.ignore_eos) == (5, 6, 0.5, 8, True)
