"""What OpenAI's answers hold besides, in llama-server's words, where it is asked for: in completions and in chats."""

import json

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.helpers import How
from tests.server.conftest import answers
from tests.server.live import events_of
from tests.server.matchers import COUNT, NUMBER, SETTINGS, TIMINGS, Json
from weft.server import create_app
from weft.settings import Settings

ASKED: Json = {"prompt": "The dog is", "messages": [{"role": "user", "content": "How is the dog?"}], "max_tokens": 3}
"""What either route reads."""


@pytest.fixture(params=["/v1/completions", "/v1/chat/completions"], ids=["completions", "chat"])
def route(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def whole(client: httpx.AsyncClient, route: str, **body: Json) -> Json:
    given = await client.post(route, json={**ASKED, **body})
    assert given.status_code == 200, given.text
    return given.json()


async def stream(client: httpx.AsyncClient, route: str, **body: Json) -> list[Json]:
    given = await client.post(route, json={**ASKED, "stream": True, **body})
    assert given.status_code == 200, given.text
    return [json.loads(event) for event in events_of(given.text)[:-1]]


def said(choice: Json) -> str:
    """The text of a choice, whole or in part."""
    if "text" in choice:
        return str(choice["text"])
    return str((choice.get("message") or choice["delta"]).get("content") or "")


async def test_a_stream_tells_how_far_its_prompt_is(client: httpx.AsyncClient, route: str) -> None:
    chunks = await stream(client, route, return_progress=True, cache_prompt=False)
    told = [chunk for chunk in chunks if "prompt_progress" in chunk]
    assert chunks[: len(told)] == told, "progress comes before the first token"
    assert all(said(chunk["choices"][0]) == "" and chunk["choices"][0]["finish_reason"] is None for chunk in told)
    progress = [chunk["prompt_progress"] for chunk in told]
    n_prompt = progress[0]["total"]
    assert progress == [{"total": n_prompt, "cache": 0, "processed": COUNT, "time_ms": NUMBER}] * len(told)
    assert progress[-1]["processed"] == n_prompt
    assert sorted(one["processed"] for one in progress) == [one["processed"] for one in progress]


async def test_a_responses_stream_tells_how_far_its_prompt_is(client: httpx.AsyncClient) -> None:
    body = {"input": "Tell me a story. " * 100, "max_output_tokens": 3, "stream": True, "cache_prompt": False}
    answers = [await client.post("/v1/responses", json=body | more) for more in ({"return_progress": True}, {})]
    told, plain = ([json.loads(event) for event in events_of(answer.text)] for answer in answers)
    assert [event["type"] for event in told if "prompt_progress" not in event] == [event["type"] for event in plain]
    assert {event["type"] for event in told if "prompt_progress" in event} == {"response.in_progress"}
    progress = [event["prompt_progress"] for event in told if "prompt_progress" in event]
    assert progress == [{"total": progress[0]["total"], "cache": 0, "processed": COUNT, "time_ms": NUMBER}] * len(progress)
    assert progress[-1]["processed"] == progress[-1]["total"] > 100
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    n_first = next(nth for nth, event in enumerate(told) if event["type"] == "response.output_item.added")
    assert all("prompt_progress" not in event for event in told[n_first:])


async def test_progress_comes_only_where_it_is_asked_for(client: httpx.AsyncClient, route: str) -> None:
    assert all("prompt_progress" not in chunk for chunk in await stream(client, route))
    assert "prompt_progress" not in await whole(client, route, return_progress=True)


async def test_timings_come_with_each_token(client: httpx.AsyncClient, route: str) -> None:
    # Greedy: a sampled token may end the text early, or have no text.
    chunks = await stream(client, route, timings_per_token=True, temperature=0)
    tokens = [chunk for chunk in chunks if said(chunk["choices"][0])]
    assert [chunk["timings"] for chunk in tokens] == [TIMINGS | {"predicted_n": count} for count in (1, 2, 3)]
    plain = [chunk for chunk in await stream(client, route) if said(chunk["choices"][0])]
    assert all("timings" not in chunk for chunk in plain)


async def test_progress_tells_timings_where_they_are_wanted(client: httpx.AsyncClient, route: str) -> None:
    chunks = await stream(client, route, return_progress=True, timings_per_token=True, cache_prompt=False)
    told = [chunk for chunk in chunks if "prompt_progress" in chunk]
    assert len(told) >= 2
    assert [chunk["timings"] for chunk in told] == [
        TIMINGS | {"cache_n": 0, "prompt_n": chunk["prompt_progress"]["processed"], "predicted_n": 0} for chunk in told
    ]
    plain = await stream(client, route, return_progress=True)
    assert all("timings" not in chunk for chunk in plain if "prompt_progress" in chunk)


async def test_llama_servers_own_answer_stands_beside(client: httpx.AsyncClient, route: str, how: How) -> None:
    body: Json = {"verbose": True, "temperature": 0, "seed": 5, "n": 2}
    if how == "whole":
        answer = await whole(client, route, **body)
        own, content = answer["__verbose"], said(answer["choices"][0])
    else:
        chunks = await stream(client, route, **body)
        ended = [chunk for chunk in chunks if chunk["choices"][0]["finish_reason"]]
        assert [chunk for chunk in chunks if "__verbose" in chunk] == ended
        [own] = [chunk["__verbose"] for chunk in ended if chunk["choices"][0]["index"] == 0]
        content = ""
    assert own["generation_settings"] == SETTINGS | {
        "temperature": 0.0,
        "seed": 5,
        "max_tokens": 3,
        "n_predict": 3,
        "stream": how == "stream",
    }
    assert (own["index"], own["content"], own["stop_type"], own["tokens_predicted"]) == (0, content, "limit", 3)
    assert own["prompt"].startswith("<s>")


async def test_llama_servers_own_answer_comes_only_where_it_is_asked_for(client: httpx.AsyncClient, route: str) -> None:
    assert "__verbose" not in await whole(client, route, verbose=False)
    assert all("__verbose" not in chunk for chunk in await stream(client, route))


async def test_llama_servers_own_answer_holds_tokens_where_they_are_asked_for(client: httpx.AsyncClient, route: str) -> None:
    body: Json = {"verbose": True, "return_tokens": True}
    answer = await whole(client, route, **body)
    text = await client.post("/detokenize", json={"tokens": answer["__verbose"]["tokens"]})
    assert text.json()["content"] == said(answer["choices"][0]) != ""
    assert (await whole(client, route, verbose=True))["__verbose"]["tokens"] == []


async def test_llama_servers_own_answer_holds_the_fields_that_are_asked_for(
    client: httpx.AsyncClient, route: str, how: How
) -> None:
    body: Json = {"verbose": True, "response_fields": ["stop_type", "generation_settings/n_predict", "nothing"]}
    told = [await whole(client, route, **body)] if how == "whole" else await stream(client, route, **body)
    own = [one["__verbose"] for one in told if "__verbose" in one]
    assert own == [{"stop_type": "limit", "generation_settings/n_predict": 3}]


async def test_a_verbose_server_tells_its_own_answer_beside_without_being_asked(route: str) -> None:
    app = create_app(weft.Engine(n_slots=1, n_ctx=256, n_threads=1), Settings(verbosity=5))
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        answer = await whole(client, route)
        assert answer["__verbose"]["tokens_predicted"] == 3
        assert answer["__verbose"]["content"] == said(answer["choices"][0]) != ""
        assert "__verbose" not in await whole(client, route, verbose=False)


async def test_probabilities_after_the_samplers_are_told_as_such(client: httpx.AsyncClient, route: str, how: How) -> None:
    body: Json = {"n_probs": 3, "post_sampling_probs": True}
    if how == "whole":
        content = (await whole(client, route, **body))["choices"][0]["logprobs"]["content"]
    else:
        chunks = await stream(client, route, **body)
        content = [token for chunk in chunks if (logprobs := chunk["choices"][0]["logprobs"]) for token in logprobs["content"]]
    assert len(content) == 3
    for token in content:
        assert token.keys() == {"id", "token", "bytes", "prob", "top_probs"}
        assert 0 < token["prob"] <= 1
        assert [top.keys() for top in token["top_probs"]] == [{"id", "token", "bytes", "prob"}] * len(token["top_probs"])


async def test_after_the_samplers_one_candidate_is_certain(client: httpx.AsyncClient, route: str) -> None:
    answer = await whole(client, route, n_probs=3, post_sampling_probs=True, top_k=1)
    for token in answer["choices"][0]["logprobs"]["content"]:
        [only] = token["top_probs"]
        assert (only["id"], only["prob"], token["prob"]) == (token["id"], 1, 1)


async def test_a_chat_that_is_too_long_says_by_how_much(client: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": "dog " * 2000}]
    given = await client.post("/v1/chat/completions", json={"messages": messages})
    error = given.json()["error"]
    assert (given.status_code, error["type"], error["n_ctx"]) == (400, "exceed_context_size_error", 1024)
    assert error["n_prompt_tokens"] > 2000
