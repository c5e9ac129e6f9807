"""Diversity and beams through the dialects: fields in, scores out."""

import json
from typing import Any

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.helpers import read_sse
from tests.server.conftest import answers
from weft.server import create_app
from weft.settings import Settings

Json = Any

PROMPT = "Once upon a time, there was a"
PATHS: dict[str, Json] = {
    "/completion": {"prompt": PROMPT},
    "/v1/completions": {"prompt": PROMPT},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": PROMPT}]},
}


def branches_of(answer: Json) -> list[Json]:
    """The branches of an answer of any dialect, in order."""
    if isinstance(answer, list):
        return answer
    return list(answer.get("choices", [answer]))


def text_of(branch: Json) -> str:
    return str(branch["message"]["content"] if "message" in branch else branch.get("content", branch.get("text")))


@pytest.mark.parametrize("path", PATHS)
async def test_a_search_is_told_with_its_scores(client: httpx.AsyncClient, path: str) -> None:
    body = {**PATHS[path], "n": 3, "beam_width": 4, "n_predict": 6, "temperature": 0, "ignore_eos": True}
    by_mean = branches_of((await client.post(path, json=body)).raise_for_status().json())
    by_sum = branches_of((await client.post(path, json=body | {"length_penalty": 0})).raise_for_status().json())
    assert [text_of(branch) for branch in by_mean] == [text_of(branch) for branch in by_sum]
    scores = [branch["score"] for branch in by_mean]
    assert scores == sorted(scores, reverse=True)
    assert [branch["score"] for branch in by_sum] == [pytest.approx(6 * score) for score in scores]
    assert len({text_of(branch) for branch in by_mean}) == 3


@pytest.mark.parametrize("path", PATHS)
async def test_what_is_drawn_together_differs_and_has_no_score(client: httpx.AsyncClient, path: str) -> None:
    body = {**PATHS[path], "n": 6, "n_predict": 4, "distinct": True, "top_k": 0, "top_p": 1, "min_p": 0, "ignore_eos": True}
    branches = branches_of((await client.post(path, json=body)).raise_for_status().json())
    assert len({text_of(branch) for branch in branches}) == 6
    assert not any("score" in branch for branch in branches)


async def test_a_stream_tells_a_score_with_each_end(client: httpx.AsyncClient) -> None:
    body = {"prompt": PROMPT, "n": 2, "diverse": "beam", "n_predict": 6, "seed": 1, "ignore_eos": True}
    whole = branches_of((await client.post("/v1/completions", json=body)).raise_for_status().json())
    texts, scores = ["", ""], {}
    async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
        for event in await read_sse(response.aiter_lines()):
            for choice in () if event == "[DONE]" else json.loads(event)["choices"]:
                texts[choice["index"]] += choice["text"]
                if choice["finish_reason"] is not None:
                    scores[choice["index"]] = choice["score"]
                else:
                    assert "score" not in choice
    assert texts == [choice["text"] for choice in whole]
    assert scores == {choice["index"]: choice["score"] for choice in whole}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"beam_width": 100}, "beam_width"),
        ({"beam_width": 2, "mirostat": 1}, "mirostat"),
        ({"diverse": "none"}, "diverse"),
        ({"diverse": "beam"}, "diverse"),
        ({"beam_width": 2, "n_predict": 0}, "n_predict"),
    ],
    ids=str,
)
async def test_what_does_not_go_together_is_refused_by_name(
    client: httpx.AsyncClient, path: str, fields: dict[str, Json], name: str
) -> None:
    answer = await client.post(path, json={**PATHS[path], "n_predict": 2, **fields})
    assert answer.status_code == 400
    assert name in answer.json()["error"]["message"]


async def test_a_server_that_shifts_contexts_searches() -> None:
    engine = weft.Engine(n_slots=4, n_ctx=512, kv_unified=True, n_threads=1)
    async with AsyncTestClient(create_app(engine, Settings(context_shift=True))) as client:
        await answers(client, 200)
        body = {"prompt": PROMPT, "beam_width": 3, "n": 2, "n_predict": 4}
        assert len((await client.post("/completion", json=body)).raise_for_status().json()) == 2
        refused = await client.post("/completion", json=body | {"n_predict": 0})
        assert refused.json()["error"]["param"] == "n_predict"
