"""A whole answer is in memory until it ends: how much it may come to, alone and with others."""

import asyncio
from typing import cast

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.helpers import wait_until
from tests.server.matchers import Json
from tests.server.scripted import ScriptedEngine, ScriptedLogprobs, connect, finished
from weft.server import create_app, memory_budget
from weft.server.gateway import Gateway
from weft.server.refusals import Reason

ASKED: Json = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "max_tokens": 100, "n_predict": 100}
LIKELY = {"/completion": {"n_probs": 9}, "/v1/completions": {"logprobs": 9}, "/v1/chat/completions": {"n_probs": 9}}


def likely(n_predicted: int) -> weft.Token:
    """A token that comes to more than a kilobyte of JSON."""
    return weft.Token(0, 7, "word", slot=0, n_predicted=n_predicted, logprobs=cast("weft.Logprobs", ScriptedLogprobs(9)))


LONG = [[likely(n)] for n in range(1, 50)]


@pytest.fixture(params=LIKELY)
def route(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def ask(engine: ScriptedEngine, route: str, **body: Json) -> tuple[httpx.Response, Gateway]:
    engine.loaded.set()
    app = create_app(engine.as_engine())
    async with AsyncTestClient(app) as client:
        return await client.post(route, json=ASKED | LIKELY[route] | body), app


async def test_an_answer_that_comes_to_too_much_is_ended(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "MAX_ANSWER_BYTES", 16_384)
    engine = ScriptedEngine([*LONG, [finished(0)], []])
    answer, app = await ask(engine, route)
    message = "the answer exceeds 16384 bytes; set stream, or request fewer tokens, completions or log-probabilities"
    error = {"code": 400, "message": message, "type": "invalid_request_error", "param": "stream"}
    assert (answer.status_code, answer.json()["error"]) == (400, error)
    assert [stream.is_closed for stream in engine.streams] == [True]
    assert len(engine.streams[0]._steps) > 20, "it ends at once"
    assert app.service.refusals.counts[Reason.ANSWER_TOO_LARGE] == 1
    assert app.service.collected.n_bytes == 0


async def test_it_may_be_as_long_as_it_likes_where_it_is_streamed(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "MAX_ANSWER_BYTES", 16_384)
    answer, _ = await ask(ScriptedEngine([*LONG, [finished(0)], []]), route, stream=True)
    assert answer.status_code == 200
    assert len(answer.content) > 16_384


@pytest.mark.parametrize(
    ("path", "body"),
    [("/completion", {}), ("/v1/completions", {"echo": True})],
    ids=["llama.cpp's answer tells the prompt", "echo"],
)
async def test_a_prompt_that_is_told_with_every_branch_counts_each_time(
    path: str, body: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_budget, "MAX_ANSWER_BYTES", 300_000)
    engine = ScriptedEngine(*[[*([finished(index)] for index in range(n)), []] for n in (2, 4)])
    engine.limits.n_ctx_slot = 1_000_000
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        asked = [await client.post(path, json=body | {"prompt": "a" * 100_000, "n": n}) for n in (2, 4)]
    assert [answer.status_code for answer in asked] == [200, 400]


async def test_all_of_them_together_are_bounded_but_small_ones_are_not_refused(
    route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_budget, "MAX_TOGETHER_BYTES", 30_000)
    monkeypatch.setattr(memory_budget, "SMALL_BYTES", 8_192)
    engine = ScriptedEngine(LONG[:20], LONG, [LONG[0], [finished(0)], []])
    engine.loaded.set()
    app = create_app(engine.as_engine())
    await app.service.lifecycle.start()

    def ask_and_stay() -> asyncio.Task[list[Json]]:
        return asyncio.create_task(connect(app, route, ASKED | LIKELY[route], lambda _: False))

    first = ask_and_stay()
    await wait_until(lambda: engine.streams != [] and engine.streams[0]._steps == [])
    held = app.service.collected.n_bytes
    assert held > 0
    start, end = await ask_and_stay()
    assert (start["status"], dict(start["headers"])[b"retry-after"]) == (429, b"1")
    assert b"set stream, or try again later" in end["body"]
    assert app.service.collected.n_bytes == held
    # A small one has its room in any case.
    assert (await ask_and_stay())[0]["status"] == 200
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert app.service.collected.n_bytes == 0
    await app.service.stop()
