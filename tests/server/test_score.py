"""`/score` tells how likely continuations are; evaluations that ask by `echo` share what they begin with too."""

import asyncio
import math
from collections.abc import AsyncIterator

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.helpers import prompt_of
from tests.server.conftest import PROMPT, answers
from tests.server.live import LiveServer
from tests.server.matchers import COUNT, LOGPROB, Json
from weft.server import create_app
from weft.server.score_api import scoring
from weft.server.score_api.scoring import LOWEST
from weft.settings import Settings

ENDS = [" there was a little girl", " there was", " zebra"]


@pytest.fixture
async def own() -> AsyncIterator[tuple[httpx.AsyncClient, weft.Engine]]:
    """An application that nobody else asks, and its engine."""
    engine = weft.Engine(n_slots=4, n_ctx=4096, kv_unified=True, n_threads=1)
    async with AsyncTestClient(create_app(engine, Settings(metrics=True))) as client:
        await answers(client, 200)
        yield client, engine


async def scored(client: httpx.AsyncClient, **body: object) -> Json:
    answer = await client.post("/score", json=body)
    assert answer.status_code == 200, answer.text
    told: Json = answer.json()
    return told


async def tokens_of(client: httpx.AsyncClient, text: str) -> list[int]:
    return list((await client.post("/tokenize", json={"content": text, "add_special": True})).json()["tokens"])


async def test_each_continuation_has_its_score_and_its_tokens(client: httpx.AsyncClient) -> None:
    told = await scored(client, prompt=PROMPT, continuations=ENDS, n_probs=3)
    assert told["model"] == "storyteller"
    assert [score["index"] for score in told["scores"]] == [0, 1, 2]
    for score, end in zip(told["scores"], ENDS, strict=True):
        assert score == {
            "index": COUNT,
            "logprob": LOGPROB,
            "n_tokens": COUNT,
            "is_greedy": score["is_greedy"],
            "tokens": score["tokens"],
        }
        assert score["n_tokens"] == len(score["tokens"])
        assert "".join(token["token"] for token in score["tokens"]) == end
        assert score["logprob"] == pytest.approx(math.fsum(token["logprob"] for token in score["tokens"]))
        for token in score["tokens"]:
            assert bytes(token["bytes"]).decode() == token["token"]
            assert len(token["top_logprobs"]) == 3
            assert token["is_greedy"] == (token["logprob"] == token["top_logprobs"][0]["logprob"])
    first, _, zebra = told["scores"]
    assert not zebra["is_greedy"]
    assert first["logprob"] > zebra["logprob"]
    n_prompt = len(await tokens_of(client, PROMPT))
    n_continued = sum(score["n_tokens"] for score in told["scores"])
    assert told["usage"] == {"prompt_tokens": n_prompt, "continuation_tokens": n_continued, "computed_tokens": COUNT}


async def test_what_is_not_asked_for_is_not_told(client: httpx.AsyncClient) -> None:
    told = await scored(client, prompt=PROMPT, continuations=ENDS, tokens=False)
    assert all("tokens" not in score for score in told["scores"])
    told = await scored(client, prompt=PROMPT, continuations=ENDS)
    assert all("top_logprobs" not in token for score in told["scores"] for token in score["tokens"])
    assert "results" not in told


async def test_tokens_and_texts_are_scored_alike(client: httpx.AsyncClient) -> None:
    prompt = await tokens_of(client, PROMPT)
    of_text = await scored(client, prompt=PROMPT, continuations=ENDS)
    ids = [[token["id"] for token in score["tokens"]] for score in of_text["scores"]]
    of_tokens = await scored(client, prompt=prompt, continuations=ids)
    assert of_tokens["scores"] == of_text["scores"]


async def test_several_prompts_are_tasks(client: httpx.AsyncClient) -> None:
    tasks = [{"prompt": PROMPT, "continuations": ENDS}, {"prompt": "A cow says", "continuations": [" moo"]}]
    told = await scored(client, tasks=tasks)
    one = [(await scored(client, **task))["scores"] for task in tasks]
    assert [result["scores"] for result in told["results"]] == one
    assert [result["index"] for result in told["results"]] == [0, 1]
    assert "scores" not in told
    assert (await scored(client, tasks=[]))["results"] == []


async def test_a_document_is_computed_once(own: tuple[httpx.AsyncClient, weft.Engine]) -> None:
    client, _ = own
    document, ends = prompt_of(400, "document"), [prompt_of(5, f"end {n}") for n in range(16)]
    told = await scored(client, prompt=document, continuations=ends)
    assert told["usage"] == {"prompt_tokens": 400, "continuation_tokens": 16 * 5, "computed_tokens": 400 + 16 * 5 + 15}
    metrics = (await client.get("/metrics")).text
    assert f"\nllamacpp:prompt_tokens_total {400 + 16 * 5 + 15}" in metrics
    again = await scored(client, prompt=document, continuations=ends)
    assert again["scores"] == told["scores"]
    assert again["usage"]["computed_tokens"] == 16, "the last token of each"
    anew = await scored(client, prompt=document, continuations=ends[:2], cache_prompt=False)
    assert anew["usage"]["computed_tokens"] == 2 * 405


def harness(context: list[int], choices: list[list[int]], **more: object) -> list[Json]:
    """The requests of lm-evaluation-harness's `local-completions` for one question: a prompt in tokens for each choice."""
    same: Json = {"model": "storyteller", "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    return [same | {"prompt": [*context, *choice], **more} for choice in choices]


@pytest.mark.parametrize("at_once", [False, True], ids=["one after the other", "at once"])
async def test_evaluations_by_echo_compute_their_context_once(
    own: tuple[httpx.AsyncClient, weft.Engine], *, at_once: bool
) -> None:
    client, engine = own
    context = prompt_of(300, f"context {at_once}")
    choices = [prompt_of(4, f"choice {n}") for n in range(4)]
    bodies = harness(context, choices)
    if at_once:
        given = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
    else:
        given = [await client.post("/v1/completions", json=body) for body in bodies]
    told = [answer.json() for answer in given]
    assert sum(one["usage"]["prompt_tokens"] - one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in told) == (
        300 + 4 * 4 + 3
    )
    before = engine.stats().n_computed
    anew = [(await client.post("/v1/completions", json=body | {"cache_prompt": False})).json() for body in bodies]
    assert engine.stats().n_computed - before == 4 * 304
    for one, right in zip(told, anew, strict=True):
        [lists, expected] = [each["choices"][0]["logprobs"] for each in (one, right)]
        assert lists["tokens"] == expected["tokens"]
        assert lists["token_logprobs"][0] is None
        assert len(lists["token_logprobs"]) == 304 + 1
        assert lists["token_logprobs"][1:] == pytest.approx(
            expected["token_logprobs"][1:], abs=1e-4 if engine.is_repeatable else 1
        )
        same = [list(a) == list(b) for a, b in zip(lists["top_logprobs"][1:], expected["top_logprobs"][1:], strict=True)]
        assert all(same) or not engine.is_repeatable


async def test_prompts_of_one_body_share_their_context_too(own: tuple[httpx.AsyncClient, weft.Engine]) -> None:
    client, engine = own
    context, choices = prompt_of(300, "one body"), [prompt_of(4, f"choice {n}") for n in range(4)]
    [body, *_] = harness(context, choices)
    before = engine.stats().n_computed
    given = await client.post("/v1/completions", json=body | {"prompt": [[*context, *choice] for choice in choices]})
    assert len(given.json()["choices"]) == 4
    assert engine.stats().n_computed - before == 300 + 4 * 4 + 3


async def test_a_client_that_leaves_leaves_nothing_running(live: LiveServer) -> None:
    body = {"prompt": prompt_of(900, "left"), "continuations": [[300 + n] for n in range(1000)], "cache_prompt": False}
    async with httpx.AsyncClient(base_url=live.url, timeout=0.3) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/score", json=body)
    async with httpx.AsyncClient(base_url=live.url) as client:
        async with asyncio.timeout(20):
            while any(slot["is_processing"] for slot in (await client.get("/slots")).json()):
                pass


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"continuations": ["a"]}, "prompt"),
        ({"prompt": "a"}, "continuations"),
        ({"prompt": "a", "continuations": [""]}, "continuations"),
        ({"prompt": [], "continuations": ["a"]}, "prompt"),
        ({"prompt": "a", "continuations": [[10**6]]}, "continuations"),
        ({"prompt": [10**6], "continuations": ["a"]}, "prompt"),
        ({"prompt": "a", "continuations": ["a"], "n_probs": 1001}, "n_probs"),
        ({"prompt": "a", "continuations": ["a"], "n_probs": -1}, "n_probs"),
        ({"prompt": "a", "continuations": ["a"], "priority": 1000}, "priority"),
        ({"prompt": "a", "continuations": ["a"], "lora": [{"id": 7, "scale": 1}]}, "lora"),
        ({"prompt": "a", "tasks": []}, "tasks"),
        ({"tasks": [{"prompt": "a"}]}, "tasks[0].continuations"),
        ({"prompt": "a", "continuations": ["a"] * 4097}, "continuations"),
        ({"prompt": "a", "continuations": [[300] * 300] * 4, "n_probs": 1000}, "continuations"),
        ({"prompt": "a", "continuations": "a"}, "continuations"),
    ],
    ids=str,
)
async def test_what_cannot_be_scored_is_refused_by_name(client: httpx.AsyncClient, body: Json, param: str) -> None:
    answer = await client.post("/score", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error.get("param")) == ("invalid_request_error", param), error


async def test_what_does_not_fit_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("/score", json={"prompt": prompt_of(900, "full"), "continuations": [[300], [300] * 200]})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "exceed_context_size_error"


async def test_a_server_that_makes_vectors_scores_nothing() -> None:
    engine = weft.Engine(n_slots=1, n_ctx=512, n_threads=1)
    async with AsyncTestClient(create_app(engine, Settings(embeddings=True))) as client:
        await answers(client, 200)
        answer = await client.post("/score", json={"prompt": "a", "continuations": ["b"]})
    assert answer.status_code == 501


def test_the_bounds_are_those_that_the_tests_go_past() -> None:
    assert scoring.MAX_CONTINUATIONS == 4096
    assert scoring.MAX_SCORED < 4 * 300 * 1001
    assert -math.inf < LOWEST
