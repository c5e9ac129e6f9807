"""Single-request batching: its events, byte for byte, and when they are asked for."""

import json
import threading
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.server.conftest import PROMPT, answers
from tests.server.live import events_of
from tests.server.matchers import Json
from tests.server.scripted import ScriptedEngine, busy_slot, finished, token
from tests.server.serving import serving
from weft import EngineStoppedError, ModelLoadError
from weft.server import create_app
from weft.server.compat import single_request_batching
from weft.settings import Settings

SRB = {"event_format": "srb"}


@pytest.fixture(scope="module")
async def srb() -> AsyncIterator[httpx.AsyncClient]:
    """The application over the demo model, with `--compat srb`."""
    settings = Settings(compat="srb")
    app = create_app(weft.Engine(n_slots=4, n_ctx=4096, kv_unified=True, n_threads=1), settings)
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        yield client


def by_index(events: list[Json], event: str) -> dict[int, list[Json]]:
    found: dict[int, list[Json]] = {}
    for one in events:
        if one["event"] == event:
            found.setdefault(one["index"], []).append(one)
    return found


async def stream(client: httpx.AsyncClient, body: Json) -> list[Json]:
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    return [json.loads(event) for event in events_of(answer.text)]


def test_the_events_are_those_of_the_server_that_had_them_first() -> None:
    generation: Json = SimpleNamespace(requests=[SimpleNamespace(n=2)])
    form = single_request_batching.ChunkEncoder(generation)
    events = [token(0, " there"), token(1, " I"), token(0, ' "was"'), token(1, "")]
    events += [finished(1, reason="stop"), token(0, " é\n"), finished(0, "!", "length")]
    written = b"".join([*(frame for event in events for frame in form.frames(0, event)), form.end()])
    assert written.decode() == (
        'data: {"event": "start", "count": 2}\n\n'
        'data: {"event": "stream", "index": 0, "text": " there"}\n\n'
        'data: {"event": "stream", "index": 1, "text": " I"}\n\n'
        'data: {"event": "stream", "index": 0, "text": " \\"was\\""}\n\n'
        'data: {"event": "stop", "index": 1, "length": 0, "stop": 1}\n\n'
        'data: {"event": "stream", "index": 0, "text": " é\\n"}\n\n'
        'data: {"event": "stream", "index": 0, "text": "!"}\n\n'
        'data: {"event": "stop", "index": 0, "length": 3, "stop": 0}\n\n'
        'data: {"event": "done", "count": 2}\n\n'
    )


@pytest.mark.parametrize(("reason", "stop"), [("end", 1), ("stop", 1), ("length", 0), ("context_full", 0)])
def test_stop_tells_an_end_from_a_limit(reason: str, stop: int) -> None:
    generation: Json = SimpleNamespace(requests=[SimpleNamespace(n=1)])
    [_, event] = events_of(
        b"".join(single_request_batching.ChunkEncoder(generation).frames(0, finished(0, reason=reason))).decode()
    )
    assert event == f'{{"event": "stop", "index": 0, "length": -1, "stop": {stop}}}'


async def test_eight_completions_are_streamed_whatever_the_request_says_of_streaming(srb: httpx.AsyncClient) -> None:
    for more in ({}, {"stream": False}, {"stream": True}, {"n": None}):
        events = await stream(srb, {"prompt": PROMPT, "max_tokens": 12} | more)
        assert events[0] == {"event": "start", "count": 8}
        assert events[-1] == {"event": "done", "count": 8}
        assert Counter(event["event"] for event in events if event["event"] != "stream") == {"start": 1, "stop": 8, "done": 1}
        assert sorted(by_index(events, "stop")) == list(range(8))


async def test_length_is_one_less_than_the_events_of_its_index(srb: httpx.AsyncClient) -> None:
    events = await stream(srb, {"prompt": PROMPT, "n": 6, "max_tokens": 40, "stop": ["."], "seed": 5})
    streams = by_index(events, "stream")
    for index, [stop] in by_index(events, "stop").items():
        assert stop["length"] == len(streams[index]) - 1
        assert list(stop) == ["event", "index", "length", "stop"]
        last = max(position for position, event in enumerate(events) if event.get("index") == index)
        assert events[last] == stop, "nothing of an index follows its end"


@pytest.mark.parametrize(("body", "stop"), [({"stop": ["."], "max_tokens": 200}, 1), ({"max_tokens": 3, "ignore_eos": True}, 0)])
async def test_what_ended_it_is_told_for_each(srb: httpx.AsyncClient, body: Json, stop: int) -> None:
    events = await stream(srb, {"prompt": PROMPT, "n": 3} | body)
    assert [end["stop"] for [end] in by_index(events, "stop").values()] == [stop] * 3


async def test_its_texts_are_those_of_the_other_dialects(srb: httpx.AsyncClient) -> None:
    body = {"prompt": PROMPT, "n": 3, "max_tokens": 30, "temperature": 0, "stop": [" the"], "logit_bias": {"300": -1}}
    events = await stream(srb, body)
    texts = {index: "".join(event["text"] for event in of_index) for index, of_index in by_index(events, "stream").items()}
    whole = (await srb.post("/v1/completions", json=body | {"event_format": "openai"})).json()
    assert texts == {choice["index"]: choice["text"] for choice in whole["choices"] if choice["text"]}


async def test_indexes_count_over_all_prompts(srb: httpx.AsyncClient) -> None:
    events = await stream(srb, {"prompt": [PROMPT, "A cow", ["Two ", "wolves"]], "n": 2, "max_tokens": 2, "ignore_eos": True})
    assert events[0] == {"event": "start", "count": 6}
    assert sorted(by_index(events, "stop")) == sorted(by_index(events, "stream")) == list(range(6))
    assert events[-1] == {"event": "done", "count": 6}


@pytest.mark.parametrize(
    ("settings", "body", "count"),
    [
        ({}, SRB, 8),
        ({"n": 5}, SRB, 5),
        ({"n": 5}, SRB | {"n": 2}, 2),
        ({"n": 5}, SRB | {"n_cmpl": 3}, 3),
        ({"compat": "srb"}, {}, 8),
        ({"compat": "srb", "n": 3}, {}, 3),
        ({"compat": "srb", "n": 3}, {"event_format": ""}, 3),
        ({"compat": "srb"}, {"event_format": None, "n": 4}, 4),
    ],
    ids=str,
)
async def test_the_request_or_else_the_settings_say_how_many(settings: Json, body: Json, count: int) -> None:
    engine = ScriptedEngine([[token(0, "a")]])
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine(), Settings.of(settings))) as client:
        await answers(client, 200)
        engine._scripts = [[[token(0, "a")], EngineStoppedError()]]
        answer = await client.post("/v1/completions", json={"prompt": "abc"} | body)
    assert engine.requests[0].n == count
    assert answer.text.startswith(f'data: {{"event": "start", "count": {count}}}\n\n')


@pytest.mark.parametrize("body", [{}, {"event_format": "openai"}, {"event_format": None}], ids=str)
async def test_without_being_asked_it_is_openais(body: Json) -> None:
    async with serving([[token(0, "a")], EngineStoppedError()]) as client:
        answer = await client.post("/v1/completions", json={"prompt": "abc", "stream": True} | body)
    assert json.loads(events_of(answer.text)[0])["object"] == "text_completion"


async def test_an_unknown_format_is_refused_with_those_there_are() -> None:
    async with serving() as client:
        answer = await client.post("/v1/completions", json={"prompt": "abc", "event_format": "xml"})
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "code": 400,
        "message": "event_format is 'xml'; it must be one of openai, srb",
        "type": "invalid_request_error",
        "param": "event_format",
    }


async def test_an_error_in_mid_stream_is_an_event_and_the_last() -> None:
    async with serving([[token(0, "a")], EngineStoppedError()]) as client:
        answer = await client.post("/v1/completions", json={"prompt": "abc", "n": 1} | SRB)
    assert events_of(answer.text) == [
        '{"event": "start", "count": 1}',
        '{"event": "stream", "index": 0, "text": "a"}',
        '{"error":{"code":503,"message":"the engine has stopped","type":"unavailable_error"}}',
    ]


async def test_an_error_before_is_a_status() -> None:
    async with serving(EngineStoppedError()) as client:
        assert (await client.post("/v1/completions", json={"prompt": "abc"} | SRB)).status_code == 503


@pytest.mark.parametrize(
    ("field", "asking", "neutral"),
    [
        ("logprobs", 0, None),
        ("n_probs", 2, 0),
        ("echo", True, False),
        ("suffix", "x", ""),
        ("best_of", 9, 1),
        ("return_tokens", True, False),
        ("explain_cache", True, False),
        ("timings_per_token", True, False),
        ("return_progress", True, False),
        ("post_sampling_probs", True, False),
        ("response_fields", ["content"], []),
        ("verbose", True, False),
        ("stream_options", {"include_usage": True}, {"include_usage": False}),
    ],
)
async def test_what_its_events_have_no_place_for_is_refused_by_name(
    srb: httpx.AsyncClient, field: str, asking: Json, neutral: Json
) -> None:
    body = {"prompt": PROMPT, "n": 1, "max_tokens": 1}
    refused = await srb.post("/v1/completions", json=body | {field: asking})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
    assert (await stream(srb, body | {field: neutral}))[0]["event"] == "start"


async def test_sampling_fields_are_checked_as_elsewhere(srb: httpx.AsyncClient) -> None:
    refused = await srb.post("/v1/completions", json={"prompt": PROMPT, "n": 300})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
    missing = await srb.post("/v1/completions", json={})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "prompt")


async def test_the_other_routes_answer_as_ever(srb: httpx.AsyncClient) -> None:
    answer = await srb.post("/completion", json={"prompt": PROMPT, "n_predict": 1})
    assert answer.json()["stop"] is True


async def test_the_model_says_what_its_engine_is_about() -> None:
    engine = ScriptedEngine()
    engine.has_files = False
    app = create_app(engine.as_engine(), Settings(compat="srb"))

    async def state(route: str = "/v1/models") -> str:
        answer = await client.get(route)
        assert answer.status_code == 200
        [model] = answer.json()["data"]
        assert (answer.json()["object"], model["object"], model["id"]) == ("list", "model", "scripted.gguf")
        return str(model["engine_state"])

    async with AsyncTestClient(app) as client:
        assert [await state(), await state("/models")] == ["INIT"] * 2
        engine.has_files = True
        assert [await state(), await state("/models")] == ["LOADING"] * 2
        engine.model.__dict__.update(vocab_type=1, n_ctx_train=8, n_embd=8, n_params=8, size_bytes=8)
        engine.loaded.set()
        await answers(client, 200)
        assert [await state(), await state("/models")] == ["READY"] * 2
        engine.slots[1] = busy_slot(1, request_id=9, index=0)
        assert await state() == "RUNNING"
        engine.is_running = False
        assert await state() == "DEAD"
        assert (await client.get("/health")).status_code == 503


async def test_an_engine_that_makes_vectors_is_running() -> None:
    app = create_app(weft.Engine(n_slots=1, n_ctx=1024, n_threads=1), Settings(compat="srb"))
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        is_over = threading.Event()

        def watched() -> list[str]:
            states: list[str] = [app.service.state]
            while not is_over.wait(0.001):
                states += [app.service.state] if app.service.state != states[-1] else []
            return states

        # The client keeps the event loop to itself while it waits.
        with ThreadPoolExecutor() as threads:
            watching = threads.submit(watched)
            answer = await client.post("/embedding", json={"content": ["Once upon a time " * 40] * 20})
            is_over.set()
        assert answer.status_code == 200
        assert watching.result()[:2] == ["READY", "RUNNING"]
        assert (await client.post("/embedding", json={"content": "fox " * 5000})).status_code == 400
        assert app.service.state == "READY"


async def test_before_anything_is_begun_the_engine_is_at_its_init() -> None:
    app = create_app(ScriptedEngine().as_engine(), Settings(compat="srb"))
    assert app.service.state == "INIT"


async def test_a_model_that_cannot_be_loaded_is_dead_to_whoever_asks() -> None:
    engine = ScriptedEngine()
    engine.failure = ModelLoadError("a.gguf", "there is no such file")
    engine.loaded.set()
    settings = Settings(compat="srb", alias="one", api_keys=("k",))
    async with AsyncTestClient(create_app(engine.as_engine(), settings)) as client:
        await answers(client, 500)
        told = await client.get("/v1/models")
    assert told.json() == {"object": "list", "data": [{"object": "model", "id": "one", "engine_state": "DEAD"}]}


async def test_without_the_flag_a_model_has_no_such_state(client: httpx.AsyncClient) -> None:
    assert "engine_state" not in (await client.get("/v1/models")).json()["data"][0]


async def test_each_request_says_how_its_completions_are_drawn(srb: httpx.AsyncClient) -> None:
    async def texts(**body: Json) -> list[str]:
        events = await stream(srb, {"prompt": PROMPT, "max_tokens": 12, "ignore_eos": True, "seed": 3} | body)
        return ["".join(event["text"] for event in of_index) for _, of_index in sorted(by_index(events, "stream").items())]

    greedy = await texts(n=3, temperature=0)
    assert greedy == [greedy[0]] * 3
    assert await texts(n=2, samplers=["top_k"], top_k=1) == greedy[:2]
    drawn = await texts(n=4, temperature=1.5, top_k=0, top_p=1, min_p=0)
    assert len(set(drawn)) == 4
    assert await texts(n=4, temperature=1.5, top_k=0, top_p=1, min_p=0) == drawn
    assert "e" not in "".join(await texts(n=2, grammar="root ::= [^e]+"))
