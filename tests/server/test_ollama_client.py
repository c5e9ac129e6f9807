"""Ollama's official client against a live server."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from functools import partial
from typing import cast

import ollama
import pytest

from tests.helpers import wait_until
from tests.server.live import LiveServer
from tests.server.matchers import Json

SAY: Json = [{"role": "user", "content": "Tell me a story about a dog."}]
OPTIONS: Json = {"num_predict": 12, "temperature": 0}
ONE_MODEL = "this server serves one model; start it with -m or -hf for another"


@pytest.fixture
def official(live: LiveServer) -> Iterator[ollama.Client]:
    client = ollama.Client(host=live.url)
    yield client
    client._client.close()


@pytest.fixture
async def asynchronous(live: LiveServer) -> AsyncIterator[ollama.AsyncClient]:
    client = ollama.AsyncClient(host=live.url)
    yield client
    await client._client.aclose()


def test_a_chat_whole_and_streamed(official: ollama.Client) -> None:
    whole = official.chat(model="any", messages=SAY, options=OPTIONS)
    parts = list(official.chat(model="any", messages=SAY, options=OPTIONS, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert (whole.done_reason, whole.eval_count) == ("length", 12)
    parts_ns = [whole.load_duration or 0, whole.prompt_eval_duration or 0, whole.eval_duration or 0]
    assert (whole.total_duration or 0) >= sum(parts_ns) > 0


async def test_a_chat_by_the_other_client(asynchronous: ollama.AsyncClient) -> None:
    whole = await asynchronous.chat(model="any", messages=SAY, options=OPTIONS)
    text = ""
    async for part in await asynchronous.chat(model="any", messages=SAY, options=OPTIONS, stream=True):
        text += part.message.content or ""
    assert text == whole.message.content


def test_a_prompt_and_its_context(official: ollama.Client) -> None:
    first = official.generate(model="any", prompt="Tell me a story.", options=OPTIONS, keep_alive="5m")
    second = official.generate(model="any", prompt="And then?", context=first.context, options=OPTIONS)
    assert first.context
    assert second.context
    assert list(second.context)[: len(first.context)] == list(first.context)
    *_, last = official.generate(model="any", prompt="Tell me a story.", options=OPTIONS, stream=True, raw=True)
    assert last.done
    assert last.context is None


def test_a_format_and_log_probabilities(official: ollama.Client) -> None:
    answer = official.chat(model="any", messages=SAY, format={"enum": ["a", "b"]}, logprobs=True, top_logprobs=2)
    assert answer.message.content in ('"a"', '"b"')
    assert answer.logprobs
    assert "".join(one.token for one in answer.logprobs) == answer.message.content
    assert answer.logprobs[0].top_logprobs


def test_vectors(official: ollama.Client) -> None:
    answer = official.embed(model="any", input=["a fox", "a dog"])
    assert len(answer.embeddings) == 2
    one = official.embeddings(model="any", prompt="a fox").embedding
    assert one == pytest.approx(answer.embeddings[0], abs=1e-3)


def test_the_model(official: ollama.Client) -> None:
    [listed] = official.list().models
    [loaded] = official.ps().models
    shown = official.show("any")
    assert listed.model == loaded.model == loaded.name
    assert listed.details == loaded.details == shown.details
    assert shown.capabilities == ["completion", "insert"]
    assert shown.modelinfo
    assert loaded.context_length


def test_what_cannot_be_is_the_clients_own_error(official: ollama.Client) -> None:
    asked: list[Callable[[], object]] = [
        partial(official.pull, "any"),
        partial(official.push, "any"),
        partial(official.copy, "a", "b"),
        partial(official.delete, "any"),
        partial(official.create, "any", from_="other"),
    ]
    for ask in asked:
        with pytest.raises(ollama.ResponseError, match=ONE_MODEL) as caught:
            ask()
        assert caught.value.status_code == 501
    with pytest.raises(ollama.ResponseError, match=ONE_MODEL):
        list(official.pull("any", stream=True))
    with pytest.raises(ollama.ResponseError, match=r"options\.num_gpu") as caught:
        official.chat(model="any", messages=SAY, options={"num_gpu": 3})
    assert caught.value.status_code == 400


async def test_a_stream_that_is_left_frees_its_slot(asynchronous: ollama.AsyncClient, live: LiveServer) -> None:
    stream = await asynchronous.chat(model="any", messages=SAY, options={"num_predict": 900}, stream=True)
    async for _ in stream:
        break
    await cast("AsyncGenerator[ollama.ChatResponse, None]", stream).aclose()
    await wait_until(lambda: live.busy_slots() == [])
